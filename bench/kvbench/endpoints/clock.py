"""The one clock of a run: monotonic nanoseconds since the run's start."""

from __future__ import annotations

import time

_MAPPING_SAMPLES = 32


class RunClock:
    """Monotonic ns since `start()`; also dates realtime stamps (the kernel's) on the same axis, by `realtime_shift_ns`.

    `uncertainty_ns` is half the width of the tightest bracket in which realtime was read, hence the largest error of a
    stamp so dated while the wall clock is not stepped. Slewing (NTP) moves CLOCK_REALTIME and CLOCK_MONOTONIC alike.
    """

    __slots__ = ("origin_ns", "realtime_shift_ns", "uncertainty_ns")

    def __init__(self, origin_ns: int, realtime_offset_ns: int, uncertainty_ns: int) -> None:
        self.origin_ns = origin_ns
        self.realtime_shift_ns = realtime_offset_ns + origin_ns
        """Realtime ns minus this = ns since the run's start (read directly by the transport's hot path)."""
        self.uncertainty_ns = uncertainty_ns

    @classmethod
    def start(cls) -> RunClock:
        offset_ns, uncertainty_ns = _realtime_offset()
        return cls(time.monotonic_ns(), offset_ns, uncertainty_ns)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.origin_ns

    def check_step(self) -> float:
        """Seconds (signed) by which realtime has moved against the monotonic clock since the run's start.

        Kernel stamps read after a step are off by this much; within `uncertainty_ns` of 0 there was none.
        """
        offset_ns, _ = _realtime_offset()
        return (offset_ns + self.origin_ns - self.realtime_shift_ns) / 1e9


def _realtime_offset() -> tuple[int, int]:
    """(realtime - monotonic, half the bracket's width) in ns, from the tightest of several bracketed pairs."""
    best_offset_ns, best_width_ns = 0, 1 << 62
    for _ in range(_MAPPING_SAMPLES):
        before_ns = time.monotonic_ns()
        realtime_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        if after_ns - before_ns < best_width_ns:
            best_width_ns = after_ns - before_ns
            best_offset_ns = realtime_ns - (before_ns + after_ns) // 2
    return best_offset_ns, (best_width_ns + 1) // 2
