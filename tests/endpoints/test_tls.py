from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.sse import sse_events
from kvbench.endpoints.stamped import StampedBody, Timing, TransportFault
from kvbench.endpoints.tls import TlsLayer, tls_context
from kvbench.endpoints.transport import StampedTransport
from kvbench.errors import ConfigError

from .conftest import Peer, RawServer

StartServer = Callable[..., RawServer]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return path


def tls_server(cert: trustme.LeafCert, names: list[str | None] | None = None) -> Callable[[socket.socket], Any]:
    """Wraps a server's socket in TLS; `names` collects the server names that clients asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    if names is not None:
        context.sni_callback = lambda sock, name, ctx: names.append(name)
    return lambda sock: context.wrap_socket(sock, server_side=True)


async def fetch(url: str, ca_file: Path | None, body: bytes = b"{}") -> tuple[StampedBody, Timing]:
    clock = RunClock.start()
    sink = StampedBody()
    async with httpx.AsyncClient(transport=StampedTransport(clock, ca_file), trust_env=False, timeout=10) as client:
        request = client.build_request("POST", url, content=body, extensions={"kvbench.sink": sink})
        response = await client.send(request, stream=True)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return sink, response.extensions["kvbench.timing"]


async def test_stream_over_tls_with_server_name_and_stamps(
    ca: trustme.CA, ca_file: Path, raw_server: StartServer
) -> None:
    names: list[str | None] = []

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        for i in range(3):
            time.sleep(0.005)
            peer.chunk(b"data: %d\n\n" % i)
        peer.send(b"0\r\n\r\n")
        peer.request()

    server = raw_server(handler, wrap=tls_server(ca.issue_cert("localhost"), names))
    sink, timing = await fetch(f"https://localhost:{server.port}/", ca_file)
    assert names == ["localhost"]
    assert timing.connect_ns is not None
    events = list(sse_events(sink))
    assert [event.data for event in events] == [b"0", b"1", b"2"]
    if timing.stamp == "kernel":
        assert timing.stamps_missing == 0
        assert all(read.exact and read.stamp_ns <= read.read_ns for read in sink.reads[:2])


async def test_megabytes_both_ways_and_keep_alive(ca: trustme.CA, ca_file: Path, raw_server: StartServer) -> None:
    up, down = bytes(range(256)) * 12_000, bytes(range(255)) * 12_000

    def handler(peer: Peer) -> None:
        for _ in range(2):
            head, body = peer.request()
            assert head.startswith(b"POST")
            assert body == up
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(down) + down)
        peer.request()

    server = raw_server(handler, wrap=tls_server(ca.issue_cert("localhost")))
    async with httpx.AsyncClient(transport=StampedTransport(RunClock.start(), ca_file), trust_env=False) as client:
        for _ in range(2):
            assert (await client.post(f"https://localhost:{server.port}/", content=up)).content == down
    assert server.connections == 1


async def test_address_in_the_certificate_is_accepted(ca: trustme.CA, ca_file: Path, raw_server: StartServer) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = raw_server(handler, wrap=tls_server(ca.issue_cert("127.0.0.1")))
    sink, _ = await fetch(f"https://127.0.0.1:{server.port}/", ca_file)
    assert sink.content() == b"ok"


async def refused_by_tls(url: str, ca_file: Path | None) -> str:
    with pytest.raises(TransportFault) as caught:
        await fetch(url, ca_file)
    assert caught.value.kind == "tls"
    return str(caught.value)


async def test_certificates_that_must_not_be_accepted(ca: trustme.CA, ca_file: Path, raw_server: StartServer) -> None:
    requests: list[bytes] = []

    def start(cert: trustme.LeafCert) -> str:
        server = raw_server(lambda peer: requests.append(peer.request()[0]), wrap=tls_server(cert))
        return f"https://localhost:{server.port}/"

    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    assert "expired" in await refused_by_tls(start(ca.issue_cert("localhost", not_after=past)), ca_file)
    assert "mismatch" in (await refused_by_tls(start(ca.issue_cert("other.example")), ca_file)).lower()
    stranger = trustme.CA().issue_cert("localhost")
    assert "certificate" in await refused_by_tls(start(stranger), ca_file)
    assert "certificate" in await refused_by_tls(start(ca.issue_cert("localhost")), None)  # not in the system's store
    assert not any(requests)  # nothing was sent to any of them


async def test_plain_http_server_and_closing_server_are_tls_faults(ca_file: Path, raw_server: StartServer) -> None:
    def plain(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    for handler in (plain, lambda peer: peer.sock.recv(1000)):
        message = await refused_by_tls(f"https://127.0.0.1:{raw_server(handler).port}/", ca_file)
        assert "TLS handshake" in message


@pytest.mark.parametrize(("notify", "whole"), [(True, True), (False, False)])
async def test_body_that_ends_with_the_connection_needs_close_notify(
    ca: trustme.CA, ca_file: Path, raw_server: StartServer, notify: bool, whole: bool
) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of it?")
        if notify:
            peer.sock.unwrap()

    server = raw_server(handler, wrap=tls_server(ca.issue_cert("localhost")))
    url = f"https://localhost:{server.port}/"
    if whole:
        assert (await fetch(url, ca_file))[0].content() == b"half of it?"
    else:
        with pytest.raises(TransportFault) as caught:
            await fetch(url, ca_file)
        assert caught.value.kind == "truncated"


async def test_hanging_handshake_is_a_connect_timeout(raw_server: StartServer, ca_file: Path) -> None:
    server = raw_server(lambda peer: time.sleep(1))
    async with httpx.AsyncClient(transport=StampedTransport(RunClock.start(), ca_file), trust_env=False) as client:
        with pytest.raises(TransportFault) as caught:
            await client.get(f"https://localhost:{server.port}/", timeout=0.2)
    assert caught.value.kind == "connect_timeout"
    await asyncio.sleep(0)


def test_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path in (bad, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=path.name):
            tls_context(path)


def test_verification_is_on() -> None:
    context = tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def session(ca: trustme.CA, ca_file: Path) -> tuple[TlsLayer, ssl.SSLObject, ssl.MemoryBIO]:
    """A client layer and the server's session and outgoing buffer, past the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = TlsLayer(tls_context(ca_file), "localhost")
    done = False
    for _ in range(5):
        done = done or client.handshake(to_client.read())
        to_server.write(client.take_outgoing())
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert done
    client.decrypt(to_client.read())  # session tickets
    return client, server, to_client


def test_plaintext_followed_by_part_of_a_record_is_not_dated_exactly(ca: trustme.CA, ca_file: Path) -> None:
    client, server, to_client = session(ca, ca_file)
    server.write(b"first")
    first = to_client.read()
    server.write(b"second")
    second = to_client.read()
    for cut in (1, 4, 5, 6, len(second) - 1):
        client_state = client.decrypt(first + second[:cut])
        assert client_state == (b"first", False)
        assert client.decrypt(second[cut:]) == (b"second", True)
        server.write(b"first")
        first = to_client.read()
        server.write(b"second")
        second = to_client.read()
    assert client.decrypt(first + second) == (b"firstsecond", True)
