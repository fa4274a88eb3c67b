"""What a format is to the importer: how it is told by its content, and what makes native lines of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kvbench.model import TraceHeader
from kvbench.traces.formats.sink import NativeSink
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.weka_times import NestedT
from kvbench.traces.lines import LineError, decode_object, repair_surrogates
from kvbench.traces.problems import ProblemLog


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may say about a source. nested_t: what times inside a Weka sub-agent count from."""

    nested_t: NestedT = "auto"


@dataclass
class Import:
    """One source on its way to native lines: what its converter reads with, writes to and reports in."""

    sink: NativeSink
    log: ProblemLog
    header: TraceHeader
    """Its name and source; a converter adds the block size and writes it before its first turn."""
    options: ImportOptions
    directory: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    """What holds for the whole source, for the report: the time base, the scope of ids, the tokenizer."""
    nested_t: dict[str, int] = field(default_factory=dict)
    marker: dict[str, int] = field(default_factory=dict)
    resources: ExitStack = field(default_factory=ExitStack)
    """Closed when the import has ended, however it ended: temporary files of a converter."""
    block_size: int | None = None
    block_size_from: str = ""
    units: int = 0

    def objects(self, file: SourceFile, *, drop: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line, object) of each JSON value of `file`; halves of surrogate pairs become U+FFFD, counted.

        What is no object is an error; with `drop` it is left out under that code instead.
        """
        for line, raw in file.values():
            try:
                yield line, self._object(raw)
            except LineError as error:
                if drop is not None:
                    self.drop(drop, line, error.message)
                else:
                    self.error(line, error)

    def error(self, line: int, error: LineError) -> None:
        self.log.error(line, error.message, field=error.field, hint=error.hint)

    def drop(self, code: str, line: int, reason: str) -> None:
        """Leave something out, in the open: `code` has a sentence in the format's NOTES."""
        self.sink.drop(code, line, reason, self.log.file)

    def restart(self) -> None:
        """Forget everything written and found so far, to convert the source anew."""
        self.sink.restart()
        self.log.errors.clear()
        self.log.warnings.clear()
        self.log.dropped = 0

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            return decode_object(raw)
        except LineError:
            repaired, count = repair_surrogates(raw)
            if not count:
                raise
            obj = decode_object(repaired)
            self.sink.notes["surrogates"] += count
            return obj


class Converter(Protocol):
    """Made for one import; `file` is called for each of its files in order, `end` once after the last.

    A mistake of the source is told through the import's `error` (file and line); nothing is left out in silence.
    """

    def file(self, file: SourceFile) -> None: ...
    def end(self) -> None: ...


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which traces or logs are published. unit: what its files consist of, in the singular.

    matches: whether a file that begins so is one; formats are asked in their order. notes: the sentence of each code
    under which its converter counts what it rebuilt, guessed or left out; {n} is the count. A sentence of something
    left out begins with what it is ("rows without tokens: {n}").
    """

    name: str
    about: str
    unit: str
    matches: Callable[[Head], bool]
    converter: Callable[[Import], Converter]
    notes: dict[str, str] = {}
