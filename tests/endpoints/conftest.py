"""A raw server on loopback whose handlers write bytes as they like, and both event loops for the transport's tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
import uvloop

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.transport import StampedTransport

BOTH_LOOPS = {"test_transport.py", "test_transport_faults.py", "test_tls.py", "test_stamps.py"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    uv = {"uvloop": uvloop.new_event_loop}
    return {**uv, "asyncio": asyncio.new_event_loop} if item.path.name in BOTH_LOOPS else uv


class Peer:
    """The server's end of one connection, with blocking calls (a handler has a thread of its own)."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.buffered = b""

    def request(self) -> tuple[bytes, bytes]:
        """(head, body) of the next request; (b"", b"") at the end of the connection."""
        head = self._until(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        while len(self.buffered) < length:
            data = self.sock.recv(65536)
            if not data:
                return b"", b""
            self.buffered += data
        body, self.buffered = self.buffered[:length], self.buffered[length:]
        return head, body

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(http_chunk(data))

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _until(self, end: bytes) -> bytes:
        while end not in self.buffered:
            data = self.sock.recv(65536)
            if not data:
                return b""
            self.buffered += data
        head, _, self.buffered = self.buffered.partition(end)
        return head


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class RawServer:
    """`handlers[n]` serves connection n (the last one all later ones), which is closed when it returns."""

    def __init__(
        self, handlers: list[Callable[[Peer], None]], wrap: Callable[[socket.socket], Any] | None = None
    ) -> None:
        self._handlers = handlers
        self._wrap = wrap
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.failures: list[BaseException] = []
        self._sockets: list[Any] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handler = self._handlers[min(self.connections, len(self._handlers) - 1)]
            self.connections += 1
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, handler), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, handler: Callable[[Peer], None]) -> None:
        try:
            wrapped = sock if self._wrap is None else self._wrap(sock)
            self._sockets.append(wrapped)
            handler(Peer(wrapped))
            with contextlib.suppress(OSError):
                wrapped.close()
        except OSError:
            pass  # the client went away, as many of the tests want it to
        except BaseException as error:
            self.failures.append(error)
        finally:
            with contextlib.suppress(OSError):
                sock.close()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=5)
        assert not any(thread.is_alive() for thread in self._threads)
        if self.failures:
            raise self.failures[0]


@pytest.fixture
def raw_server() -> Iterator[Callable[..., RawServer]]:
    """raw_server(handler, ...) starts a server; all are stopped, and their failures raised, at the test's end."""
    servers: list[RawServer] = []

    def start(*handlers: Callable[[Peer], None], wrap: Callable[[socket.socket], Any] | None = None) -> RawServer:
        servers.append(RawServer(list(handlers), wrap))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
async def transport() -> StampedTransport:
    return StampedTransport(RunClock.start())


@pytest.fixture
async def client(transport: StampedTransport):  # type: ignore[no-untyped-def]
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=10) as client:
        yield client
