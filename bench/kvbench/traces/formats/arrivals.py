"""CSV logs of arrivals and lengths, one request a row: what their readers share.

Nothing in them says which prompts share a beginning, so each prompt is made of blocks that no other has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from itertools import count

import msgspec

from kvbench.errors import InputError
from kvbench.model import Recorded, Turn
from kvbench.traces.formats.base import Import
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import MAX_TIME_S, LineError

BLOCK_SIZE = 512
TICKS = 10_000_000
"""Times are kept in whole 100 ns: the finest that the logs give, and exact in any order of subtraction."""

MAX_TOKENS = 2**31 - 1

NOTES = {
    "out_of_order": "rows earlier than the row before: {n} (arrivals follow the timestamps; --sessions and --rate "
    "follow the file)",
    "zero_input": "rows without input tokens: {n}",
}


class Columns(msgspec.Struct, frozen=True):
    """Which columns a log has, by their names in its header; the optional ones may be missing from it.

    ticks: what a cell of `time` says, in 100 ns from any fixed moment; raises ValueError. failed: whether a row without
    output tokens is a request that failed. session: rows of one value are one conversation, in the order of the file.
    """

    time: str
    input_tokens: str
    output_tokens: str
    ticks: Callable[[str], int]
    time_form: str
    model: str | None = None
    session: str | None = None
    elapsed_s: str | None = None
    kept: tuple[str, ...] = ()
    failed: bool = False

    def match(self, head: Head) -> bool:
        """Whether the first line of a file names the columns that no row can do without."""
        first = head.text.partition(b"\n")[0].decode("utf-8", "replace")
        return {self.time, self.input_tokens, self.output_tokens} <= {cell.strip(' "\r') for cell in first.split(",")}


class _Row(msgspec.Struct):
    line: int
    ticks: int
    input_tokens: int
    output_tokens: int
    model: str | None
    session: str | None
    elapsed_s: float | None
    kept: dict[str, str]


class _Conversation(msgspec.Struct):
    name: str
    turns: int
    start_ticks: int
    end_ticks: int
    model: str | None


class ArrivalsConverter:
    """Rows of one or several files of one format, which count time from the earliest of all rows."""

    def __init__(self, target: Import, columns: Columns) -> None:
        self._import = target
        self._sink = target.sink
        self._columns = columns
        self._files: list[SourceFile] = []
        self._base: int | None = None
        self._begin()

    def file(self, file: SourceFile) -> None:
        self._files.append(file)
        if self._convert(file):
            return
        rows = (row for each in self._files for row in self._rows(each, quiet=True))
        self._base = min(row.ticks for row in rows)
        self._import.restart()
        self._begin()
        for each in self._files:
            if self._import.directory:
                self._import.log.file = str(each.path)
            self._convert(each)

    def end(self) -> None:
        done = self._import
        done.block_size, done.block_size_from = BLOCK_SIZE, "chosen here; the source has no blocks"
        done.facts["prefixes"] = (
            "the source has arrivals and lengths alone. Every prompt is made of blocks that no other has, so nothing "
            "is ever hit: a hit rate on this trace says nothing about the traffic it is from"
        )
        if self._base is not None:
            done.facts["time base"] = "seconds from the earliest row"
        if self._conversations:
            done.facts["conversations"] = (
                f"rows of one {self._columns.session} follow each other in the file's order ({self._linked:,} of them "
                "follow another); how much of its conversation a prompt repeats is not said, so none of it is"
            )

    def _begin(self) -> None:
        self._import.units = 0
        self._ids = count(1)
        self._last: int | None = None
        self._conversations: dict[str, _Conversation] = {}
        self._linked = 0
        self._sink.header(msgspec.structs.replace(self._import.header, block_size=BLOCK_SIZE, prefixes="unknown"))

    def _convert(self, file: SourceFile) -> bool:
        """All rows of a file. False, at the first that is earlier than the time base."""
        for row in self._rows(file):
            if self._base is None:
                self._base = row.ticks
            if row.ticks < self._base:
                return False
            self._import.units += 1
            self._sink.notes["out_of_order"] += self._last is not None and row.ticks < self._last
            self._last = row.ticks
            if row.output_tokens == 0 and self._columns.failed:
                tokens = f"{row.input_tokens:,} input tokens"
                self._import.drop("failed", row.line, f"no output tokens: a request that failed ({tokens})")
            elif row.input_tokens == 0:
                self._import.drop("zero_input", row.line, "no input tokens: nothing that could be sent")
            else:
                self._turn(row, self._base)
        return True

    def _turn(self, row: _Row, base: int) -> None:
        before = None if row.session is None else self._conversations.get(row.session)
        if before is None:
            name, number, delay_s, start_s = row.session or f"row{row.line}", 0, 0.0, (row.ticks - base) / TICKS
            name = self._sink.name(name)
            if start_s > MAX_TIME_S:
                raise InputError(
                    "more than 31 years after the earliest row",
                    path=self._import.log.file or self._import.log.path,
                    line=row.line,
                    field=self._columns.time,
                    hint="is its unit seconds?",
                )
        else:
            name, number, start_s = before.name, before.turns, None
            gap = row.ticks - before.end_ticks
            delay_s = max(gap, 0) / TICKS
            self._sink.notes["clipped_pauses"] += gap < 0
            self._linked += 1
        self._sink.notes["zero_output"] += row.output_tokens == 0
        begin = row.ticks if before is None else before.start_ticks
        recorded = None
        if row.session is not None:
            recorded = Recorded(at_s=max(row.ticks - begin, 0) / TICKS, e2e_s=row.elapsed_s)
        elif row.elapsed_s is not None:
            recorded = Recorded(e2e_s=row.elapsed_s)
        self._sink.turn(
            Turn(
                session_id=name,
                turn=number,
                line=row.line,
                start_s=start_s,
                delay_s=delay_s,
                input_tokens=row.input_tokens,
                output_tokens=max(row.output_tokens, 1),
                hash_ids=tuple(next(self._ids) for _ in range(-(-row.input_tokens // BLOCK_SIZE))),
                model=row.model if before is None or row.model != before.model else None,
                recorded=recorded,
                extra=dict(row.kept),
            )
        )
        if row.session is not None:
            end = row.ticks + round((row.elapsed_s or 0.0) * TICKS)
            self._conversations[row.session] = _Conversation(name, number + 1, begin, end, row.model)

    def _rows(self, file: SourceFile, *, quiet: bool = False) -> Iterator[_Row]:
        """The rows that can be read; the others are errors, unless `quiet`."""
        reader: _Reader | None = None
        for line, cells in file.rows():
            try:
                if reader is None:
                    reader = _Reader(self._columns, cells)
                else:
                    yield reader.row(line, cells)
            except LineError as error:
                if reader is None:
                    raise InputError(error.message, path=file.path, line=line, hint=error.hint) from None
                if not quiet:
                    self._import.error(line, error)


class _Reader:
    """Cells to values, by the names in a file's own header."""

    def __init__(self, columns: Columns, header: list[str]) -> None:
        names = [name.strip() for name in header]
        self._columns = columns
        self._width = len(names)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise LineError(f'column "{twice}" is there twice')
        needed = (columns.time, columns.input_tokens, columns.output_tokens)
        missing = [name for name in needed if name not in names]
        if missing:
            raise LineError(
                f"no column {', '.join(missing)}; the header is {','.join(names)[:200]}",
                hint=f"the first line names the columns: {', '.join(needed)} and what else there is",
            )
        self._at = {name: index for index, name in enumerate(names)}
        self._model = self._index(columns.model)
        self._session = self._index(columns.session)
        self._elapsed = self._index(columns.elapsed_s)
        self._kept = [(name, self._at[name]) for name in columns.kept if name in self._at]

    def row(self, line: int, cells: list[str]) -> _Row:
        """Raises LineError naming the column."""
        if len(cells) != self._width:
            raise LineError(
                f"{len(cells)} cells, where the header names {self._width} columns",
                hint="was the file cut off? copy it again, or delete the line",
            )
        columns = self._columns
        return _Row(
            line=line,
            ticks=self._ticks(cells[self._at[columns.time]]),
            input_tokens=_tokens(cells[self._at[columns.input_tokens]], columns.input_tokens),
            output_tokens=_tokens(cells[self._at[columns.output_tokens]], columns.output_tokens),
            model=_text(cells, self._model),
            session=_text(cells, self._session),
            elapsed_s=self._seconds(cells),
            kept={name: cells[index] for name, index in self._kept if cells[index]},
        )

    def _index(self, name: str | None) -> int | None:
        return None if name is None else self._at.get(name)

    def _ticks(self, cell: str) -> int:
        try:
            return self._columns.ticks(cell.strip())
        except (ValueError, ArithmeticError):
            raise LineError(f'"{cell[:40]}" is no time; {self._columns.time_form}', field=self._columns.time) from None

    def _seconds(self, cells: list[str]) -> float | None:
        text = _text(cells, self._elapsed)
        if text is None:
            return None
        try:
            ticks = decimal_ticks(text)
        except ValueError:
            ticks = -1
        if not 0 <= ticks <= MAX_TIME_S * TICKS:
            raise LineError(f'"{text[:40]}" is no number of seconds', field=self._columns.elapsed_s)
        return ticks / TICKS


def decimal_ticks(text: str) -> int:
    """Decimal seconds in whole 100 ns. Raises ValueError for what is no finite number."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not value.is_finite() or abs(value) > Decimal(10) ** 12:
        raise ValueError(text)
    return int((value * TICKS).to_integral_value())


def _tokens(cell: str, column: str) -> int:
    text = cell.strip()
    if not (text.isascii() and text.isdigit()):
        whole, _, fraction = text.partition(".")
        if not (whole.isascii() and whole.isdigit() and fraction and not fraction.strip("0")):
            raise LineError(f'"{cell[:40]}" is no number of tokens; a whole number from 0', field=column)
        text = whole
    if len(text) > 10 or int(text) > MAX_TOKENS:
        raise LineError(f"{text[:40]} tokens; at most {MAX_TOKENS}", field=column)
    return int(text)


def _text(cells: list[str], index: int | None) -> str | None:
    return None if index is None else cells[index].strip() or None
