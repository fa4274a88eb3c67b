"""One connection: a non-blocking socket read with kernel stamps, with or without TLS, one exchange at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from time import monotonic_ns

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.exchange import Exchange
from kvbench.endpoints.stamps import STAMP_BYTES, PollMarks, unpack_timespec
from kvbench.endpoints.tls import TlsLayer

READ_BYTES = 65_536
_CREDIBLE_SLACK_NS = 10_000_000  # a stamp this far outside [floor, read] means that the wall clock was stepped


class Connection:
    """Owns `sock`. Bytes nobody asked for, or an end of file while idle, close it and call `on_idle_close`."""

    __slots__ = (
        "_deadline",
        "_drained",
        "_exchange",
        "_fd",
        "_floor_ns",
        "_idle_s",
        "_loop",
        "_marks",
        "_origin_ns",
        "_progress_ns",
        "_recvmsg",
        "_shift_ns",
        "_sock",
        "_timer",
        "_tls",
        "_total_at_ns",
        "_total_s",
        "_unsent",
        "closed",
        "on_idle_close",
        "stamping",
        "used",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        clock: RunClock,
        marks: PollMarks,
        stamping: bool,
        tls: TlsLayer | None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._recvmsg = sock.recvmsg
        self._origin_ns = clock.origin_ns
        self._shift_ns = clock.realtime_shift_ns
        self._marks = marks
        self._tls = tls
        self._exchange: Exchange | None = None
        self._unsent = memoryview(b"")
        self._drained = True
        self._floor_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle_s: float | None = None
        self._total_s: float | None = None
        self._total_at_ns: int | None = None
        self._progress_ns = 0
        self.stamping = stamping
        self.closed = False
        self.used = False
        self.on_idle_close: Callable[[Connection], None] | None = None
        loop.add_reader(self._fd, self._on_readable)

    # ------------------------------------------------------------------------------------------------- one exchange

    def begin(self, exchange: Exchange, request: bytes, idle_s: float | None, total_s: float | None) -> None:
        """Send `request` (head and body) and feed the answer to `exchange`.

        idle_s: longest time without a byte sent or received; total_s: longest time from now to the end.
        """
        self._exchange = exchange
        self._idle_s, self._total_s = idle_s, total_s
        self._progress_ns = now_ns = self._now_ns()
        self._total_at_ns = None if total_s is None else now_ns + int(total_s * 1e9)
        self._arm(now_ns)
        self._marks.begin()
        if self._tls is not None:
            request = self._tls.encrypt(request)
        self._unsent = memoryview(request)
        exchange.timing.upload_start_ns = self._now_ns()
        self._floor_ns = max(self._floor_ns, exchange.timing.upload_start_ns)
        self._send()

    def release(self) -> bool:
        """End the exchange; True if the connection can carry another one, otherwise it is closed."""
        exchange = self._exchange
        self._end_exchange()
        reusable = (
            not self.closed and exchange is not None and exchange.complete and exchange.keep_alive and not self._unsent
        )
        if not reusable:
            self.close()
        self.used = True
        return reusable

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._end_exchange()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._unsent = memoryview(b"")
        if self._tls is not None:
            with contextlib.suppress(OSError):
                self._sock.send(self._tls.close_notify())
        self._sock.close()

    def _end_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange = None
            self._marks.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now_ns(self) -> int:
        return monotonic_ns() - self._origin_ns

    # --------------------------------------------------------------------------------------------------------- send

    def _send(self) -> None:
        while self._unsent:
            before_ns = self._now_ns()
            try:
                count = self._sock.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._fd, self._on_writable)
                return
            except OSError:
                # The answer that explains it (413, 401) may be waiting to be read; if there is none, reading says so.
                self._loop.remove_writer(self._fd)
                return
            self._unsent = self._unsent[count:]
            if not self._unsent and self._exchange is not None and self._exchange.timing.sent_ns is None:
                # Before the call, not after it: a server woken by the bytes may take this core before send() returns.
                self._exchange.timing.sent_ns = before_ns
        self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self._progress_ns = self._now_ns()
        self._send()

    # --------------------------------------------------------------------------------------------------------- read

    def _on_readable(self) -> None:
        """The hot path: everything here is paid for every read of every stream."""
        read_ns = monotonic_ns() - self._origin_ns
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, STAMP_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_lost(error)
            return
        marks = self._marks
        if not marks.pending:
            marks.touch()
        floor_ns = self._floor_ns
        if self._drained and floor_ns < marks.floor_ns:
            floor_ns = marks.floor_ns
        if len(data) < READ_BYTES:
            self._drained = True
            self._floor_ns = read_ns  # the queue was emptied, so what comes next arrives after this read began
        else:
            self._drained = False
            self._floor_ns = floor_ns  # what is left in the queue may be as old as this
        stamp_ns, stamped = read_ns, False
        if ancillary:
            seconds, nanoseconds = unpack_timespec(ancillary[0][2])
            kernel_ns = seconds * 1_000_000_000 + nanoseconds - self._shift_ns
            if floor_ns - _CREDIBLE_SLACK_NS <= kernel_ns <= read_ns + _CREDIBLE_SLACK_NS:
                stamp_ns, stamped = kernel_ns, True
        if not data:
            self._on_eof()
            return
        self._progress_ns = read_ns
        exchange = self._exchange
        if self._tls is not None:
            self._on_ciphertext(self._tls, data, stamp_ns, floor_ns, read_ns, stamped)
        elif exchange is not None:
            exchange.feed(data, stamp_ns, floor_ns, read_ns, True, stamped)
        else:
            self._lost_while_idle()

    def _on_ciphertext(
        self, tls: TlsLayer, data: bytes, stamp_ns: int, floor_ns: int, read_ns: int, stamped: bool
    ) -> None:
        try:
            plaintext, ends_record = tls.decrypt(data)
        except ssl.SSLError as error:
            self._on_tls_error(error)
            return
        outgoing = tls.take_outgoing()
        if outgoing:
            self._unsent = memoryview(bytes(self._unsent) + outgoing)
            self._send()
        exchange = self._exchange
        if plaintext:
            if exchange is None:
                self._lost_while_idle()
                return
            exchange.feed(plaintext, stamp_ns, floor_ns, read_ns, ends_record, stamped)
        if tls.closed_by_peer:
            self._on_eof()

    def _on_eof(self) -> None:
        exchange = self._exchange
        if exchange is None:
            self._lost_while_idle()
            return
        self._loop.remove_reader(self._fd)
        exchange.keep_alive = False
        if exchange.over:
            return
        exchange.feed_eof(self._now_ns(), clean=self._tls is None or self._tls.closed_by_peer)

    def _on_lost(self, error: OSError) -> None:
        if self._exchange is None:
            self._lost_while_idle()
            return
        self._loop.remove_reader(self._fd)
        self._exchange.keep_alive = False
        self._exchange.fail("reset", f"the connection was lost: {error.strerror or error}", self._now_ns())

    def _on_tls_error(self, error: ssl.SSLError) -> None:
        if self._exchange is None:
            self._lost_while_idle()
            return
        self._loop.remove_reader(self._fd)
        self._exchange.keep_alive = False
        self._exchange.fail("tls", f"TLS failed: {error.reason or error}", self._now_ns())

    def _lost_while_idle(self) -> None:
        self.close()
        if self.on_idle_close is not None:
            self.on_idle_close(self)

    # ------------------------------------------------------------------------------------------------------ timeouts

    def _arm(self, now_ns: int) -> None:
        """One timer an exchange, set again only when it fires: reads move `_progress_ns` alone."""
        deadlines = [] if self._idle_s is None else [self._progress_ns + int(self._idle_s * 1e9)]
        if self._total_at_ns is not None:
            deadlines.append(self._total_at_ns)
        if deadlines:
            self._timer = self._loop.call_later(max((min(deadlines) - now_ns) / 1e9, 0.001), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        exchange = self._exchange
        if exchange is None or exchange.over:
            return
        now_ns = self._now_ns()
        if self._total_at_ns is not None and now_ns >= self._total_at_ns:
            exchange.fail("total_timeout", f"no complete answer within {self._total_s:g} s", now_ns)
        elif self._idle_s is not None and now_ns >= self._progress_ns + int(self._idle_s * 1e9):
            doing = "received" if exchange.timing.sent_ns is not None else "taken by the server"
            exchange.fail("idle_timeout", f"no byte {doing} for {self._idle_s:g} s", now_ns)
        else:
            self._arm(now_ns)
