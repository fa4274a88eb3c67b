from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import pytest

from kvbench.sim.timer import DeadlineTimer

MS = 1_000_000


class Alarm:
    """A timer that notes when it rang."""

    def __init__(self) -> None:
        self.rang_ns: list[int] = []
        self.bell = asyncio.Event()
        self.timer = DeadlineTimer(asyncio.get_running_loop(), self._ring)

    def _ring(self) -> None:
        self.rang_ns.append(time.monotonic_ns())
        self.bell.set()

    async def next_ring(self) -> int:
        await asyncio.wait_for(self.bell.wait(), 20)
        self.bell.clear()
        return self.rang_ns[-1]


@pytest.fixture(params=["timerfd", "loop"])
async def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Alarm]:
    if request.param == "loop":
        monkeypatch.setattr(sys, "platform", "somewhere")
    elif sys.platform != "linux":
        pytest.skip("timerfd is Linux's")
    alarm = Alarm()
    yield alarm
    alarm.timer.close()


async def test_it_rings_once_and_not_before_its_time(alarm: Alarm) -> None:
    at_ns = time.monotonic_ns() + 15 * MS
    alarm.timer.arm(at_ns)
    # The loop's own timer may be early by its clock's resolution, never by a millisecond.
    assert await alarm.next_ring() > at_ns - MS
    await asyncio.sleep(0.03)
    assert len(alarm.rang_ns) == 1


async def test_the_last_time_given_counts(alarm: Alarm) -> None:
    now_ns = time.monotonic_ns()
    alarm.timer.arm(now_ns + 3600_000 * MS)
    alarm.timer.arm(now_ns + 5 * MS)
    assert await alarm.next_ring() > now_ns + 4 * MS
    alarm.timer.arm(now_ns + 3600_000 * MS)
    alarm.timer.arm(None)
    alarm.timer.arm(0)
    await alarm.next_ring()
    alarm.timer.arm(time.monotonic_ns() + 5 * MS)
    alarm.timer.arm(None)
    await asyncio.sleep(0.03)
    assert len(alarm.rang_ns) == 2


async def test_the_same_time_may_be_given_again_after_it_rang(alarm: Alarm) -> None:
    at_ns = time.monotonic_ns() + MS
    for rings in (1, 2, 3):
        alarm.timer.arm(at_ns)
        await alarm.next_ring()
        assert len(alarm.rang_ns) == rings
