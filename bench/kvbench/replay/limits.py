"""Limits that were asked for: requests in flight, and the provider's requests per minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncio_throttle import Throttler

POLL_S = 0.01


class Limits:
    """`slot()` waits until a request may leave, yields how long that took in ns, and frees its place at the end.

    The rate limit is checked after a place is free, so that a request holds no token of it while it queues. The
    throttler polls every 10 ms, which is why it only ever delays a request that a limit was asked for.
    """

    def __init__(self, max_in_flight: int | None, requests_per_minute: float | None, now_ns: Callable[[], int]) -> None:
        self._places = asyncio.Semaphore(max_in_flight) if max_in_flight is not None else None
        self._throttler = None
        if requests_per_minute is not None:
            # windows of about a second: no burst of a minute's worth, and polling does not hold the rate down
            window = max(1, int(requests_per_minute / 60))
            period_s = window * 60.0 / requests_per_minute
            self._throttler = Throttler(rate_limit=window, period=period_s, retry_interval=POLL_S)
        self._now_ns = now_ns

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        if self._places is None and self._throttler is None:
            yield 0
            return
        began_ns = self._now_ns()
        if self._places is not None:
            await self._places.acquire()
        try:
            if self._throttler is not None:
                async with self._throttler:
                    pass
            yield self._now_ns() - began_ns
        finally:
            if self._places is not None:
                self._places.release()
