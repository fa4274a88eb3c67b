"""One request and its answer on one connection: HTTP/1.1 parsing state, times, and who waits for it."""

from __future__ import annotations

import asyncio

import httptools

from kvbench.endpoints.stamped import FaultKind, Read, StampedBody, Timing, TransportFault

MAX_HEADER_BYTES = 65_536
MAX_ANSWER_BYTES = 256 * 1024 * 1024

_SHOWN_BYTES = 80
_new_read = tuple.__new__  # half the cost of calling Read


class Exchange:
    """Receives the parser's callbacks. `on_body` is the sink's own list.append: no Python frame for a chunk."""

    __slots__ = (
        "_head_dated",
        "_parser",
        "_parts",
        "_reads",
        "_received_bytes",
        "_waiter",
        "chunked",
        "complete",
        "fault",
        "has_length",
        "headers",
        "headers_done",
        "keep_alive",
        "on_body",
        "sink",
        "status",
        "timing",
        "wake_on_read",
    )

    def __init__(self, sink: StampedBody, timing: Timing, wake_on_read: bool) -> None:
        self.sink = sink
        self.wake_on_read = wake_on_read
        self.timing = timing
        # Also under their own names: what a read of the hot path touches should be near at hand.
        self._parts = sink.parts
        self._reads = sink.reads
        self.on_body = sink.parts.append
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.headers_done = False
        self.has_length = False
        self.chunked = False
        self.complete = False
        self.keep_alive = False
        self.fault: TransportFault | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._received_bytes = 0
        self._head_dated = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    # -------------------------------------------------------------------------------------------- parser callbacks

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("bytes after the end of the answer")
        self.headers = []
        self.has_length = self.chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        lowered = name.lower()
        if lowered == b"content-length":
            self.has_length = True
        elif lowered == b"transfer-encoding":
            self.chunked = True
        elif lowered == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise ValueError(f"the answer is encoded as {_shown(value)}, though only identity was asked for")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status == 101:
            raise ValueError("the server switched protocols (101), which nobody asked for")
        self.headers_done = self.status >= 200

    def on_message_complete(self) -> None:
        if self.headers_done:  # otherwise it was an interim answer (100 Continue, 103 Early Hints)
            assert self._parser is not None
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()

    # --------------------------------------------------------------------------------------------------- transport

    @property
    def answered(self) -> bool:
        """Some byte of an answer has come."""
        return self._received_bytes > 0

    def feed(self, data: bytes, stamp_ns: int, floor_ns: int, read_ns: int, ends_read: bool, stamped: bool) -> None:
        """Take the bytes of one read. ends_read: nothing follows them in the read (TLS: no part of a next record)."""
        parser = self._parser
        if parser is None:
            self.keep_alive = False
            return
        parts = self._parts
        parts_before = len(parts)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._on_parser_error(error, data, read_ns)
        received_bytes = self._received_bytes + len(data)
        if not stamped and self.timing.stamp == "kernel":
            self.timing.stamps_missing += 1
        if len(parts) != parts_before:
            last = parts[-1]
            # Two bytes after the last body byte can only be the CRLF of its HTTP chunk.
            exact = stamped and ends_read and (data.endswith(last, 0, -2) or data.endswith(last))
            self._reads.append(_new_read(Read, (len(parts), stamp_ns, floor_ns, read_ns, exact)))
            if received_bytes > MAX_ANSWER_BYTES:
                self.fail("oversize", f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes", read_ns)
        if not self._head_dated:
            self._on_head(stamp_ns, read_ns, received_bytes)
        self._received_bytes = received_bytes
        if self.complete:
            self.timing.end_ns = stamp_ns
            self._parser = None  # parser and exchange refer to each other, and the collector is off while measuring
            self.wake()
        elif self.wake_on_read:
            self.wake()

    def _on_head(self, stamp_ns: int, read_ns: int, received_bytes: int) -> None:
        if self._received_bytes == 0:
            self.timing.first_byte_ns = stamp_ns
        if self.headers_done:
            self.timing.headers_ns = stamp_ns
            self._head_dated = True
            self.wake()
        elif received_bytes > MAX_HEADER_BYTES:
            self.fail("oversize", f"the answer's headers are longer than {MAX_HEADER_BYTES:,} bytes", read_ns)

    def _on_parser_error(self, error: httptools.HttpParserError, data: bytes, read_ns: int) -> None:
        self.keep_alive = False
        if not self.complete:
            began = "" if self.headers or self._received_bytes else f" (it began {_shown(data)})"
            self.fail("protocol_error", f"not a valid HTTP answer: {error.__context__ or error}{began}", read_ns)

    def feed_eof(self, now_ns: int, clean: bool) -> None:
        """The server sent FIN. clean: on TLS, close_notify came before it."""
        if self.headers_done and not self.has_length and not self.chunked and clean:
            self.complete = True
            self.timing.end_ns = self.sink.reads[-1].stamp_ns if self.sink.reads else self.timing.headers_ns
            self._parser = None
            self.wake()
        elif not self.answered:
            self.fail("truncated", "the server closed the connection before it answered", now_ns)
        else:
            where = "answer" if self.headers_done else "answer's headers"
            self.fail("truncated", f"the server closed the connection before the {where} ended", now_ns)

    def fail(self, kind: FaultKind, message: str, now_ns: int) -> None:
        if self.over:
            return
        self.fault = TransportFault(kind, message)
        self.fault.timing = self.timing
        self.timing.end_ns = now_ns
        self._parser = None
        self.wake()

    @property
    def over(self) -> bool:
        return self.complete or self.fault is not None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def progress(self) -> None:
        """Return after the headers, the end or a fault; with wake_on_read after each read."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


def _shown(data: bytes) -> str:
    return repr(data[:_SHOWN_BYTES].decode("latin-1"))
