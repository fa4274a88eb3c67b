from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvbench.endpoints.sse import SseEvent, sse_events
from kvbench.endpoints.stamped import Read, StampedBody, TransportFault

DATA = os.environ.get("KVBENCH_TEST_DATA")


def body_of(*pieces: bytes, exact: bool = True) -> StampedBody:
    """One read a piece: read i is stamped 1000*i + 500, its socket was last known empty at 1000*i + 100."""
    body = StampedBody()
    for i, piece in enumerate(pieces):
        body.parts.append(piece)
        body.reads.append(Read(len(body.parts), 1000 * i + 500, 1000 * i + 100, 1000 * i + 900, exact))
    return body


def framed(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    return [(event.data, event.name) for event in sse_events(body_of(*pieces))]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\r\rdata: b\r\r", [(b"a", b""), (b"b", b"")]),
        (b"data:a\n\n", [(b"a", b"")]),
        (b"data:  a\n\n", [(b" a", b"")]),  # one space belongs to the syntax, the second to the data
        (b"data\n\n", [(b"", b"")]),
        (b"data: a\ndata: b\ndata:\n\n", [(b"a\nb\n", b"")]),
        (b": keep-alive\n\n:\n\ndata: a\n\n", [(b"a", b"")]),
        (b"data: : COMMENT\n\n", [(b": COMMENT", b"")]),
        (b"event: error\ndata: {}\n\ndata: a\n\n", [(b"{}", b"error"), (b"a", b"")]),
        (b"event: ping\n\ndata: a\n\n", [(b"a", b"")]),  # no data: no event, and its name does not leak into the next
        (b"id: 7\nretry: 10\nunknown: x\ndata: a\n\n", [(b"a", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"a", b"")]),
        (b"data: a\n\ndata: [DONE]", [(b"a", b""), (b"[DONE]", b"")]),
        (b"data: a\n\ndata: [DONE]\n", [(b"a", b""), (b"[DONE]", b"")]),
        ("data: a\u2028b\u0085c\x0bd\x0ce\x1cf\n\n".encode(), [("a\u2028b\u0085c\x0bd\x0ce\x1cf".encode(), b"")]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_frames(stream: bytes, events: list[tuple[bytes, bytes]]) -> None:
    assert framed(stream) == events
    assert framed(*[stream[i : i + 1] for i in range(len(stream))]) == events


def test_utf8_split_inside_a_character_is_whole_again() -> None:
    text = 'data: {"t": "é漢😀"}\n\n'.encode()
    for cut in range(1, len(text)):
        (event,) = sse_events(body_of(text[:cut], text[cut:]))
        assert event.data.decode() == '{"t": "é漢😀"}'


def test_event_is_dated_by_the_read_that_ended_it() -> None:
    events = list(sse_events(body_of(b"data: a\n", b"\ndata: b\n\n", b"data: c\n\ndata: ", b"d\n\n"), uncertainty_ns=7))
    assert [(e.data, e.stamp_ns, e.read_ns) for e in events] == [
        (b"a", 1500, 1900),
        (b"b", 1500, 1900),
        (b"c", 2500, 2900),
        (b"d", 3500, 3900),
    ]
    # b and d end their reads: the stamp is theirs. a and c are followed by other bytes: somewhere back to the floor.
    assert [e.bound_ns for e in events] == [7 + 400, 7, 7 + 400, 7]


def test_bound_reaches_back_to_the_floor_where_the_stamp_is_not_of_the_last_byte() -> None:
    (event,) = sse_events(body_of(b"data: a\n\n", exact=False), uncertainty_ns=7)
    assert event.bound_ns == 7 + 400


def test_event_with_crlf_is_complete_at_the_cr() -> None:
    first, second = sse_events(body_of(b"data: a\r\n\r", b"\ndata: b\r\n\r\n"))
    assert (first.stamp_ns, first.bound_ns) == (500, 0)
    assert (second.stamp_ns, second.bound_ns) == (1500, 0)


def test_reads_of_several_parts_are_dated_by_their_read() -> None:
    body = StampedBody()
    body.parts += [b"data: a\n\n", b"data: b", b"\n\n", b"data: c\n\n"]
    body.reads += [Read(1, 10, 0, 11, True), Read(4, 20, 12, 22, True)]
    assert [(e.data, e.stamp_ns, e.bound_ns) for e in sse_events(body)] == [(b"a", 10, 0), (b"b", 20, 8), (b"c", 20, 0)]


def test_a_stream_that_ends_inside_an_event_says_so() -> None:
    whole, cut = sse_events(body_of(b"data: a\n\n", b'data: {"x": '))
    assert (whole.complete, cut.complete) == (True, False)
    assert (cut.data, cut.stamp_ns) == (b'{"x": ', 1500)


def test_a_1_mb_event_is_read_and_one_over_the_cap_is_refused() -> None:
    event = b"data: " + b"x" * (1 << 20) + b"\n\n"
    pieces = [event[i : i + 65536] for i in range(0, len(event), 65536)]
    assert [len(e.data) for e in sse_events(body_of(*pieces))] == [1 << 20]
    with pytest.raises(TransportFault) as caught:
        list(sse_events(body_of(b"data: ok\n\n", *pieces), max_event_bytes=1 << 19))
    assert caught.value.kind == "oversize"


def test_many_short_lines_of_one_event_count_against_the_cap_together() -> None:
    with pytest.raises(TransportFault):
        list(sse_events(body_of(b"data: 0123456789\n" * 100 + b"\n"), max_event_bytes=1000))


def slow_reference(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm a byte at a time: a state machine that shares nothing with the module under test."""
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = stream[3:]
    lines, line, after_cr = [], bytearray(), False
    for byte in stream:
        if byte == 0x0A and after_cr:
            after_cr = False
            continue
        after_cr = byte == 0x0D
        if byte in (0x0A, 0x0D):
            lines.append(bytes(line))
            line = bytearray()
        else:
            line.append(byte)
    lines += [bytes(line), b""]  # at the end of the stream the last event is given out too
    events: list[tuple[bytes, bytes]] = []
    data: bytes | None = None
    name = b""
    for text in lines:
        if not text:
            if data is not None:
                events.append((data[:-1], name))
            data, name = None, b""
            continue
        field, value = (text[: text.index(b":")], text[text.index(b":") + 1 :]) if b":" in text else (text, b"")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data = (data or b"") + value + b"\n"
        elif field == b"event":
            name = value
    return events


fragments = st.sampled_from(
    [
        b"data",
        b"event",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b"x",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"[DONE]",
    ]
)


@given(st.lists(fragments, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=8))
@example(b"data: a\r\n\r\n", [9, 10])
def test_any_split_gives_the_events_of_the_reference(stream: bytes, cuts: list[int]) -> None:
    offsets = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(offsets)]
    assert framed(*pieces) == slow_reference(stream)


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
def test_recorded_streams_frame_like_the_reference() -> None:
    files = sorted((Path(str(DATA)) / "sse").glob("*.sse"))
    assert files
    for path in files:
        stream = path.read_bytes()
        events: list[SseEvent] = list(sse_events(body_of(*[stream[i : i + 97] for i in range(0, len(stream), 97)])))
        assert [(e.data, e.name) for e in events] == slow_reference(stream)
        assert events[-1].data == b"[DONE]"
