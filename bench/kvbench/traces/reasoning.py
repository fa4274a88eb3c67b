"""Whether a trace holds what its models thought."""

from __future__ import annotations

import mmap
import re
from typing import BinaryIO

from kvbench.traces.native import TraceFile

_REASONING = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"[^"]')
"""A message's own field with a text in it. Inside a text the quotes would be escaped, and in a tool's schema the value
is an object."""


def carries_reasoning(trace: TraceFile | BinaryIO) -> bool:
    """Whether any message in the trace has `reasoning_content` (or `reasoning`) that is not empty. Reads the file
    to the first one, without decoding it."""
    with mmap.mmap(trace.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _REASONING.search(content) is not None
