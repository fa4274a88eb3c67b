"""Native traces (workloads/README.md): checked once as a whole, then read a tree at a time, when it is due."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, overload

import msgspec

from kvbench.errors import InputError
from kvbench.model import Session, SharedPrompt, TraceHeader, Tree, Turn
from kvbench.traces.import_report import ImportReport
from kvbench.traces.index import Repairs, TraceIndex, index_trace
from kvbench.traces.lines import MAX_LINE_BYTES, LineError, decode_repaired
from kvbench.traces.problems import ProblemLog, TraceProblem

_BUFFER_BYTES = 1 << 20


class TreeEntry(msgspec.Struct, frozen=True):
    """What is known of a tree before it is read. start_s is trace time; sessions and turns are counts."""

    root_id: str
    start_s: float
    sessions: int
    turns: int


class TreeEntries(Sequence[TreeEntry]):
    """The trees of a trace in file order, as a view: an entry is made when it is asked for."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index.root_ids)

    @overload
    def __getitem__(self, i: int) -> TreeEntry: ...
    @overload
    def __getitem__(self, i: slice) -> list[TreeEntry]: ...
    def __getitem__(self, i: int | slice) -> TreeEntry | list[TreeEntry]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        index = self._index
        turns = index.starts[i + 1] - index.starts[i]
        return TreeEntry(index.root_ids[i], index.start_s[i], index.session_counts[i], turns)


class TraceFile:
    """An opened, checked trace. Trees are read from disk on demand; close() it, or use it in a `with`.

    One of another format (importing.py) is read from native lines made of it; path, sha256, size and line numbers are
    those of the source.
    """

    def __init__(
        self,
        path: Path,
        stream: BinaryIO,
        index: TraceIndex,
        warnings: Sequence[TraceProblem],
        *,
        imported: ImportReport | None = None,
        source_lines: Sequence[int] | None = None,
    ) -> None:
        self.path = path
        self.warnings = tuple(warnings)
        """Doubts that do not stop a run."""
        self.imported = imported
        """How a trace of another format became this one; None for a native one."""
        self._source_lines = source_lines
        self._stream = stream
        self._index = index
        self._state = _file_state(stream)

    @property
    def header(self) -> TraceHeader:
        return self._index.header

    @property
    def prefixes(self) -> dict[str, SharedPrompt]:
        """Shared prompts by name."""
        return self._index.prefixes

    @property
    def sha256(self) -> str:
        """Of the file's bytes, in hex."""
        return self._index.sha256

    @property
    def size_bytes(self) -> int:
        return self._index.size_bytes

    @property
    def repairs(self) -> Repairs:
        """What reading put right by itself, counted."""
        return self._index.repairs

    @property
    def tree_count(self) -> int:
        return len(self._index.root_ids)

    @property
    def session_count(self) -> int:
        return sum(self._index.session_counts)

    @property
    def turn_count(self) -> int:
        return self._index.turn_count

    @property
    def has_hash_ids(self) -> bool:
        """Some session has no text, only the ids of its blocks."""
        return self._index.has_hash_ids

    @property
    def models(self) -> dict[str, int]:
        """Every model that the turns name, and the line (of the source) that first does."""
        lines = self._source_lines
        return {name: number if lines is None else lines[number - 1] for name, number in self._index.models.items()}

    @property
    def tree_entries(self) -> TreeEntries:
        return TreeEntries(self._index)

    def read_tree(self, i: int) -> Tree:
        """Tree i of tree_entries: the root session first, then its descendants in file order.

        Raises InputError if the file changed since it was opened.
        """
        lines = self._source_lines
        turns: dict[str, list[Turn]] = {self._index.root_ids[i]: []}
        for number, raw in self._lines_of(i):
            try:
                item, _ = decode_repaired(raw, number if lines is None else lines[number - 1])
            except LineError as error:
                raise self._changed(number) from error
            if not isinstance(item, Turn):
                raise self._changed(number)
            turns.setdefault(item.session_id, []).append(item)
        sessions = tuple(Session(session_id=name, turns=tuple(group)) for name, group in turns.items())
        return Tree(root_id=self._index.root_ids[i], start_s=self._index.start_s[i], sessions=sessions)

    def trees(self) -> Iterator[Tree]:
        """All trees in file order, one in memory at a time."""
        return (self.read_tree(i) for i in range(self.tree_count))

    def raw_lines(self, i: int) -> list[bytes]:
        """The lines of tree i as they are in the file, in file order, each ending in one newline."""
        return [_whole(raw) for _, raw in self._lines_of(i)]

    def raw_head(self) -> list[bytes]:
        """The header line and the shared prompts, as they are in the file: with raw_lines, a trace again."""
        self._check_unchanged()
        return [_whole(self._line_at(offset)) for offset in self._index.head_offsets]

    def fileno(self) -> int:
        """Of the native lines: the file itself, or what was made of one of another format."""
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lines_of(self, i: int) -> Iterator[tuple[int, bytes]]:
        self._check_unchanged()
        index = self._index
        for at in range(index.starts[i], index.starts[i + 1]):
            yield index.numbers[at], self._line_at(index.offsets[at])

    def _line_at(self, offset: int) -> bytes:
        self._stream.seek(offset)
        return self._stream.readline(MAX_LINE_BYTES + 1)

    def _check_unchanged(self) -> None:
        if _file_state(self._stream) != self._state:
            raise self._changed(None)

    def _changed(self, line: int | None) -> InputError:
        return InputError("the file changed while it was in use", path=self.path, line=line, hint="run again")


def open_trace(path: str | Path) -> TraceFile:
    """Read and check a native trace in one streaming pass. Raises the first InputError it meets (file and line)."""
    path = Path(path)
    stream = open_file(path)
    try:
        log = ProblemLog(path, strict=True)
        return TraceFile(path, stream, index_trace(stream, path, log), log.warnings)
    except BaseException:
        stream.close()
        raise


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What `validate_trace` found; the trace can be run if there are no errors."""

    path: Path
    errors: tuple[TraceProblem, ...]
    warnings: tuple[TraceProblem, ...]
    dropped: int
    """Problems beyond the limit, counted only."""
    repairs: Repairs
    sessions: int
    turns: int
    imported: ImportReport | None = None


def validate_trace(path: str | Path, *, limit: int = 100) -> Validation:
    """All problems of a native trace, up to `limit` errors and as many warnings.

    Raises InputError if it cannot be read.
    """
    path = Path(path)
    log = ProblemLog(path, strict=False, limit=limit)
    with open_file(path) as stream:
        try:
            index = index_trace(stream, path, log)
        except InputError as error:
            if error.line is None:
                raise
            index = TraceIndex()
            message = str(error).removeprefix(f"{path}:{error.line}: ").removeprefix(f"{error.field}: ")
            log.error(error.line, message, field=error.field, hint=error.hint)
    return validation(path, log, index)


def validation(path: Path, log: ProblemLog, index: TraceIndex, imported: ImportReport | None = None) -> Validation:
    """What `log` collected while `index` was made."""
    return Validation(
        path=path,
        errors=tuple(sorted(log.errors, key=lambda problem: (problem.file or "", problem.line))),
        warnings=tuple(log.warnings),
        dropped=log.dropped,
        repairs=index.repairs,
        sessions=sum(index.session_counts),
        turns=index.turn_count,
        imported=imported,
    )


def open_file(path: Path) -> BinaryIO:
    """A regular file, to be read more than once. Raises InputError."""
    try:
        stream = path.open("rb", buffering=_BUFFER_BYTES)
    except FileNotFoundError:
        raise InputError("no such file", path=path, hint="name a trace file, or a bundled workload") from None
    except IsADirectoryError:
        raise InputError("a directory, not a trace file", path=path) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", path=path) from None
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise InputError(
            "not a regular file; a trace is read more than once", path=path, hint="save it to a file first"
        )
    return stream


def _file_state(stream: BinaryIO) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def _whole(raw: bytes) -> bytes:
    return raw.rstrip(b"\r\n") + b"\n"
