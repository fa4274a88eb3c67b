"""HTTP/1.1 for the simulated endpoint: keep-alive, chunked answers, and writes that leave at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httptools
import msgspec

MAX_BODY_BYTES = 64 * 2**20

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    402: b"Payment Required",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nserver: kvbench-sim\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes, *, last: bool = False) -> bytes:
    """Data framed as a chunk of an answer, with the mark of its end where it is the last."""
    return b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b"")


@dataclass
class HttpRequest:
    """A request read to its end; header names in lower case. arrival_ns: monotonic, of its last bytes."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    arrival_ns: int = 0


class Application(Protocol):
    """What answers requests, one at a time on each connection."""

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer with `respond`, or with `start_stream` and later `send`."""

    def disconnected(self, connection: Connection) -> None:
        """The client went away, perhaps before its answer was complete."""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._reading = HttpRequest()
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._handling = False
        self._received_ns = 0

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            # A defect of ours, not of the request: end visibly (the client sees the reset, stderr the traceback).
            raise error.__context__ or error from None
        except httptools.HttpParserUpgrade as upgrade:
            # Declined by going on as before; what came behind the request is the next one.
            self._parser = httptools.HttpRequestParser(self)
            if rest := data[upgrade.args[0] :]:
                self.data_received(rest)
        except httptools.HttpParserError:
            self._refuse(400, "This is not an HTTP/1.1 request.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        self._application.disconnected(self)

    # ---- httptools

    def on_message_begin(self) -> None:
        self._reading = HttpRequest()

    def on_url(self, url: bytes) -> None:
        self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reading.headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._reading.body += body
        if len(self._reading.body) > MAX_BODY_BYTES:
            self._reading.body.clear()
            self._refuse(413, f"The simulated endpoint takes bodies up to {MAX_BODY_BYTES} bytes.")

    def on_message_complete(self) -> None:
        request = self._reading
        request.method = self._parser.get_method().decode("latin-1")
        request.path = request.path.partition("?")[0]
        request.keep_alive = self._parser.should_keep_alive()
        request.arrival_ns = self._received_ns
        self._queue.append(request)
        self._next()

    # ---- answers

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        head = (
            f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
            f"{'' if self._keeps_alive() else 'connection: close' + chr(13) + chr(10)}\r\n"
        )
        start = b"HTTP/1.1 %d %s\r\nserver: kvbench-sim\r\n" % (status, _REASONS[status])
        if self._current is not None and self._current.method == "HEAD":
            body = b""  # its length is told all the same
        self._write(start + head.encode("latin-1") + body)
        self._answered()

    def start_stream(self, content_type: bytes = b"text/event-stream; charset=utf-8") -> None:
        """The head of an answer that comes in chunks."""
        self._write(_STREAM_HEAD % content_type)

    def send(self, framed: bytes) -> None:
        """A chunk of the stream (http.chunk), in one write."""
        self._write(framed)

    def end(self) -> None:
        """The answer's last chunk has been sent: what the connection brought meanwhile comes next."""
        self._answered()

    def close(self) -> None:
        """Hang up, whatever has been answered."""
        if self._transport is not None:
            self._transport.close()

    def _keeps_alive(self) -> bool:
        return self._current is not None and self._current.keep_alive

    def _answered(self) -> None:
        keep_alive, self._current = self._keeps_alive(), None
        if not keep_alive and self._transport is not None:
            self._transport.close()
        else:
            self._next()

    def _next(self) -> None:
        if self._handling:
            return  # answered at once: the loop below goes on, however many requests are queued
        self._handling = True
        try:
            while self._current is None and self._queue and self._transport is not None:
                self._current = self._queue.popleft()
                self._application.handle(self._current, self)
        finally:
            self._handling = False

    def _refuse(self, status: int, message: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._current is None:
            error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
            self.respond(status, msgspec.json.encode({"error": error}))
        self._transport.close()

    def _write(self, data: bytes) -> None:
        """Hand bytes to the kernel now: uvloop would keep them until the loop's iteration ends, and a time written
        down before that would be early by what the other streams of the step take."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        sent = 0
        if transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError:
                transport.abort()
                return
        if sent < len(data):
            transport.write(data[sent:])
