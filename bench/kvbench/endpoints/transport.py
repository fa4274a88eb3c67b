"""httpx transport on the project's own sockets, so that the kernel dates every arrival.

    async with httpx.AsyncClient(transport=StampedTransport(clock), trust_env=False) as client: ...

Extensions of a request:  "kvbench.sink": StampedBody   takes the body; the response's stream then yields nothing and
                                                        ends when the answer does
                          "kvbench.total_s": float      longest time from the first byte sent to the end
                          "timeout": httpx's own        connect = lookup, TCP and TLS; read = no byte either way
Extensions of a response: "kvbench.timing": Timing

Faults are TransportFault with a `kind`. A request is sent again only if a kept-alive connection turns out to be closed
before any byte of the answer, once, on a fresh connection (`Timing.retried_stale`). One that is closed later than
STALE_WITHIN_S was open when the request came, which may then have been worked on: that is a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.connection import Connection
from kvbench.endpoints.dial import Dialer
from kvbench.endpoints.exchange import Exchange
from kvbench.endpoints.stamped import StampedBody, Timing, TransportFault
from kvbench.endpoints.stamps import PollMarks, keep_stamping_on
from kvbench.endpoints.tls import tls_context

_Origin = tuple[bytes, str, int]
STALE_WITHIN_S = 2.0
"""The close of a connection that was already closed comes back within a round trip."""

_FORBIDDEN = re.compile(rb"[\r\n\0]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class StampedTransport(httpx.AsyncBaseTransport):
    """Keep-alive pool without an upper limit; belongs to the event loop it is first used on."""

    def __init__(self, clock: RunClock, ca_file: Path | str | None = None) -> None:
        self._clock = clock
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        if ca_file is not None:
            self._tls = tls_context(ca_file)
        self._idle: dict[_Origin, list[Connection]] = {}
        self._live: set[Connection] = set()
        self._dialer: Dialer | None = None
        self._marks: PollMarks | None = None
        self.stamping = keep_stamping_on()
        """Whether the platform gives kernel stamps."""
        _raise_open_file_limit()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = _origin(request)
        payload = _head(request) + await request.aread()
        extensions = request.extensions
        sink = extensions.get("kvbench.sink")
        body = sink if isinstance(sink, StampedBody) else StampedBody()
        retried = False
        while True:
            connection, connect_ns = await self._connection(origin, extensions, reuse=not retried)
            timing = Timing("kernel" if connection.stamping else "loop", self._clock.uncertainty_ns)
            timing.connect_ns = connect_ns
            timing.retried_stale = retried
            exchange = Exchange(body, timing, wake_on_read=sink is None)
            try:
                connection.begin(exchange, payload, _timeout_s(extensions, "read"), extensions.get("kvbench.total_s"))
                while not (exchange.headers_done or exchange.over):
                    await exchange.progress()
            except BaseException:
                self._discard(connection)
                raise
            fault = exchange.fault
            if fault is None or exchange.headers_done:
                break  # a fault after the headers is for whoever reads the body: status and headers are known
            self._discard(connection)
            stale = connection.used and not exchange.answered and fault.kind in ("reset", "truncated")
            now_ns = self._clock.now_ns()
            late = now_ns - (timing.sent_ns or timing.upload_start_ns or now_ns) > STALE_WITHIN_S * 1e9
            if not stale or late or retried:
                raise fault from None
            retried = True
        return httpx.Response(
            exchange.status,
            headers=exchange.headers,
            stream=_AnswerStream(self, connection, origin, exchange, yields=sink is None),
            extensions={"http_version": b"HTTP/1.1", "kvbench.timing": timing},
            request=request,
        )

    async def aclose(self) -> None:
        for connection in list(self._live):
            self._discard(connection)
        self._idle.clear()
        if self._dialer is not None:
            await self._dialer.aclose()

    async def _connection(
        self, origin: _Origin, extensions: dict[str, Any], reuse: bool
    ) -> tuple[Connection, int | None]:
        """A connection to `origin` and how long it took to open, ns; None: it was kept alive."""
        idle = self._idle.get(origin)
        if idle and reuse:
            connection = idle.pop()
            connection.on_idle_close = None
            return connection, None
        loop = asyncio.get_running_loop()
        if self._marks is None or self._dialer is None:
            self._marks = PollMarks(loop, self._clock)
            self._dialer = Dialer(self._clock, self._marks, loop)
        scheme, host, port = origin
        start_ns = self._clock.now_ns()
        if scheme == b"https" and self._tls is None:
            self._tls = tls_context()
        tls = self._tls if scheme == b"https" else None
        connection = await self._dialer.open(host, port, tls, _timeout_s(extensions, "connect"))
        self._live.add(connection)
        return connection, self._clock.now_ns() - start_ns

    def give_back(self, origin: _Origin, connection: Connection) -> None:
        """The exchange is over: keep the connection for the next one, or close it."""
        if not connection.release():
            self._live.discard(connection)
            return
        idle = self._idle.setdefault(origin, [])
        idle.append(connection)

        def forget(closed: Connection) -> None:
            self._live.discard(closed)
            with contextlib.suppress(ValueError):
                idle.remove(closed)

        connection.on_idle_close = forget

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._live.discard(connection)


class _AnswerStream(httpx.AsyncByteStream):
    """Body of an answer; closing it before the end closes the connection, at the end gives it back."""

    def __init__(
        self, transport: StampedTransport, connection: Connection, origin: _Origin, exchange: Exchange, yields: bool
    ) -> None:
        self._transport = transport
        self._connection: Connection | None = connection
        self._origin = origin
        self._exchange = exchange
        self._yields = yields

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange, parts, taken = self._exchange, self._exchange.sink.parts, 0
        while True:
            if self._yields:
                while taken < len(parts):
                    taken += 1
                    yield parts[taken - 1]
            if exchange.over:
                break
            await exchange.progress()
        if exchange.fault is not None:
            raise exchange.fault from None

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.give_back(self._origin, connection)


def _origin(request: httpx.Request) -> _Origin:
    url = request.url
    if url.scheme not in _DEFAULT_PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme}: only http and https are spoken")
    return url.raw_scheme, url.raw_host.decode("ascii").strip("[]"), url.port or _DEFAULT_PORTS[url.scheme]


def _head(request: httpx.Request) -> bytes:
    for name, value in request.headers.raw:
        if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
            shown = name.decode("latin-1")
            raise TransportFault("local", f"header {shown!r}: a header must not hold line ends or NUL")
    lines = [request.method.encode("ascii") + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw if name.lower() != b"transfer-encoding"]
    if "transfer-encoding" in request.headers:
        lines.append(b"content-length: %d" % len(request.content))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _timeout_s(extensions: dict[str, Any], name: str) -> float | None:
    value = (extensions.get("timeout") or {}).get(name)
    return None if value is None else float(value)


def _raise_open_file_limit() -> None:
    """A connection is a file: the usual soft limit of 1,024 would end a run of 1,000 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
