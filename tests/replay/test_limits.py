from __future__ import annotations

import asyncio
import time

from kvbench.replay.limits import Limits


async def test_no_more_than_the_limit_are_in_flight_and_the_wait_is_told() -> None:
    limits = Limits(2, None, time.monotonic_ns)
    running = peak = 0
    waits = []

    async def one() -> None:
        nonlocal running, peak
        async with limits.slot() as wait_ns:
            waits.append(wait_ns)
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.01)
            running -= 1

    await asyncio.gather(*(one() for _ in range(6)))
    assert peak == 2
    assert running == 0
    # the third pair waited for two sleeps of 10 ms; sleeps never end early, and how late they end is not asserted
    assert sorted(waits)[-1] >= 19_000_000


async def test_a_place_is_freed_when_its_request_is_cancelled() -> None:
    limits = Limits(1, None, time.monotonic_ns)

    async def hold() -> None:
        async with limits.slot():
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5), limits.slot():
        pass


async def test_the_providers_rate_is_kept_and_its_wait_is_told() -> None:
    limits = Limits(None, 1200, time.monotonic_ns)  # 20 a second
    began = time.monotonic()
    waits = []
    for _ in range(41):
        async with limits.slot() as wait_ns:
            waits.append(wait_ns)
    assert time.monotonic() - began >= 2.0  # the 41st may leave two windows of a second after the first
    assert max(waits) > 100_000_000


async def test_without_limits_nothing_waits() -> None:
    async with Limits(None, None, time.monotonic_ns).slot() as wait_ns:
        assert wait_ns == 0
