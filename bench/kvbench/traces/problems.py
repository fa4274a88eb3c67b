"""What is wrong with a trace, as data: one list feeds `kvbench trace validate` and the error a run stops with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from kvbench.errors import InputError


class TraceProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `line` counts from 1, 0 is the file as a whole; `field` is the JSON path inside it. An error stops
    a run. `file`: which one, where a trace is a directory of them.
    """

    line: int
    message: str
    field: str | None = None
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"
    file: str | None = None

    def error(self, path: Path) -> InputError:
        where = path if self.file is None else self.file
        return InputError(self.message, path=where, line=self.line or None, field=self.field, hint=self.hint)


class ProblemLog:
    """Collects problems up to a limit each of errors and warnings; a strict log raises the first error instead."""

    def __init__(self, path: Path, *, strict: bool, limit: int = 100) -> None:
        self.path = path
        self.strict = strict
        self.limit = limit
        self.errors: list[TraceProblem] = []
        self.warnings: list[TraceProblem] = []
        self.dropped = 0
        """Problems found after the limit was reached."""
        self.file: str | None = None
        """The file being read, of a trace that is a directory."""

    def error(self, line: int, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        problem = TraceProblem(line=line, message=message, field=field, hint=hint, file=self.file)
        if self.strict:
            raise problem.error(self.path)
        self._keep(self.errors, problem)

    def warning(self, line: int, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        problem = TraceProblem(line=line, message=message, field=field, hint=hint, severity="warning", file=self.file)
        self._keep(self.warnings, problem)

    def _keep(self, problems: list[TraceProblem], problem: TraceProblem) -> None:
        if len(problems) < self.limit:
            problems.append(problem)
        else:
            self.dropped += 1
