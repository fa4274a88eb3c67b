"""The formats in which traces and logs are published, in the order in which they are tried."""

from __future__ import annotations

from kvbench.traces.formats.base import Format
from kvbench.traces.formats.mooncake import MOONCAKE
from kvbench.traces.formats.native import NATIVE
from kvbench.traces.formats.weka import WEKA

FORMATS: tuple[Format, ...] = (NATIVE, WEKA, MOONCAKE)
FORMAT_NAMES: tuple[str, ...] = tuple(format.name for format in FORMATS)

__all__ = ["FORMATS", "FORMAT_NAMES", "NATIVE"]
