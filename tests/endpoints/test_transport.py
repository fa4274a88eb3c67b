from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from kvbench.endpoints import connection as connection_module
from kvbench.endpoints.sse import sse_events
from kvbench.endpoints.stamped import StampedBody, Timing, TransportFault
from kvbench.endpoints.transport import StampedTransport

from .conftest import Peer, RawServer, http_chunk

StartServer = Callable[..., RawServer]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


class Answer:
    """What one exchange gave; `fault` instead of an exception."""

    def __init__(self) -> None:
        self.sink = StampedBody()
        self.status: int | None = None
        self.timing: Timing | None = None
        self.fault: TransportFault | None = None

    @property
    def times(self) -> Timing:
        assert self.timing is not None
        return self.timing


async def post(
    client: httpx.AsyncClient, url: str, body: bytes = b"{}", total_s: float | None = None, **timeouts: float
) -> Answer:
    result = Answer()
    request = client.build_request(
        "POST",
        url,
        content=body,
        extensions={
            "kvbench.sink": result.sink,
            "kvbench.total_s": total_s,
            "timeout": {"connect": 10.0, "read": 10.0, **timeouts},
        },
    )
    try:
        response = await client.send(request, stream=True)
        result.status = response.status_code
        result.timing = response.extensions["kvbench.timing"]
        try:
            await response.aread()
        finally:
            await response.aclose()
    except TransportFault as fault:
        result.fault = fault
        result.timing = fault.timing
    return result


# --------------------------------------------------------------------------------------------------- good answers


async def test_stream_arrives_whole_in_order_and_with_times_in_order(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def handler(peer: Peer) -> None:
        seen.append(peer.request())
        peer.send(STREAM_HEAD)
        time.sleep(0.01)
        for i in range(5):
            peer.chunk(b"data: %d\n\n" % i)
            time.sleep(0.005)
        peer.send(LAST_CHUNK)
        peer.request()

    server = raw_server(handler)
    got = await post(client, server.url + "/v1/x?y=1", b'{"a": 1}')
    head, body = seen[0]
    assert head.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
    assert b"content-length: 8" in head.lower()
    assert body == b'{"a": 1}'
    assert got.sink.content() == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n"
    times = got.times
    order = [times.upload_start_ns, times.sent_ns, times.first_byte_ns, times.headers_ns]
    order += [read.stamp_ns for read in got.sink.reads] + [times.end_ns]
    assert None not in order
    assert order == sorted(order)  # type: ignore[type-var]
    assert times.connect_ns is not None
    for read in got.sink.reads:
        assert read.floor_ns <= read.stamp_ns <= read.read_ns


async def test_arrival_lies_between_the_servers_write_and_the_clients_read(
    client: httpx.AsyncClient, transport: StampedTransport, raw_server: StartServer
) -> None:
    writes: list[tuple[int, int]] = []

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        for i in range(20):
            time.sleep(0.003)
            before = time.monotonic_ns()
            peer.chunk(b"data: %d\n\n" % i)
            writes.append((before, time.monotonic_ns()))
        peer.send(LAST_CHUNK)
        peer.request()

    got = await post(client, raw_server(handler).url)
    clock = transport._clock
    events = list(sse_events(got.sink, got.times.uncertainty_ns))
    assert len(events) == 20
    for event, (before, after) in zip(events, writes, strict=True):
        arrived_after, arrived_before = before - clock.origin_ns, after - clock.origin_ns
        # what the stamp claims: the event arrived in [stamp - bound, stamp]
        assert event.stamp_ns >= arrived_after - got.times.uncertainty_ns
        assert event.stamp_ns - event.bound_ns <= arrived_before
        assert event.stamp_ns <= event.read_ns + got.times.uncertainty_ns


async def test_kernel_stamp_is_not_moved_by_a_client_that_sleeps(
    client: httpx.AsyncClient, transport: StampedTransport, raw_server: StartServer
) -> None:
    if not transport.stamping:
        pytest.skip("no kernel stamps on this platform")
    written = threading.Event()
    writes: list[int] = []

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        time.sleep(0.05)
        peer.chunk(b"data: x\n\n")
        writes.append(time.monotonic_ns())
        written.set()
        peer.request()

    server = raw_server(handler)
    task = asyncio.create_task(post(client, server.url, read=0.5))
    while not written.is_set():
        await asyncio.sleep(0.001)
        time.sleep(0.1)  # noqa: ASYNC251 the loop is deaf for 100 ms, in which the chunk arrives
    got = await task
    (event,) = sse_events(got.sink)
    assert event.bound_ns == 0
    assert event.stamp_ns <= writes[0] - transport._clock.origin_ns
    assert event.read_ns >= event.stamp_ns


async def test_events_merged_by_a_late_client_are_bounded(
    client: httpx.AsyncClient, transport: StampedTransport, raw_server: StartServer
) -> None:
    writes: list[int] = []
    asleep, written = threading.Event(), threading.Event()

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        asleep.wait(5)
        for i in range(3):
            writes.append(time.monotonic_ns())
            peer.chunk(b"data: %d\n\n" % i)
            time.sleep(0.01)
        peer.send(LAST_CHUNK)
        written.set()
        peer.request()

    server = raw_server(handler)
    task = asyncio.create_task(post(client, server.url))
    await asyncio.sleep(0.05)
    asleep.set()
    written.wait(5)  # blocks the loop while all three arrive
    got = await task
    events = list(sse_events(got.sink, got.times.uncertainty_ns))
    assert len(got.sink.reads) == 1
    for event, write in zip(events, writes, strict=True):
        true_ns = write - transport._clock.origin_ns
        assert event.stamp_ns - event.bound_ns <= true_ns <= event.stamp_ns + got.times.uncertainty_ns


async def test_what_a_full_read_leaves_in_the_queue_keeps_its_older_floor(
    client: httpx.AsyncClient, transport: StampedTransport, raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "READ_BYTES", 4096)
    asleep, written = threading.Event(), threading.Event()
    writes: list[int] = []
    event = b"data: " + b"x" * 1000 + b"\n\n"

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        asleep.wait(5)
        peer.send(http_chunk(event) * 30)  # seven full reads, all in the client's queue when it wakes up
        writes.append(time.monotonic_ns())
        written.set()
        peer.send(LAST_CHUNK)
        peer.request()

    server = raw_server(handler)
    task = asyncio.create_task(post(client, server.url))
    await asyncio.sleep(0.05)
    asleep.set()
    written.wait(5)  # blocks the loop
    got = await task
    events = list(sse_events(got.sink, got.times.uncertainty_ns))
    assert len(events) == 30
    assert len(got.sink.reads) >= 7
    assert got.times.stamps_missing == 0
    true_ns = writes[0] - transport._clock.origin_ns
    assert all(event.stamp_ns - event.bound_ns <= true_ns for event in events)


async def test_keep_alive_connection_is_used_again_and_an_idle_close_is_noticed(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    def handler(peer: Peer) -> None:
        for _ in range(3):
            peer.request()
            peer.send(answer(b"ok"))

    server = raw_server(handler)
    connects = []
    for _ in range(4):
        got = await post(client, server.url)
        assert got.sink.content() == b"ok"
        connects.append(got.times.connect_ns is None)
        await asyncio.sleep(0.05)
    assert connects == [False, True, True, False]
    assert server.connections == 2
    assert not got.times.retried_stale


@pytest.mark.parametrize("ending", ["content-length", "chunked", "close"])
async def test_each_way_to_end_a_body(client: httpx.AsyncClient, raw_server: StartServer, ending: str) -> None:
    body = bytes(range(256)) * 8192  # 2 MB

    def handler(peer: Peer) -> None:
        peer.request()
        if ending == "content-length":
            peer.send(answer(body))
        elif ending == "chunked":
            peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 100_000):
                peer.chunk(body[i : i + 100_000])
            peer.send(LAST_CHUNK)
        else:
            peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + body)

    server = raw_server(handler)
    got = await post(client, server.url)
    assert got.fault is None
    assert got.sink.content() == body
    assert got.sink.reads[-1].parts_end == len(got.sink.parts)
    assert (await client.get(server.url)).content == body


async def test_headers_split_at_every_byte_and_interim_answers(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    raw += b"HTTP/1.1 404 Not Found\r\nX-A: 1\r\nX-A: 2\r\ncontent-length: 2\r\n\r\nno"

    def handler(peer: Peer) -> None:
        peer.request()
        for i in range(len(raw)):
            peer.send(raw[i : i + 1])
            time.sleep(0.0002)
        peer.request()

    response = await client.get(raw_server(handler).url)
    assert response.status_code == 404
    assert response.headers.get_list("x-a") == ["1", "2"]
    assert "link" not in response.headers
    assert response.text == "no"


async def test_large_and_slow_upload_arrives_whole(client: httpx.AsyncClient, raw_server: StartServer) -> None:
    body = bytes(range(251)) * 66_000  # 16 MB
    got_body: list[bytes] = []
    drained: list[int] = []

    def handler(peer: Peer) -> None:
        time.sleep(0.2)  # the socket buffers fill up meanwhile
        got_body.append(peer.request()[1])
        drained.append(time.monotonic_ns())
        peer.send(answer(b"ok"))
        peer.request()

    got = await post(client, raw_server(handler).url, body)
    assert got_body[0] == body
    assert got.sink.content() == b"ok"
    times = got.times
    assert times.sent_ns is not None
    assert times.upload_start_ns is not None
    assert times.sent_ns - times.upload_start_ns > 50_000_000  # it had to wait for the server to read


async def test_200_streams_at_once_do_not_wait_for_a_pool(client: httpx.AsyncClient, raw_server: StartServer) -> None:
    everybody_in = threading.Barrier(200, timeout=20)

    def handler(peer: Peer) -> None:
        peer.request()
        everybody_in.wait()  # passes only if all requests are in flight together
        peer.send(answer(b"ok"))

    server = raw_server(handler)
    results = await asyncio.gather(*[post(client, server.url, read=30.0) for _ in range(200)])
    assert [r.sink.content() for r in results] == [b"ok"] * 200


async def test_plain_streaming_yields_pieces_as_they_come(client: httpx.AsyncClient, raw_server: StartServer) -> None:
    go_on = threading.Event()

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD + http_chunk(b"one"))
        go_on.wait(5)
        peer.send(http_chunk(b"two") + LAST_CHUNK)
        peer.request()

    async with client.stream("GET", raw_server(handler).url) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"one"
        go_on.set()
        assert await anext(pieces) == b"two"
        assert [piece async for piece in pieces] == []
