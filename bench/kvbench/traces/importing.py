"""Open a workload whatever published format it is in: native, Weka / kv-cache-tester, Mooncake.

Other formats are converted, one object in memory at a time, to native lines in an unnamed temporary file, and read from
there. What is wrong is told of the source: file, line, request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from kvbench.errors import InputError
from kvbench.model import TraceHeader
from kvbench.traces.foreign import NativeSink, SourceLog
from kvbench.traces.import_report import ImportReport
from kvbench.traces.index import TraceIndex, index_trace
from kvbench.traces.lines import LineError, decode_object, repair_surrogates
from kvbench.traces.mooncake import DEFAULT_BLOCK_SIZE, BlocksDoNotFitError, MooncakeConverter, fitting_block_size
from kvbench.traces.native import TraceFile, Validation, open_file, open_trace, validate_trace, validation
from kvbench.traces.problems import ProblemLog
from kvbench.traces.weka import WekaConverter
from kvbench.traces.weka_times import NestedT

MAX_OBJECT_BYTES = 512 * 2**20
"""A trace, or a row, is held in memory whole; decoded it takes several times its text."""

_SNIFF_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_SUFFIXES = (".json", ".jsonl")

Format = Literal["native", "weka", "mooncake"]


def open_workload(path: str | Path, *, nested_t: NestedT = "auto") -> TraceFile:
    """A trace of any format this kvbench reads; a directory is one of Weka files. `imported` tells of a conversion.

    nested_t: what times inside a Weka sub-agent count from. Raises InputError naming the source's file and line.
    """
    path = Path(path)
    if sniff(path) == "native":
        return open_trace(path)
    with_source = _Import(path, nested_t, strict=True)
    try:
        index = with_source.run()
        return TraceFile(
            path,
            with_source.sink.stream,
            index,
            with_source.log.warnings,
            imported=with_source.report(index),
            source_lines=with_source.sink.source_lines,
        )
    except BaseException:
        with_source.sink.stream.close()
        raise


def validate_workload(path: str | Path, *, nested_t: NestedT = "auto", limit: int = 100) -> Validation:
    """All problems of a trace of any format. Raises InputError if it cannot be read."""
    path = Path(path)
    if sniff(path) == "native":
        return validate_trace(path, limit=limit)
    with_source = _Import(path, nested_t, strict=False, limit=limit)
    with with_source.sink.stream:
        index = with_source.run()
        return validation(path, with_source.log, index, with_source.report(index))


def sniff(path: Path) -> Format:
    """The format by content; what is none of the others is left to the native reader, which says what is wrong."""
    if path.is_dir():
        return "weka"
    with open_file(path) as stream:
        head = stream.read(_SNIFF_BYTES).removeprefix(_BOM).lstrip()
    first, end, _ = head.partition(b"\n")
    if b'"kvbench_trace"' in first or not head.startswith(b"{"):
        return "native"
    obj: Any = None
    if end or len(head) < _SNIFF_BYTES:
        try:
            obj = msgspec.json.decode(first)
        except (msgspec.MsgspecError, RecursionError):
            obj = None
    if isinstance(obj, dict):
        if "requests" in obj and "turns" not in obj:
            return "weka"
        if not obj.keys() & {"turn", "turns", "chat_id", "conversations", "body"} and _is_mooncake(obj.keys()):
            return "mooncake"
        return "native"
    if b'"requests"' in head or b'"hash_id_scope"' in head:
        return "weka"
    return "mooncake" if b'"input_length"' in first and b'"chat_id"' not in first else "native"


def _is_mooncake(keys: Any) -> bool:
    has_content = "hash_ids" in keys or "messages" in keys
    return "input_length" in keys or (has_content and ("timestamp" in keys or "delay" in keys))


class _Import:
    """One source on its way to native lines."""

    def __init__(self, path: Path, nested_t: NestedT, *, strict: bool, limit: int = 100) -> None:
        self.path = path
        self.sink = NativeSink()
        self.format = sniff(path)
        self.log = ProblemLog(path, strict=strict, limit=limit)
        self._strict = strict
        self._limit = limit
        self._asked = nested_t
        self._digest = hashlib.sha256()
        self._size = 0
        self._files = 1
        self._units = 0
        self._block_size: int | None = None
        self._block_size_from = ""
        self._weka: WekaConverter | None = None

    def run(self) -> TraceIndex:
        """Convert, then read what was made as any native trace is read: its rules hold for every source."""
        if self.format == "weka":
            self._run_weka()
        else:
            self._run_mooncake(DEFAULT_BLOCK_SIZE, "Mooncake's, not said in the file")
        self.log.file = None
        if not self.sink.turns:
            if not self.log.errors:
                self.log.error(0, "not one request in it", hint="is this the file that was meant?")
            return TraceIndex()
        self.sink.finish()
        log = SourceLog(self.path, self.sink.source_lines, strict=self._strict, limit=self._limit)
        log.errors, log.warnings, log.dropped = self.log.errors, self.log.warnings, self.log.dropped
        index = index_trace(self.sink.stream, self.path, log)
        self.log = log
        index.sha256, index.size_bytes = self._digest.hexdigest(), self._size
        return index

    def report(self, index: TraceIndex) -> ImportReport:
        weka = self._weka
        return ImportReport(
            format=self.format,
            files=self._files,
            units=self._units,
            sessions=sum(index.session_counts),
            turns=index.turn_count,
            block_size=self._block_size,
            block_size_from=self._block_size_from,
            sub_agents=self.sink.sub_agents,
            nested_t_asked=self._asked if weka else None,
            nested_t=dict(weka.nested_t) if weka else {},
            marker=dict(weka.marker) if weka else {},
            notes={code: n for code, n in sorted(self.sink.notes.items()) if n},
            dropped={code: n for code, n in sorted(self.sink.dropped.items()) if n},
        )

    def _header(self, kind: str) -> TraceHeader:
        return TraceHeader(name=self.path.resolve().stem, source=f"{kind}: {self.path.name}")

    # ----------------------------------------------------------------------------------------------------- weka

    def _run_weka(self) -> None:
        converter = self._weka = WekaConverter(self.sink, self._asked, self._header("Weka / kv-cache-tester"))
        directory = self.path.is_dir()
        files = _trace_files(self.path) if directory else [self.path]
        self._files = len(files)
        for file in files:
            if directory:
                self.log.file = str(file)
                self._digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
            with open_file(file) as stream:
                for line, raw in self._objects(stream):
                    try:
                        for doubt in converter.add(self._object(raw), line, file.stem):
                            self.log.warning(line, doubt)
                    except LineError as error:
                        self.log.error(line, error.message, field=error.field, hint=error.hint)
        self._units = converter.traces
        self._block_size, self._block_size_from = converter.block_size, "of the source"

    def _objects(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """(line, JSON object): a line each, or (line 0) the whole file where its first line is none."""
        first = stream.readline(MAX_OBJECT_BYTES + 1)
        size = stream.seek(0, 2)
        stream.seek(0)
        if size <= MAX_OBJECT_BYTES and not _is_json(first.removeprefix(_BOM)):
            whole = stream.read().removeprefix(_BOM)
            if _is_json(whole) or b'"requests"' not in first:
                self._digest.update(whole)
                self._size += size
                yield 0, whole
                return
            stream.seek(0)
        yield from self._lines(stream)

    # ------------------------------------------------------------------------------------------------- mooncake

    def _run_mooncake(self, block_size: int, said_by: str) -> None:
        self._digest, self._size = hashlib.sha256(), 0
        converter = MooncakeConverter(self.sink, block_size, self._header("Mooncake"))
        sure = block_size != DEFAULT_BLOCK_SIZE
        with open_file(self.path) as stream:
            for line, raw in self._lines(stream):
                try:
                    converter.add(self._object(raw), line)
                except BlocksDoNotFitError as error:
                    other = None if sure else self._other_block_size()
                    if other is not None:
                        self._start_again()
                        return self._run_mooncake(
                            other, f"made out: every row's ids fit it, and not {DEFAULT_BLOCK_SIZE}"
                        )
                    sure = True
                    self.log.error(line, error.message, field=error.field, hint=error.hint)
                except LineError as error:
                    self.log.error(line, error.message, field=error.field, hint=error.hint)
        self._units = converter.rows
        if converter.hashed:
            self._block_size, self._block_size_from = block_size, said_by

    def _other_block_size(self) -> int | None:
        with open_file(self.path) as stream:
            return fitting_block_size(raw for _, raw in _read_lines(stream))

    def _start_again(self) -> None:
        self.sink.restart()
        self.log = ProblemLog(self.path, strict=self._strict, limit=self._limit)

    # --------------------------------------------------------------------------------------------------- reading

    def _lines(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        for number, raw in _read_lines(stream):
            self._digest.update(raw)
            self._size += len(raw)
            if len(raw) > MAX_OBJECT_BYTES:
                self.log.error(number, f"longer than {MAX_OBJECT_BYTES // 2**20} MiB", hint="split the trace")
                return
            text = raw.removeprefix(_BOM) if number == 1 else raw
            if text.strip():
                yield number, text

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


def _read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while raw := stream.readline(MAX_OBJECT_BYTES + 1):
        number += 1
        yield number, raw


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw) if len(raw) < 100 else msgspec.json.decode(raw, type=msgspec.Raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def _trace_files(path: Path) -> list[Path]:
    files = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES and entry.is_file())
    if not files:
        raise InputError(
            "a directory without a trace file", path=path, hint=f"Weka traces end in {' or '.join(_SUFFIXES)}"
        )
    return files
