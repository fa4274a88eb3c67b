"""Each way in which an exchange fails, and what is kept of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from tests.endpoints.test_transport import LAST_CHUNK, STREAM_HEAD, StartServer, answer, post

from kvbench.endpoints import connection as connection_module
from kvbench.endpoints import dial, exchange
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.sse import sse_events
from kvbench.endpoints.stamped import TransportFault
from kvbench.endpoints.transport import StampedTransport

from .conftest import Peer, http_chunk


async def test_header_that_would_split_the_request_is_not_sent(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    server = raw_server(lambda peer: peer.request())
    with pytest.raises(TransportFault, match="x-team"):
        await client.get(server.url, headers={"x-team": "a\r\nx-admin: 1"})
    assert server.connections == 0


async def test_refused(client: httpx.AsyncClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        got = await post(client, f"http://127.0.0.1:{port}/")
    assert got.fault is not None
    assert (got.fault.kind, got.timing) == ("refused", None)
    assert f"127.0.0.1:{port}" in str(got.fault)


async def test_name_that_does_not_resolve(client: httpx.AsyncClient) -> None:
    got = await post(client, "http://no-such-host.invalid/")
    assert got.fault is not None
    assert got.fault.kind == "dns"
    assert "no-such-host.invalid" in str(got.fault)


async def test_next_address_is_tried_when_the_first_refuses(
    client: httpx.AsyncClient, raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = raw_server(lambda peer: (peer.request(), peer.send(answer(b"ok"))))

    async def addresses(self: object, host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET6, ("::1", server.port)), (socket.AF_INET, ("127.0.0.1", server.port))]  # type: ignore[list-item]

    monkeypatch.setattr(dial.Dialer, "_addresses", addresses)
    assert (await client.get(server.url)).text == "ok"


async def test_connect_timeout(client: httpx.AsyncClient) -> None:
    with contextlib.ExitStack() as stack:
        # A listener with a full backlog drops further SYNs, so that the next connect hangs.
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        await asyncio.sleep(0.05)
        got = await post(client, f"http://127.0.0.1:{listener.getsockname()[1]}/", connect=0.2)
    assert got.fault is not None
    assert got.fault.kind == "connect_timeout"


@pytest.mark.parametrize("before", [b"", STREAM_HEAD, STREAM_HEAD + http_chunk(b"data: a\n\n")])
async def test_stall_ends_by_the_idle_timeout_and_keeps_what_came(
    client: httpx.AsyncClient, raw_server: StartServer, before: bytes
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(before)
        peer.request()  # until the client gives up

    got = await post(client, raw_server(handler).url, read=0.1)
    assert got.fault is not None
    assert got.fault.kind == "idle_timeout"
    assert got.sink.content() == (b"data: a\n\n" if before.endswith(b"\n\n\r\n") else b"")
    times = got.times
    assert times.end_ns is not None
    assert times.sent_ns is not None
    assert times.end_ns - (times.first_byte_ns or times.sent_ns) >= 90_000_000


async def test_each_byte_renews_the_idle_timeout_but_not_the_total(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        for i in range(60):
            peer.chunk(b"data: %d\n\n" % i)
            time.sleep(0.02)

    got = await post(client, raw_server(handler).url, read=0.5, total_s=0.7)
    assert got.fault is not None
    assert got.fault.kind == "total_timeout"
    assert len(got.sink.parts) > 5


async def test_upload_that_the_server_does_not_take_ends_by_the_idle_timeout(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    release = threading.Event()
    server = raw_server(lambda peer: release.wait(10))
    got = await post(client, server.url, b"x" * 32_000_000, read=0.2)
    release.set()
    assert got.fault is not None
    assert got.fault.kind == "idle_timeout"
    assert got.times.sent_ns is None


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nconte", b""),
        (STREAM_HEAD + http_chunk(b"data: a\n\n"), b"data: a\n\n"),
        (STREAM_HEAD + b"ff\r\ndata: a\n\n", b"data: a\n\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata", b"data"),
    ],
)
async def test_fin_before_the_end_is_truncated_and_keeps_what_came(
    client: httpx.AsyncClient, raw_server: StartServer, sent: bytes, kept: bytes
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(sent)

    server = raw_server(handler)
    got = await post(client, server.url)
    assert got.fault is not None
    assert got.fault.kind == "truncated"
    assert got.status == (200 if b"\r\n\r\n" in sent else None)
    assert got.sink.content() == kept
    assert server.connections == 1


async def test_close_before_the_answer_is_not_retried_on_a_fresh_connection(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    server = raw_server(lambda peer: peer.request())
    got = await post(client, server.url)
    assert got.fault is not None
    assert got.fault.kind == "truncated"
    assert got.times.first_byte_ns is None
    assert server.connections == 1


async def test_rst_inside_the_stream_is_reset_and_keeps_what_came(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD + http_chunk(b"data: a\n\n"))
        time.sleep(0.1)
        peer.reset()

    got = await post(client, raw_server(handler).url)
    assert got.fault is not None
    assert got.fault.kind == "reset"
    assert got.sink.content() == b"data: a\n\n"


def once_then(last: Callable[[Peer], None]) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(answer(b"first"))
        if peer.request()[0]:
            last(peer)

    return handler


@pytest.mark.parametrize("last", [lambda peer: None, Peer.reset])
async def test_stale_keep_alive_is_sent_again_once_on_a_fresh_connection(
    client: httpx.AsyncClient, raw_server: StartServer, last: Callable[[Peer], None]
) -> None:
    server = raw_server(once_then(last), once_then(last))
    assert not (await post(client, server.url)).times.retried_stale
    second = await post(client, server.url)
    assert second.sink.content() == b"first"
    assert second.times.retried_stale
    assert second.times.connect_ns is not None
    assert server.connections == 2


async def test_a_connection_closed_later_was_open_and_its_request_is_not_sent_again(
    client: httpx.AsyncClient, raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.endpoints.transport.STALE_WITHIN_S", 0.05)
    server = raw_server(once_then(lambda peer: time.sleep(0.2)))
    await post(client, server.url)
    got = await post(client, server.url)
    assert got.fault is not None
    assert (got.fault.kind, got.times.retried_stale) == ("truncated", False)
    assert server.connections == 1


async def test_stale_retry_happens_once_only(client: httpx.AsyncClient, raw_server: StartServer) -> None:
    server = raw_server(once_then(lambda peer: None), lambda peer: peer.request())
    await post(client, server.url)
    got = await post(client, server.url)
    assert got.fault is not None
    assert (got.fault.kind, got.times.retried_stale) == ("truncated", True)
    assert server.connections == 2


async def test_kept_alive_connection_that_answers_in_part_is_not_retried(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    server = raw_server(once_then(lambda peer: peer.send(b"HTTP/1.1 200")))
    await post(client, server.url)
    got = await post(client, server.url)
    assert got.fault is not None
    assert (got.fault.kind, server.connections) == ("truncated", 1)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", "gzip"),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", "101"),
        (STREAM_HEAD + b"zz\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", "Content-Length"),
    ],
)
async def test_what_is_not_http_is_a_protocol_error(
    client: httpx.AsyncClient, raw_server: StartServer, sent: bytes, says: str
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(sent)
        peer.request()

    got = await post(client, raw_server(handler).url)
    assert got.fault is not None
    assert got.fault.kind == "protocol_error"
    assert says.lower() in str(got.fault).lower()


async def test_endless_headers_and_endless_body_are_oversize(
    client: httpx.AsyncClient, raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 300_000)

    def headers(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            peer.send(b"x-a: " + b"b" * 1000 + b"\r\n")

    def body(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        while True:
            peer.chunk(b"x" * 1000)

    for handler in (headers, body):
        got = await post(client, raw_server(handler).url)
        assert got.fault is not None
        assert got.fault.kind == "oversize"


async def test_bytes_after_the_end_of_the_answer_end_the_connection(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(answer(b"ok") + answer(b"smuggled"))
        peer.request()

    server = raw_server(handler)
    for _ in range(2):
        got = await post(client, server.url)
        assert (got.fault, got.sink.content()) == (None, b"ok")
    assert server.connections == 2


async def test_early_answer_to_an_unfinished_upload_is_given(
    client: httpx.AsyncClient, raw_server: StartServer
) -> None:
    def handler(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(answer(b"too large", b"413 Content Too Large"))
        peer.sock.recv(1 << 30, socket.MSG_WAITALL)

    got = await post(client, raw_server(handler).url, b"x" * 32_000_000)
    assert (got.status, got.sink.content(), got.times.sent_ns) == (413, b"too large", None)


async def test_cancelling_closes_the_connection(client: httpx.AsyncClient, raw_server: StartServer) -> None:
    closed: list[bool] = []
    answered, ended = threading.Event(), threading.Event()

    def handler(peer: Peer) -> None:
        peer.request()
        if server.connections == 2:
            peer.send(STREAM_HEAD + http_chunk(b"data: a\n\n"))
        answered.set()
        closed.append(peer.request() == (b"", b""))
        ended.set()

    server = raw_server(handler)
    for _ in ("before the headers", "inside the stream"):
        answered.clear()
        ended.clear()
        task = asyncio.create_task(post(client, server.url))
        assert await asyncio.to_thread(answered.wait, 5)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 5)
    assert closed == [True, True]


async def test_without_kernel_stamps_the_loop_dates_arrivals_and_says_so(
    raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "stamp_socket", lambda sock: False)

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD + http_chunk(b"data: a\n\n"))
        time.sleep(0.01)
        peer.send(LAST_CHUNK)
        peer.request()

    async with httpx.AsyncClient(transport=StampedTransport(RunClock.start()), trust_env=False) as client:
        got = await post(client, raw_server(handler).url)
    assert (got.times.stamp, got.times.stamps_missing) == ("loop", 0)
    (event,) = sse_events(got.sink)
    assert event.stamp_ns == event.read_ns
    (read,) = got.sink.reads
    assert event.bound_ns == read.read_ns - read.floor_ns


async def test_a_stamp_that_cannot_be_true_is_not_believed(
    client: httpx.AsyncClient, transport: StampedTransport, raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not transport.stamping:
        pytest.skip("no kernel stamps on this platform")
    true_unpack = connection_module.unpack_timespec
    monkeypatch.setattr(
        connection_module, "unpack_timespec", lambda data: (true_unpack(data)[0] + 3600, true_unpack(data)[1])
    )  # as if the wall clock had been set an hour ahead during the run

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(answer(b"ok"))
        peer.request()

    got = await post(client, raw_server(handler).url)
    assert got.times.stamps_missing == 1
    (read,) = got.sink.reads
    assert (read.stamp_ns, read.exact) == (read.read_ns, False)
