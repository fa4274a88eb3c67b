"""Read a run directory back: the same rows, whatever happened to its writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvbench.errors import InputError
from kvbench.model import RUN_SCHEMA_VERSION, Expectation, Record, RunInfo, Warning
from kvbench.runs.lock import is_locked
from kvbench.runs.writer import EVENTS_FILE, EXPECTATIONS_FILE, RECORDS_FILE, RUN_FILE, ExpectationRow

RUNS_DIR = Path("runs")

_T = TypeVar("_T")
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run, complete or not; records in the order in which they ended, with their expectations."""

    info: RunInfo
    records: list[Record]
    events: list[dict[str, Any]]
    warnings: list[Warning]
    path: Path


class _Version(msgspec.Struct):
    schema_version: int


def resolve_run(run: str, base: Path = RUNS_DIR) -> Path:
    """The directory meant by a command's RUN: a path to it (or to a file in it), else an id under `base`."""
    given = Path(run)
    for path in (given, base / run):
        if path.is_dir():
            return path
        if path.is_file() and (path.parent / RUN_FILE).is_file():
            return path.parent
    raise InputError(
        f"no run directory, and no run of this id in {base}/", path=run, hint="kvbench runs   lists the runs there are"
    )


def load_info(path: Path) -> RunInfo:
    """run.json of a run directory; InputError when it is missing, broken, or of a newer kvbench."""
    file = path / RUN_FILE
    data = _read(file, "not a run directory: it has no run.json", "name a directory that kvbench run has made")
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if 1 <= version <= RUN_SCHEMA_VERSION:
            return msgspec.json.decode(data, type=RunInfo)
    except _UNREADABLE as error:
        raise InputError(f"not a run description: {error}", path=file) from None
    raise InputError(
        f"version {version}; this kvbench reads 1 to {RUN_SCHEMA_VERSION}",
        path=file,
        field="schema_version",
        hint="use the kvbench that made the run, or a newer one",
    )


def load_run(path: Path | str) -> Run:
    """A whole run. A torn last line is dropped with a warning; a line broken anywhere else is an InputError that names
    file and line. Expectations are joined into their records.
    """
    path = Path(path)
    info = load_info(path)
    warnings: list[Warning] = []
    records_file = path / RECORDS_FILE
    if not records_file.is_file():
        raise InputError("the run has lost its records", path=records_file, hint="the run cannot be used without them")
    records = list(_rows(records_file, Record, warnings))
    events = list(_rows(path / EVENTS_FILE, dict[str, Any], warnings))
    expected = {
        (row.request_id, row.attempt): row.expectation
        for row in _rows(path / EXPECTATIONS_FILE, ExpectationRow, warnings)
    }
    return Run(info=info, records=_joined(records, expected), events=events, warnings=warnings, path=path)


def status_text(info: RunInfo, path: Path) -> str:
    """`done`, `running` while its writer lives, else INCOMPLETE with the reason."""
    if info.status == "done":
        return "done"
    if info.status == "started":
        return "running" if is_locked(path) else "INCOMPLETE (its kvbench ended without a word)"
    return f"INCOMPLETE ({info.status})"


def _joined(records: list[Record], expected: dict[tuple[str, int], Expectation]) -> list[Record]:
    if not expected:
        return records
    return [
        msgspec.structs.replace(record, expectation=expectation)
        if (expectation := expected.get((record.request_id, record.attempt))) is not None
        else record
        for record in records
    ]


def _read(file: Path, missing: str, hint: str) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(missing, path=file.parent, hint=hint) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=file) from None


def _rows(file: Path, row_type: type[_T], warnings: list[Warning]) -> Iterator[_T]:
    """The rows of a JSONL file; none when it does not exist."""
    decoder = msgspec.json.Decoder(row_type)
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=file) from None
    with lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = decoder.decode(line)
            except _UNREADABLE as error:
                # Only a write that was cut short leaves a line without its newline.
                if line.endswith(b"\n"):
                    raise InputError(
                        f"broken row: {error}", path=file, line=number, hint="take the line out to read the rest"
                    ) from None
                warnings.append(_torn(file, number))
                return
            yield row


def _torn(file: Path, number: int) -> Warning:
    return Warning(
        code="torn_line",
        message=f"{file.name}:{number}: the last row was cut short when its writer died; it is left out",
        advice="the rows before it are whole; run again if the run has to be complete",
    )
