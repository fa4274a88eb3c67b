"""Errors that a user can cause. Every message says what is wrong, where, what is allowed, and what to do next.

    KvbenchError                exit 2, unless a child says otherwise
    ├── UsageError              exit 2   an option or a combination of options
    ├── InputError              exit 2   a file: names file and line
    ├── ConfigError             exit 2   endpoint, key, model or profile found wrong before the first measured turn
    ├── RefusedError            exit 3   the data or the setting does not allow an answer
    └── FailedError             exit 4   could not be done: endpoint unreachable, disk full, worker lost

Anything else that escapes is a defect of kvbench and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_FAILED = 4
EXIT_INTERRUPTED = 130


class KvbenchError(Exception):
    """Base of all errors a user can cause; `hint` is the next thing to do, printed on a line of its own."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvbenchError):
    """An option, or a combination of options, that cannot be meant."""


class InputError(KvbenchError):
    """A file that cannot be used. `path`, `line` (from 1) and `field` say where."""

    def __init__(
        self,
        message: str,
        *,
        path: Path | str | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        where = "" if path is None else str(path) if line is None else f"{path}:{line}"
        if field is not None:
            where = f"{where}: {field}" if where else field
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.path = path
        self.line = line
        self.field = field


class ConfigError(KvbenchError):
    """Endpoint, key, model or profile found wrong before the first measured turn."""


class RefusedError(KvbenchError):
    """The data, or the setting, does not allow an answer that would be right."""

    exit_code = EXIT_INCONCLUSIVE


class FailedError(KvbenchError):
    """The work could not be done: endpoint unreachable, disk full, worker lost."""

    exit_code = EXIT_FAILED
