"""Native traces that are not read in place: packed ones, and those in a directory of their own."""

from __future__ import annotations

from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import LineError


class NativeCopy:
    """The lines of one file as they are."""

    def __init__(self, target: Import) -> None:
        self._import = target

    def file(self, file: SourceFile) -> None:
        if self._import.units:
            raise LineError(
                "a directory of several native traces", hint="put them together with kvbench trace transform"
            )
        for line, raw in file.lines():
            self._import.sink.raw(raw, line)
        self._import.units += 1

    def end(self) -> None:
        pass


def _matches(head: Head) -> bool:
    return "kvbench_trace" in head.fields()


NATIVE = Format(name="native", about="native", unit="trace", matches=_matches, converter=NativeCopy)
