"""Open a workload whatever published format it is in (formats/): told by its content, or said.

Other formats are converted, one object in memory at a time, to native lines in an unnamed temporary file, and read from
there. What is wrong is told of the source: file, line, request.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from kvbench.errors import InputError, UsageError
from kvbench.model import TraceHeader
from kvbench.traces.formats import FORMAT_NAMES, FORMATS, NATIVE
from kvbench.traces.formats.base import Format, Import, ImportOptions
from kvbench.traces.formats.sink import LoggedUsage, NativeSink, SourceLog
from kvbench.traces.formats.source import SourceFile, source_files
from kvbench.traces.formats.weka_times import NestedT
from kvbench.traces.import_report import ImportReport
from kvbench.traces.index import FIRST_LINE, TraceIndex, index_trace
from kvbench.traces.lines import LineError
from kvbench.traces.native import TraceFile, Validation, open_trace, validate_trace, validation
from kvbench.traces.problems import ProblemLog

COMMON_NOTES = {
    "surrogates": "halves of surrogate pairs replaced by U+FFFD: {n}",
    "renamed": "sessions whose name was taken: {n} (each got another)",
    "zero_output": "requests without output tokens: {n} (each asks for 1, the least an endpoint can give)",
    "other_files": "files of other kinds in the directory: {n}",
}


_NO_FORMAT = (
    f"{FIRST_LINE}; of another format that is read it has no mark either: --format NAME says what it is, one of "
    f"{', '.join(name for name in FORMAT_NAMES if name != 'native')}"
)


def open_workload(path: str | Path, *, format: str | None = None, nested_t: NestedT = "auto") -> TraceFile:
    """A trace of any format this kvbench reads; a directory is one trace. `imported` tells of a conversion.

    format: its name, where its content is not to decide. nested_t: what times inside a Weka sub-agent count from.
    Raises InputError naming the source's file and line, UsageError for a format there is not.
    """
    path = Path(path)
    source = _Source(path, format, ImportOptions(nested_t=nested_t), strict=True)
    if source.is_native:
        try:
            return open_trace(path)
        except InputError as error:
            if error.hint == FIRST_LINE and error.line == 1 and not source.is_recognised:
                error.hint = _NO_FORMAT
            raise
    try:
        index = source.run()
        return TraceFile(
            path,
            source.sink.stream,
            index,
            source.log.warnings,
            imported=source.report(index),
            source_lines=source.sink.source_lines,
        )
    except BaseException:
        source.sink.stream.close()
        raise


def validate_workload(
    path: str | Path, *, format: str | None = None, nested_t: NestedT = "auto", limit: int = 100
) -> Validation:
    """All problems of a trace of any format. Raises InputError if it cannot be read."""
    path = Path(path)
    source = _Source(path, format, ImportOptions(nested_t=nested_t), strict=False, limit=limit)
    if source.is_native:
        return validate_trace(path, limit=limit)
    with source.sink.stream:
        index = source.run()
        return validation(path, source.log, index, source.report(index))


class LoggedCalls(NamedTuple):
    """The usage of every call that a log tells of, as `report` says it was read."""

    calls: list[LoggedUsage]
    report: ImportReport


def logged_calls(path: str | Path, *, format: str | None = None) -> LoggedCalls:
    """The usage of a log's calls, those that could not be replayed too; what the log has twice is there once.

    Raises InputError naming file and line, and where the format has no times: without them nothing has a price.
    """
    source = _Source(Path(path), format, ImportOptions(), strict=True)
    if source.is_native and "kvbench_trace" in source.files[0].head().fields():
        raise InputError(
            "a native trace, which does not say when its requests were made",
            path=path,
            hint="price the log it was made from, or what a replay would cost: --estimate",
        )
    if source.is_native:
        raise InputError(
            "no log of a format that is read, nor lines of {time, model, usage}",
            path=path,
            hint="kvbench trace info FILE   says what a file is taken for",
        )
    calls = source.sink.calls = []
    with source.sink.stream:
        index = source.run()
        return LoggedCalls(calls, source.report(index))


class _Source:
    """One source on its way to native lines."""

    def __init__(
        self, path: Path, format: str | None, options: ImportOptions, *, strict: bool, limit: int = 100
    ) -> None:
        self.path = path
        self.files, self._other_files = _files(path)
        self.format = _named(format) if format is not None else _sniff(self.files, path)
        if options.nested_t != "auto" and self.format.name != "weka":
            raise UsageError(
                f"--nested-t {options.nested_t}: {path} is {self.format.name}, only Weka traces have times it is about"
            )
        self.log = ProblemLog(path, strict=strict, limit=limit)
        self.is_native = self.format is NATIVE and not path.is_dir() and not self.files[0].packed
        self._options = options
        self._strict = strict
        self._limit = limit
        if not self.is_native:
            self.sink = NativeSink()

    @property
    def is_recognised(self) -> bool:
        return self.format.matches(self.files[0].head())

    def run(self) -> TraceIndex:
        """Convert, then read what was made as any native trace is read: its rules hold for every source."""
        directory = self.path.is_dir()
        name = self.path.resolve().stem.partition(".")[0] or self.path.name
        header = TraceHeader(name=name, source=f"{self.format.about}: {self.path.name}")
        self._import = Import(self.sink, self.log, header, self._options, directory)
        with self._import.resources:
            self._convert(directory)
        if self._other_files:
            self.sink.dropped["other_files"] += self._other_files
        if not self.sink.turns:
            if not self.log.errors:
                left_out = "; ".join(self.report(TraceIndex()).left_out())
                what = f"not one request in it that can be replayed; left out, {left_out}" if left_out else ""
                self.log.error(0, what or "not one request in it", hint="is this the file that was meant?")
            return TraceIndex()
        self.sink.finish()
        log = SourceLog(self.path, self.sink.source_lines, strict=self._strict, limit=self._limit)
        log.errors, log.warnings, log.dropped = self.log.errors, self.log.warnings, self.log.dropped
        index = index_trace(self.sink.stream, self.path, log)
        self.log = log
        index.sha256, index.size_bytes = self._digest(), sum(file.size_bytes for file in self.files)
        return index

    def _convert(self, directory: bool) -> None:
        converter = self.format.converter(self._import)
        for file in self.files:
            self.log.file = str(file.path) if directory else None
            try:
                converter.file(file)
            except LineError as error:
                self._import.error(0, error)
            except InputError as error:
                self._input_error(file, error)
        self.log.file = None
        converter.end()

    def report(self, index: TraceIndex) -> ImportReport:
        done, sink = self._import, self.sink
        notes = {code: n for code, n in sorted(sink.notes.items()) if n}
        dropped = {code: n for code, n in sorted(sink.dropped.items()) if n}
        said = COMMON_NOTES | self.format.notes
        return ImportReport(
            format=self.format.name,
            files=len(self.files),
            unit=self.format.unit,
            units=done.units,
            sessions=sum(index.session_counts),
            turns=index.turn_count,
            block_size=done.block_size,
            block_size_from=done.block_size_from,
            sub_agents=sink.sub_agents,
            facts=done.facts,
            nested_t=done.nested_t,
            marker=done.marker,
            notes=notes,
            dropped=dropped,
            dropped_lines=tuple(sink.dropped_lines),
            said={code: said[code] for code in notes | dropped if code in said},
        )

    def _digest(self) -> str:
        """Of the one file's bytes, decompressed; of a directory's names and bytes."""
        if not self.path.is_dir():
            return self.files[0].sha256
        digest = hashlib.sha256()
        for file in self.files:
            name = str(file.path.relative_to(self.path))
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + file.sha256.encode() + b"\0")
        return digest.hexdigest()

    def _input_error(self, file: SourceFile, error: InputError) -> None:
        """What reading a file found, told as the conversion's other problems are."""
        if self._strict:
            raise error
        where = f"{file.path}:{error.line}: " if error.line else f"{file.path}: "
        self.log.error(error.line or 0, str(error).removeprefix(where), hint=error.hint)


def _files(path: Path) -> tuple[list[SourceFile], int]:
    if not path.is_dir():
        return [SourceFile(path)], 0
    paths, others = source_files(path)
    return [SourceFile(each) for each in paths], others


def _named(name: str) -> Format:
    for format in FORMATS:
        if format.name == name:
            return format
    raise UsageError(f"--format {name}: no such format", hint=f"one of: {', '.join(FORMAT_NAMES)}")


def _sniff(files: list[SourceFile], path: Path) -> Format:
    found: dict[str, Path] = {}
    for file in files:
        head = file.head()
        format = next((format for format in FORMATS if format.matches(head)), NATIVE)
        found.setdefault(format.name, file.path)
    if len(found) > 1:
        each = "; ".join(f"{name}: {where.relative_to(path)}" for name, where in found.items())
        raise InputError(
            f"files of several formats in one directory ({each})",
            path=path,
            hint="say one with --format, or move files",
        )
    return _named(next(iter(found)))
