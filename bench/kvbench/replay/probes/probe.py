"""One experiment from an endpoint's discovery to a closed run directory; what is sent when is the experiment's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kvbench import __version__
from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.metrics import ServerMetrics
from kvbench.errors import FailedError, KvbenchError
from kvbench.model import Record, RunInfo, Warning
from kvbench.replay.environment import environment
from kvbench.replay.judged import judged
from kvbench.replay.monitor import ClientHealth, Monitor
from kvbench.replay.probes.prober import ProbePlan, Prober, Stopped
from kvbench.replay.probes.prompts import ProbePrompts
from kvbench.replay.scraper import Scraper
from kvbench.replay.signals import signals
from kvbench.runs.writer import RunWriter

Experiment = Callable[[Prober], Awaitable[None]]


async def run_probe(plan: ProbePlan, experiment: Experiment) -> Path:
    """Run it and return its run directory; a probe that stopped early says so in an event `stopped`.

    ConfigError and FailedError before the first request leave no run directory.
    """
    clock = RunClock.start()
    endpoint = await Endpoint.open(plan.profile, clock)
    try:
        info = await endpoint.discover(plan.model)
        if plan.spending is not None:
            plan.spending.zero_unix_ns = clock.realtime_shift_ns
            plan.spending.check(info.model)
        with _writer(plan, info) as writer:
            await _Probing(plan, endpoint, info, clock, writer, experiment).run()
            return writer.dir
    finally:
        await endpoint.aclose()


def _writer(plan: ProbePlan, info: EndpointInfo) -> RunWriter:
    return RunWriter.create(
        plan.out_dir,
        RunInfo(
            kvbench_version=__version__,
            run_id="",
            name=f"probe-{plan.name}",
            status="started",
            started_at=_utc_now(),
            command=plan.command,
            endpoint=plan.profile.safe_dict() | ({"simulated": plan.simulated} if plan.simulated else {}),
            server=msgspec.to_builtins(info),
            settings={
                "probe": plan.name,
                **plan.settings,
                "budget": msgspec.to_builtins(plan.budget)
                | ({} if plan.spending is None else {"max_cost": plan.spending.described()}),
            },
            environment=environment(),
        ),
    )


@dataclass
class _Probing:
    plan: ProbePlan
    endpoint: Endpoint
    info: EndpointInfo
    clock: RunClock
    writer: RunWriter
    experiment: Experiment
    interrupted: bool = False
    warnings: list[Warning] = field(default_factory=list)

    async def run(self) -> None:
        began_ns = self.clock.now_ns()
        monitor = Monitor(self.clock.check_step)
        health: ClientHealth | None = None
        status, failure = "failed", None
        prompts: ProbePrompts | None = None
        prober: Prober | None = None
        try:
            if self.plan.needs_prompts:
                prompts = await ProbePrompts.of(self.endpoint, self.writer.info.run_id)
            prober = Prober(self.plan, self.endpoint, self.info, prompts, self.writer, self.clock)
            monitor.start()
            try:
                await self._experiment(prober)
            finally:
                health = monitor.stop()
            status = "interrupted" if self.interrupted else "done"
        except (KvbenchError, OSError) as error:
            failure = str(error)
            raise
        finally:
            records = prober.records if prober is not None else []
            info = self._info(records, status, failure, began_ns, health)
            if prompts is not None:
                info = replace(info, settings={**info.settings, "prompts": prompts.described()})
            with contextlib.suppress(FailedError):
                self.writer.update(info)

    async def _experiment(self, prober: Prober) -> None:
        scraper = Scraper(self.endpoint.scrape, self._metrics)
        await scraper.start()
        task = asyncio.ensure_future(self.experiment(prober))

        def on_signal() -> None:
            self.interrupted = True
            self.plan.say("stopping: what was measured is kept")
            task.cancel()

        try:
            with signals(on_signal):
                await task
        except Stopped as stop:
            self.plan.say(f"stopped: {stop}")
            self.writer.event("stopped", self.clock.now_ns(), reason=str(stop))
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
            self.writer.event("interrupted", self.clock.now_ns(), in_flight=1)
        finally:
            await scraper.stop()
            self.warnings += scraper.warnings

    def _metrics(self, phase: str, metrics: ServerMetrics, took_ns: int) -> None:
        now_ns = self.clock.now_ns()
        self.writer.event("metrics", now_ns, phase=phase, took_ns=took_ns, metrics=metrics.to_dict())

    def _info(
        self, records: list[Record], status: Any, failure: str | None, began_ns: int, health: ClientHealth | None
    ) -> RunInfo:
        error, trust = judged(records, health)
        return replace(
            self.writer.info,
            status=status,
            failure=failure,
            ended_at=_utc_now(),
            wall_s=(self.clock.now_ns() - began_ns) / 1e9,
            own_error=error,
            trust=trust,
            warnings=(*self.endpoint.warnings, *self.warnings, *self._spending_warnings()),
        )

    def _spending_warnings(self) -> list[Warning]:
        return [] if self.plan.spending is None else self.plan.spending.warnings()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
