"""Kernel receive stamps, and what the event loop tells about when a socket was last known to be empty."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time

from kvbench.endpoints.clock import RunClock

SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; the socket module of Python 3.11 does not name it
STAMP_BYTES = 64  # room for the one control message asked for: CMSG_SPACE(sizeof(struct timespec)) is 32
unpack_timespec = struct.Struct("ll").unpack

_HEARTBEAT_S = 0.002

_keeper_fd: int | None = None


def stamp_socket(sock: socket.socket) -> bool:
    """Ask for a receive stamp on each read of `sock`; False where the platform has none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def keep_stamping_on() -> bool:
    """Hold one stamping socket for the life of the process; False where the platform has no stamps.

    The kernel stamps packets only while some socket asks for it, and switches that on lazily: without a socket held
    open, the first stamps of a fresh connection are missing.
    """
    global _keeper_fd
    if _keeper_fd is not None:
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            sock = socket.socket(family, socket.SOCK_DGRAM)
            if stamp_socket(sock):
                _keeper_fd = sock.detach()  # never closed
                return True
            sock.close()
    return False


class PollMarks:
    """A lower bound on the last time the loop's poll found a socket empty.

    A socket that a poll reports was not readable when the poll before it collected its events: whatever is read now
    arrived later than that. The loop does not show its polls, but a call_soon callback does: on uvloop it runs just
    before the next poll is entered, so the mark before the newest one precedes the previous poll. The newest mark
    itself proves nothing: data may have come while the callbacks before it were running. asyncio's own loop runs
    such a callback after the next poll, so there it takes one mark more.

    Reads make marks, and a heartbeat makes them (as many as it takes, a poll apart) while a loop with requests in
    flight is otherwise idle, so that the bound is at most about the heartbeat (2 ms) longer than what the loop was
    truly late.
    """

    __slots__ = ("_active", "_loop", "_marks", "_origin_ns", "_timer", "_to_come", "floor_ns", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: RunClock, extra_polls: int = 0) -> None:
        """extra_polls: how many polls later than the socket itself the caller sees what was read."""
        self._loop = loop
        self._origin_ns = clock.origin_ns
        depth = 2 if type(loop).__module__.startswith("uvloop") else 3
        self._marks = [0] * (depth + extra_polls)
        self.floor_ns = 0
        """For a read happening now: its bytes arrived at this time (ns since the run's start) or later."""
        self.pending = False
        self._to_come = 0
        self._active = 0
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """A poll's callbacks are running: note the time before the next poll. Call only if not `pending`."""
        self.pending = True
        self._loop.call_soon(self._mark)

    def _mark(self) -> None:
        self.pending = False
        marks = self._marks
        del marks[0]
        marks.append(time.monotonic_ns() - self._origin_ns)
        self.floor_ns = marks[0]
        if self._to_come:
            self._to_come -= 1
            self.touch()

    def begin(self) -> None:
        """One more request is in flight."""
        self._active += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_HEARTBEAT_S, self._beat)

    def end(self) -> None:
        """One request fewer is in flight."""
        self._active -= 1
        if self._active == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._to_come = len(self._marks) - 1
        if not self.pending:
            self.touch()
        self._timer = self._loop.call_later(_HEARTBEAT_S, self._beat)
