"""The server's own metrics before, during and after a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from kvbench.endpoints.metrics import ServerMetrics
from kvbench.errors import FailedError
from kvbench.model import Warning

INTERVAL_S = 5.0
"""Rendering /metrics takes a busy API server some milliseconds: often enough to see a queue, too rare to make one."""


class Scraper:
    """Scrapes by `scrape` (None: the endpoint has no metrics) and hands each snapshot to
    `emit(phase, metrics, took_ns)`: it is of some moment of the `took_ns` that asking took.

    The first failure ends it with a warning: without an end there is no change to tell.
    """

    def __init__(
        self, scrape: Callable[[], Awaitable[ServerMetrics | None]], emit: Callable[[str, ServerMetrics, int], None]
    ) -> None:
        self._scrape_once = scrape
        self._emit = emit
        self._task: asyncio.Task[None] | None = None
        self.warnings: list[Warning] = []

    async def start(self) -> None:
        if await self._scrape("before"):
            self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.warnings:
            await self._scrape("after")

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not await self._scrape("during"):
                return

    async def _scrape(self, phase: str) -> bool:
        asked_ns = time.monotonic_ns()
        try:
            metrics = await self._scrape_once()
        except FailedError as error:
            self.warnings.append(
                Warning(
                    code="metrics_unavailable",
                    message=f"the server's metrics could not be read {phase} the run: {error.message}",
                    advice="name the right URLs as metrics_urls in an endpoint TOML",
                )
            )
            return False
        if metrics is None:
            return False
        self._emit(phase, metrics, time.monotonic_ns() - asked_ns)
        return True
