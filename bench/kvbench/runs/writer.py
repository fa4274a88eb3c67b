"""Write a run directory so that whatever happens to the process, what was measured stays readable.

Rows are handed to the kernel one write() each, so a killed process loses at most a torn last line; a thread syncs them
to disk, so that the event loop never waits for it and a power cut costs about a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from kvbench.errors import FailedError, KvbenchError, UsageError
from kvbench.model import Expectation, Record, RunInfo
from kvbench.runs.blocks import BLOCKS_FILE, BlockRow
from kvbench.runs.lock import LOCK_NAME, lock_run

RUN_FILE = "run.json"
RECORDS_FILE = "records.jsonl"
EVENTS_FILE = "events.jsonl"
TRACE_FILE = "trace.jsonl"
EXPECTATIONS_FILE = "expectations.jsonl"

MEASURING = "measuring"
"""Kind of the event that opens the window of a run whose trees were opened at their start points."""

SYNC_INTERVAL_S = 1.0

_encoder = msgspec.json.Encoder()


class ExpectationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of expectations.jsonl: what one attempt was expected to hit, worked out when the run was over."""

    request_id: str
    attempt: int
    expectation: Expectation


def new_run_id(name: str) -> str:
    """`<utc>-<name>-<6 hex>`; the name keeps only characters that are safe in a file name, so an id is never a path."""
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:48].rstrip("-._") or "run"
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{safe}-{secrets.token_hex(3)}"


def to_json(value: Any) -> bytes:
    """JSON in valid UTF-8. A lone surrogate, which UTF-8 cannot carry, becomes its visible escape (the six characters
    of `\\udXXX`).
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_escape_surrogates(msgspec.to_builtins(value)))


def _escape_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape_surrogates(item) for item in value]
    return value


class _Log:
    """An append-only file that always ends in a complete line, also when the disk does not take the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0
        self._dirty = False

    def append(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data if done == 0 else data[done:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise _failed(self.path, error) from error
        self._size += done
        self._dirty = True

    def sync(self) -> None:
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise _failed(self.path, error) from error

    def close(self) -> None:
        os.close(self._fd)


class RunWriter:
    """The only writer of one run directory. Every method may raise FailedError (disk full, lost file system): what was
    written before stays a valid run, shown as INCOMPLETE.
    """

    def __init__(self, path: Path, info: RunInfo, lock_fd: int) -> None:
        """Use `create`."""
        self.dir = path
        self.info = info
        self._lock_fd = lock_fd
        self._logs: dict[str, _Log] = {}
        self._failure: KvbenchError | None = None
        self._closing = threading.Event()
        self._syncer: threading.Thread | None = None

    @classmethod
    def create(cls, out_dir: Path, info: RunInfo) -> Self:
        """A new directory under `out_dir` (made when missing), locked, with run.json and empty row files in it.

        An empty `info.run_id` gets one from `new_run_id(info.name)`; `.info` holds it. Never overwrites: UsageError
        when the directory exists, when `out_dir` is a file, or when the id is not a plain name.
        """
        if not info.run_id:
            info = msgspec.structs.replace(info, run_id=new_run_id(info.name))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", info.run_id):
            raise UsageError(
                f"run id {info.run_id!r}: letters, digits, '.', '_' and '-' are allowed",
                hint="leave the id empty to get one made from the trace's name",
            )
        path = out_dir / info.run_id
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except (FileExistsError, NotADirectoryError):
            what = path if out_dir.is_dir() else out_dir
            raise UsageError(
                f"{what}: exists already, and a run never overwrites anything",
                hint="name another directory with --out DIR",
            ) from None
        except OSError as error:
            raise _failed(path, error) from error
        try:
            lock_fd = lock_run(path)
        except OSError as error:
            raise _failed(path / LOCK_NAME, error) from error
        writer = cls(path, info, lock_fd)
        try:
            writer._open()
        except KvbenchError:
            writer.close()
            raise
        return writer

    def _open(self) -> None:
        for name in (RECORDS_FILE, EVENTS_FILE, TRACE_FILE):
            self._log(name)
        self.update(self.info)
        self._syncer = threading.Thread(target=self._sync_until_closed, name="kvbench-run-sync", daemon=True)
        self._syncer.start()

    def record(self, record: Record) -> None:
        """Append one record, one write(). Expectations come later, by `expectation`."""
        self._append(RECORDS_FILE, to_json(record) + b"\n")

    def event(self, kind: str, at_ns: int | None, **data: Any) -> None:
        """Append `{"kind", "at_ns", **data}`; at_ns on the run's clock, None for what has no moment."""
        self._append(EVENTS_FILE, to_json({"kind": kind, "at_ns": at_ns, **data}) + b"\n")

    def trace_lines(self, lines: bytes) -> None:
        """Append raw lines of the trace as they were resolved; a missing last newline is added."""
        if lines:
            self._append(TRACE_FILE, lines if lines.endswith(b"\n") else lines + b"\n")

    def expectation(self, request_id: str, attempt: int, expectation: Expectation) -> None:
        """Append what an attempt was expected to hit; readers join it to the record by request_id and attempt."""
        row = ExpectationRow(request_id=request_id, attempt=attempt, expectation=expectation)
        self._append(EXPECTATIONS_FILE, to_json(row) + b"\n")

    def blocks(self, row: BlockRow) -> None:
        """Append the blocks of one request, in the order of sending."""
        self._append(BLOCKS_FILE, to_json(row) + b"\n")

    def update(self, info: RunInfo) -> None:
        """Replace run.json as a whole: written beside it, synced, then renamed over it."""
        info = msgspec.structs.replace(info, run_id=self.info.run_id)
        target = self.dir / RUN_FILE
        beside = self.dir / (RUN_FILE + ".tmp")
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            with open(fd, "wb") as file:
                file.write(msgspec.json.format(to_json(info), indent=2) + b"\n")
                file.flush()
                os.fsync(fd)
            beside.rename(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise _failed(target, error) from error
        self.info = info

    def close(self) -> None:
        """Sync, close and unlock; may be called again. Does not change run.json."""
        self._closing.set()
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
        logs, self._logs = self._logs, {}
        try:
            for log in logs.values():
                log.sync()
        finally:
            for log in logs.values():
                log.close()
            if self._lock_fd >= 0:
                with contextlib.suppress(OSError):
                    (self.dir / LOCK_NAME).unlink()
                os.close(self._lock_fd)
                self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _log(self, name: str) -> _Log:
        log = self._logs.get(name)
        if log is None:
            path = self.dir / name
            try:
                log = self._logs[name] = _Log(path)
            except OSError as error:
                raise _failed(path, error) from error
        return log

    def _append(self, name: str, data: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._log(name).append(data)
        except KvbenchError as error:
            self._failure = error
            raise

    def _sync_until_closed(self) -> None:
        while not self._closing.wait(SYNC_INTERVAL_S):
            for log in tuple(self._logs.values()):
                try:
                    log.sync()
                except KvbenchError as error:
                    self._failure = error
                    return


def _failed(path: Path, error: OSError) -> FailedError:
    return FailedError(
        f"{path}: cannot write: {error.strerror or error}",
        hint="what was written before is kept; make room or mend the disk, or name another place with --out DIR",
    )
