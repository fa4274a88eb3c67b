"""Server-sent events out of a stamped body: framing by the HTML standard, each event dated by the read that ended it.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, at the level of bytes: a
line ends at CR, LF or CR LF and nowhere else; UTF-8 may be split anywhere because it is decoded only as a whole.
Framing runs after the stream has ended, off the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kvbench.endpoints.stamped import StampedBody, TransportFault

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
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
    read_ends = _read_ends(body)
    reads = body.reads
    read_index = 0
    position = event_start = len(_BOM) if content.startswith(_BOM) else 0
    data_lines: list[bytes] = []
    name = b""
    size = len(content)
    while position < size:
        match = _LINE_END.search(content, position)
        line_end, next_position = match.span() if match else (size, size)
        line = content[position:line_end]
        if line_end - event_start > max_event_bytes:
            raise _oversize(max_event_bytes)
        if line:
            field, _, value = line.partition(b":")
            if value.startswith(b" "):
                value = value[1:]
            if field == b"data":
                data_lines.append(value)
            elif field == b"event":
                name = value
        else:
            if data_lines:
                # CR LF: the CR alone ends the line, so the event is complete before the LF, which may come later
                done_at = position + 1
                while read_ends[read_index] < done_at:
                    read_index += 1
                read = reads[read_index]
                last = read.exact and read_ends[read_index] in (done_at, next_position)
                bound_ns = uncertainty_ns if last else uncertainty_ns + max(read.stamp_ns - read.floor_ns, 0)
                yield SseEvent(b"\n".join(data_lines), name, read.stamp_ns, bound_ns, read.read_ns)
            data_lines, name = [], b""
            event_start = next_position
        position = next_position
    if data_lines and reads:
        read = reads[-1]
        bound_ns = uncertainty_ns if read.exact else uncertainty_ns + max(read.stamp_ns - read.floor_ns, 0)
        yield SseEvent(b"\n".join(data_lines), name, read.stamp_ns, bound_ns, read.read_ns, complete=False)


def _read_ends(body: StampedBody) -> list[int]:
    """Offset in the content at which each read ends."""
    ends, offset, part = [], 0, 0
    for read in body.reads:
        offset += sum(map(len, body.parts[part : read.parts_end]))
        part = read.parts_end
        ends.append(offset)
    return ends


def _oversize(limit_bytes: int) -> TransportFault:
    return TransportFault("oversize", f"an event of the stream is longer than {limit_bytes:,} bytes")
