"""A timer for absolute monotonic times, finer than an event loop's own milliseconds where the platform has one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_NS = 1_000_000_000
_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


class DeadlineTimer:
    """Calls `callback` once when time.monotonic_ns() reaches what `arm` was given last.

    On Linux a timerfd: uvloop and asyncio round their timers to whole milliseconds, which would blur every simulated
    latency by up to one. Elsewhere the loop's own timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._armed_ns: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._fire)

    def arm(self, at_ns: int | None) -> None:
        """None: no call. A time already past: a call as soon as the loop comes round."""
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        if self._fd >= 0:
            # Zero disarms a timerfd, so the earliest time there is is 1 ns.
            value_s, value_ns = (0, 0) if at_ns is None else divmod(max(at_ns, 1), _NS)
            spec = _Itimerspec(0, 0, value_s, value_ns)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at_ns is not None:
            self._handle = self._loop.call_later(max(at_ns - time.monotonic_ns(), 0) / _NS, self._fire)

    def close(self) -> None:
        self.arm(None)
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fire(self) -> None:
        if self._fd >= 0:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return  # armed anew between the wake-up and this call
        self._armed_ns = None
        self._callback()
