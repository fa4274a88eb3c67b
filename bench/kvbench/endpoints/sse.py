"""Server-sent events out of a stamped body: framing by the HTML standard, each event dated by the read that ended it.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, at the level of bytes: a
line ends at CR, LF or CR LF and nowhere else; UTF-8 may be split anywhere because it is decoded only as a whole.
Framing runs after the stream has ended, off the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from kvbench.endpoints.stamped import StampedBody, TransportFault

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_new_event = tuple.__new__  # half the cost of calling SseEvent
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseEvent(NamedTuple):
    """One event. Times are ns since the run's start."""

    data: bytes
    """The data lines joined by LF, UTF-8 not yet checked."""
    name: bytes
    """The event field; empty where the stream gives none (a `message`)."""
    stamp_ns: int
    """Arrival of the read that completed the event: never before the event's own arrival."""
    bound_ns: int
    """The event arrived at most this much before stamp_ns."""
    read_ns: int
    """When the client took that read from the kernel."""
    complete: bool = True
    """False: the stream ended before the blank line that ends the event."""


def sse_events(
    body: StampedBody, uncertainty_ns: int = 0, max_event_bytes: int = MAX_EVENT_BYTES
) -> Iterator[SseEvent]:
    """The events of `body` in order; comments and events without data are left out.

    bound_ns: uncertainty_ns (that of the realtime mapping) where the read held nothing after the event, otherwise also
    the time back to when the socket is known to have been empty (`Read.floor_ns`).
    Raises TransportFault("oversize") at the first event longer than max_event_bytes.
    """
    content = body.content()
    size = len(content)
    reads = body.reads
    part_ends = list(accumulate(map(len, body.parts)))
    read_ends = [part_ends[read[0] - 1] for read in reads]
    read_index = 0
    start = len(_BOM) if content.startswith(_BOM) else 0
    frame = _framed_by_lines if b"\r" in content else _framed_by_blank_lines
    for data, name, done_at, line_end_at in frame(content, start, max_event_bytes):
        complete = done_at <= size
        if complete:
            while read_ends[read_index] < done_at:
                read_index += 1
        else:
            read_index = len(reads) - 1
        _, stamp_ns, floor_ns, read_ns, exact = reads[read_index]
        bound_ns = uncertainty_ns
        if not exact or (complete and not done_at <= read_ends[read_index] <= line_end_at):
            bound_ns += max(stamp_ns - floor_ns, 0)
        yield _new_event(SseEvent, (data, name, stamp_ns, bound_ns, read_ns, complete))


# Framing yields (data, name, offset at which the event is complete, offset after its last line end) for each event with
# data. An event that the stream's end cuts off is complete only beyond the content.


def _framed_by_blank_lines(content: bytes, start: int, max_event_bytes: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Streams without CR; nearly all their events are one data line."""
    offset = start
    for block in content[start:].split(b"\n\n"):
        end = offset + len(block) + 2
        offset = end
        if len(block) > max_event_bytes:
            raise _oversize(max_event_bytes)
        if block[:6] == b"data: " and b"\n" not in block:
            yield block[6:], b"", end, end
        elif block:
            data, name = _fields(block.split(b"\n"))
            if data is not None:
                yield data, name, end, end


def _framed_by_lines(content: bytes, start: int, max_event_bytes: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    position = event_start = start
    lines: list[bytes] = []
    for match in _LINE_END.finditer(content, start):
        line_end, next_position = match.span()
        if line_end - event_start > max_event_bytes:
            raise _oversize(max_event_bytes)
        if line_end > position:
            lines.append(content[position:line_end])
        else:
            data, name = _fields(lines)
            if data is not None:
                # CR LF: the CR alone ends the line, so the event is complete before the LF, which may come later
                yield data, name, line_end + 1, next_position
            lines = []
            event_start = next_position
        position = next_position
    if len(content) - event_start > max_event_bytes:
        raise _oversize(max_event_bytes)
    data, name = _fields([*lines, content[position:]])
    if data is not None:
        yield data, name, len(content) + 1, len(content) + 1


def _fields(lines: list[bytes]) -> tuple[bytes | None, bytes]:
    """(data, name) of an event's lines; data None: it has no data line. Empty lines say nothing."""
    data_lines: list[bytes] = []
    name = b""
    for line in lines:
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            data_lines.append(value)
        elif field == b"event":
            name = value
    return b"\n".join(data_lines) if data_lines else None, name


def _oversize(limit_bytes: int) -> TransportFault:
    return TransportFault("oversize", f"an event of the stream is longer than {limit_bytes:,} bytes")
