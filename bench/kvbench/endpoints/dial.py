"""Opening connections: name lookup, TCP, TLS handshake; each way to fail has its own kind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from typing import Any

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.connection import READ_BYTES, Connection
from kvbench.endpoints.stamped import FaultKind, TransportFault
from kvbench.endpoints.stamps import PollMarks, stamp_socket
from kvbench.endpoints.tls import TlsLayer

_LOCAL_ERRORS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
_Address = tuple[int, Any]
"""(family, sockaddr)"""


class Dialer:
    """Opens connections. A host's addresses are looked up once, then kept: a run asks one host thousands of times."""

    def __init__(self, clock: RunClock, marks: PollMarks, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._marks = marks
        self._loop = loop
        self._lookups: dict[tuple[str, int], asyncio.Task[list[_Address]]] = {}

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float | None) -> Connection:
        """A connected (and, with `tls`, verified) connection; raises TransportFault. timeout_s covers it all."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open(host, port, tls)
        except TimeoutError:
            raise TransportFault("connect_timeout", f"{host}:{port}: no connection within {timeout_s:g} s") from None

    async def aclose(self) -> None:
        for task in self._lookups.values():
            task.cancel()
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)
        self._lookups.clear()

    async def _open(self, host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
        sock, stamping = await self._connect(host, port)
        try:
            layer = None if tls is None else await self._handshake(sock, tls, host, port)
            return Connection(self._loop, sock, self._clock, self._marks, stamping, layer)
        except BaseException:
            sock.close()
            raise

    async def _connect(self, host: str, port: int) -> tuple[socket.socket, bool]:
        failure: OSError | None = None
        for family, address in await self._addresses(host, port):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                failure = error
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stamping = stamp_socket(sock)
                await self._loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock, stamping
        assert failure is not None
        if isinstance(failure, TimeoutError):
            raise TransportFault("connect_timeout", f"{host}:{port}: {failure.strerror or failure}")
        kind: FaultKind = "local" if failure.errno in _LOCAL_ERRORS else "refused"
        raise TransportFault(kind, f"{host}:{port}: {failure.strerror or failure}")

    async def _addresses(self, host: str, port: int) -> list[_Address]:
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                socket.inet_pton(family, host)
                return [(family, (host, port))]
        key = (host, port)
        if key not in self._lookups:
            self._lookups[key] = self._loop.create_task(self._look_up(host, port))
        lookup = self._lookups[key]
        try:
            # shielded: several requests wait for one lookup, and one of them may be cancelled
            return await asyncio.shield(lookup)
        except TransportFault as fault:
            self._lookups.pop(key, None)
            raise TransportFault(fault.kind, str(fault)) from None

    async def _look_up(self, host: str, port: int) -> list[_Address]:
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise TransportFault("dns", f"{host}: the name cannot be resolved ({why})") from error
        if not found:
            raise TransportFault("dns", f"{host}: the name has no address")
        return [(int(family), address) for family, _, _, _, address in found]

    async def _handshake(self, sock: socket.socket, context: ssl.SSLContext, host: str, port: int) -> TlsLayer:
        layer = TlsLayer(context, host)
        data = b""
        try:
            while not layer.handshake(data):
                await self._loop.sock_sendall(sock, layer.take_outgoing())
                data = await self._loop.sock_recv(sock, READ_BYTES)
                if not data:
                    raise TransportFault("tls", f"{host}:{port}: closed during the TLS handshake")
            await self._loop.sock_sendall(sock, layer.take_outgoing())
        except ssl.SSLCertVerificationError as error:
            raise TransportFault("tls", f"{host}:{port}: certificate not accepted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise TransportFault("tls", f"{host}:{port}: TLS handshake failed: {error.reason or error}") from None
        except OSError as error:
            raise TransportFault("tls", f"{host}:{port}: lost during the TLS handshake: {error.strerror}") from None
        return layer
