"""Sources written by tests, and what was made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.errors import InputError
from kvbench.model import Session
from kvbench.traces.context import ContextBuilder
from kvbench.traces.import_report import ImportReport
from kvbench.traces.importing import open_workload, validate_workload


class Imported(NamedTuple):
    sessions: dict[str, Session]
    report: ImportReport

    def sent(self, session: str) -> list[list[dict[str, Any]]]:
        """The messages of each request of a session."""
        builder = ContextBuilder({})
        return [builder.next(turn).messages or [] for turn in self.sessions[session].turns]


def imported(path: Path, format: str | None = None) -> Imported:
    with open_workload(path, format=format) as opened:
        assert opened.imported is not None
        sessions = {session.session_id: session for tree in opened.trees() for session in tree.sessions}
        return Imported(sessions, opened.imported)


def taken_for(path: Path) -> str:
    """The format a source is told to be by its content; what no reader claims is left to the native one."""
    try:
        found = validate_workload(path).imported
    except InputError:
        return "native"
    return "native" if found is None else found.format


def lines(path: Path, *objects: Any) -> Path:
    """One object a line; text as it is."""
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in objects))
    return path


def problems(path: Path) -> list[tuple[int, str | None, str]]:
    """(line, field, message) of each error."""
    return [(error.line, error.field, error.message) for error in validate_workload(path).errors]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
