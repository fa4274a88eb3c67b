"""Where readers of other formats put what they made: native lines in a temporary file, with the source line of each."""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from kvbench.errors import FailedError
from kvbench.model import SharedPrompt, TraceHeader, Turn
from kvbench.traces.import_report import Dropped
from kvbench.traces.prefix.marks import MarkedPrompt
from kvbench.traces.problems import ProblemLog
from kvbench.traces.write import header_line, prefix_line, turn_fields

SHOWN_DROPPED = 20
"""How many of the things left out are named one by one; all are counted."""

_encode = msgspec.json.Encoder().encode


class LoggedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says of one call's usage, whether or not the call can be replayed. Times are Unix seconds.

    usage: as it was logged, or in OpenAI's shape where the source's own is none that an API sends. output_most: where
    its output count is a placeholder from the stream's start, the most tokens that the answer's text can be.
    """

    line: int
    file: str | None
    model: str | None
    usage: dict[str, Any] | None
    start_s: float | None = None
    end_s: float | None = None
    output_most: int | None = None
    marked: MarkedPrompt | None = None
    """Its content blocks and cache_control marks, where the source has the prompt as it was sent."""


class NativeSink:
    """Native lines, written as they are made. `stream` has no name on disk: it is gone when it is closed."""

    def __init__(self) -> None:
        self.calls: list[LoggedUsage] | None = None
        """A list, where somebody asks for the usage of the source's calls too."""
        try:
            self.stream = cast(BinaryIO, tempfile.TemporaryFile(buffering=1 << 20))  # noqa: SIM115
        except OSError as error:
            raise temporary_file_failed(error) from error
        self.source_lines = array("I")
        """Line of the source (0: none) for each native line."""
        self.notes: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.dropped_lines: list[Dropped] = []
        self.names: set[str] = set()
        self.turns = 0
        self.sub_agents = 0

    def header(self, header: TraceHeader) -> None:
        self._write(header_line(header), 0)

    def prompt(self, prompt: SharedPrompt, line: int) -> None:
        """A shared prompt, before the first turn that names it; `line` of the source."""
        self._write(prefix_line(prompt), line)

    def raw(self, native: bytes, line: int) -> None:
        """A line that is a native one already; whether it is right, reading it again will say."""
        self._write(native if native.endswith(b"\n") else native + b"\n", line)
        self.turns += 1

    def turn(self, turn: Turn) -> None:
        """turn.line is the line of the source."""
        fields: dict[str, Any] = turn_fields(turn)
        self._write(_encode(fields) + b"\n", turn.line)
        self.turns += 1

    def name(self, wanted: str) -> str:
        """`wanted`, or where it is taken the next free name made from it."""
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}-{number}"
        self.notes["renamed"] += number > 1
        self.names.add(name)
        return name

    def used(self, call: LoggedUsage) -> None:
        """A call that a provider bills, as the source tells of it."""
        if self.calls is not None:
            self.calls.append(call)

    def drop(self, code: str, line: int, reason: str, file: str | None = None) -> None:
        """Something of the source is left out: counted under `code`, and named while there is room."""
        self.dropped[code] += 1
        if len(self.dropped_lines) < SHOWN_DROPPED:
            self.dropped_lines.append(Dropped(line=line, reason=reason, file=file))

    def restart(self) -> None:
        """Forget everything written."""
        self.stream.seek(0)
        self.stream.truncate()
        del self.source_lines[:]
        self.notes.clear()
        self.dropped.clear()
        del self.dropped_lines[:]
        self.names.clear()
        self.turns = self.sub_agents = 0

    def finish(self) -> None:
        try:
            self.stream.flush()
            self.stream.seek(0)
        except OSError as error:
            raise temporary_file_failed(error) from error

    def _write(self, line: bytes, source_line: int) -> None:
        try:
            self.stream.write(line)
        except OSError as error:
            raise temporary_file_failed(error) from error
        self.source_lines.append(source_line)


class SourceLog(ProblemLog):
    """Problems found in native lines, told of the lines they come from."""

    def __init__(self, path: Path, lines: array[int], *, strict: bool, limit: int = 100) -> None:
        super().__init__(path, strict=strict, limit=limit)
        self._lines = lines

    def error(self, line: int, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().error(self._source(line), message, field=field, hint=hint)

    def warning(self, line: int, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().warning(self._source(line), message, field=field, hint=hint)

    def _source(self, line: int) -> int:
        return self._lines[line - 1] if 0 < line <= len(self._lines) else 0


def shared_blocks(before: Sequence[int], now: Sequence[int]) -> int:
    """How many leading ids two lists share. Slices are compared whole, so a long shared prefix costs one memcmp-like
    pass and no Python step an id."""
    high = min(len(before), len(now))
    if before[:high] == now[:high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if before[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle
    return low


def temporary_file_failed(error: OSError) -> FailedError:
    """A full disk, or no directory to write in."""
    return FailedError(
        f"a temporary file for the converted trace cannot be written: {error.strerror or error}",
        hint="make room, or name another directory by TMPDIR",
    )
