"""A run that can be told to stop: what waits, wakes and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Stop:
    """`begin()` inside the event loop, before anything waits. `stop()` may come at any time, also before."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.stopped = False
        self._now_ns = now_ns
        self._told: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self._told = asyncio.get_running_loop().create_future()
        if self.stopped:
            self._told.set_result(None)

    def stop(self) -> None:
        self.stopped = True
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    async def until(self, at_ns: int) -> bool:
        """Sleep until `at_ns`, never less; False as soon as the run is told to stop."""
        loop = asyncio.get_running_loop()
        while not self.stopped:
            left_ns = at_ns - self._now_ns()
            if left_ns <= 0:
                return True
            if left_ns < 1_000_000:
                await asyncio.sleep(0)  # the loop's timers have a resolution of 1 ms
                continue
            timer = loop.create_future()
            handle = loop.call_later((left_ns - 500_000) / 1e9, _set, timer)
            try:
                await self.unless(timer)
            finally:
                handle.cancel()
        return False

    async def unless(self, waited: Any) -> bool:
        """Wait for an awaitable, or for the run to be told to stop: False then."""
        assert self._told is not None
        task = asyncio.ensure_future(waited)
        await asyncio.wait((task, self._told), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return not self.stopped


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
