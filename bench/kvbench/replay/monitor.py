"""What the client does to its own figures while it measures: event-loop lag, garbage collection, clocks, suspend."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BEAT_S = 0.05
GROWTH_LIMIT_BYTES = 512 * 1024 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class ClientHealth:
    """loop_lags_ns: one sample a beat of 50 ms. clock_step_s: realtime against monotonic, from start to end."""

    loop_lags_ns: array[int]
    clock_step_s: float
    suspended_s: float
    gc_mode: str
    gc_collections: int
    gc_pause_max_s: float


class Monitor:
    """Runs beside a replay: beats every 50 ms and notes how late, keeps the collector off under a memory guard.

    A collection stops every stream for as long as it lasts (facts of the p99 of loop-dated arrivals), so what is
    alive at the start is frozen and the collector stays off until the process has grown by 512 MiB.
    """

    def __init__(self, clock_step_s: Callable[[], float]) -> None:
        self._clock_step_s = clock_step_s
        self._lags = array("q")
        self._step_s = 0.0
        self._collections = 0
        self._pause_max_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._beats = 0
        self._suspend_base_s = 0.0
        self._grown_from_bytes = 0
        self._gc_was_enabled = False

    @property
    def last_lag_s(self) -> float:
        return self._lags[-1] / 1e9 if self._lags else 0.0

    def start(self) -> None:
        self._gc_was_enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self._grown_from_bytes = _resident_bytes()
        self._suspend_base_s = _slept_s()
        self._schedule()

    def stop(self) -> ClientHealth:
        """Turn the collector back on and say what was seen."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._gc_was_enabled:
            gc.enable()
        gc.unfreeze()
        self._check_clock()
        return ClientHealth(
            loop_lags_ns=self._lags,
            clock_step_s=self._step_s,
            suspended_s=max(0.0, _slept_s() - self._suspend_base_s),
            gc_mode="frozen and off, memory guard 512 MiB",
            gc_collections=self._collections,
            gc_pause_max_s=self._pause_max_s,
        )

    def events(self) -> dict[str, Any]:
        """The latest beat, for events.jsonl."""
        return {"loop_lag_s": self.last_lag_s, "resident_bytes": _resident_bytes()}

    def _schedule(self) -> None:
        self._due_ns = time.monotonic_ns() + round(BEAT_S * 1e9)
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        self._lags.append(max(0, time.monotonic_ns() - self._due_ns))
        self._beats += 1
        if self._beats % 20 == 0:
            self._check_clock()
            if _resident_bytes() - self._grown_from_bytes > GROWTH_LIMIT_BYTES:
                self._collect()
        self._schedule()

    def _check_clock(self) -> None:
        step_s = self._clock_step_s()
        if abs(step_s) > abs(self._step_s):
            self._step_s = step_s

    def _collect(self) -> None:
        began = time.monotonic_ns()
        gc.collect()
        gc.freeze()
        self._collections += 1
        self._pause_max_s = max(self._pause_max_s, (time.monotonic_ns() - began) / 1e9)
        self._grown_from_bytes = _resident_bytes()


def _resident_bytes() -> int:
    """Resident memory of this process; 0 where the platform does not say (the guard then never acts)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _slept_s() -> float:
    """Time the machine has been suspended since boot: CLOCK_BOOTTIME counts it, CLOCK_MONOTONIC does not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
