"""One run from an opened trace to a closed run directory: connect, replay, ask for token ids, judge, write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from kvbench import __version__
from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.metrics import ServerMetrics
from kvbench.endpoints.profile import EndpointProfile
from kvbench.errors import FailedError, KvbenchError
from kvbench.model import Record, RunInfo, Warning
from kvbench.replay.account import Account
from kvbench.replay.budget import Budget
from kvbench.replay.environment import environment
from kvbench.replay.expectation import incomplete_expectation
from kvbench.replay.expecting import Expecting
from kvbench.replay.hashed import Choice, HashPrompts, hash_prompts
from kvbench.replay.judged import judged
from kvbench.replay.limits import Limits
from kvbench.replay.monitor import ClientHealth, Monitor
from kvbench.replay.runner import Runner
from kvbench.replay.schedule import Arrival
from kvbench.replay.scraper import Scraper
from kvbench.replay.sender import EndpointSender, thinking
from kvbench.replay.settings import RunSettings
from kvbench.replay.signals import signals
from kvbench.runs import agentx
from kvbench.runs.writer import MEASURING, RunWriter
from kvbench.traces.native import TraceFile

TICK_S = 0.5


class Watcher(Protocol):
    """Is shown how a run goes on; every call returns at once."""

    def start(self) -> None: ...
    def record(self, record: Record) -> None: ...
    def tick(self, in_flight: int, lag_s: float, sessions_done: int) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What to replay where. model: overrides what the trace and the profile name; model_map: some of the trace's names.
    command: as the user typed it."""

    trace: TraceFile
    profile: EndpointProfile
    settings: RunSettings
    out_dir: Path
    model: str | None = None
    model_map: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    simulated: dict[str, Any] | None = None
    budget: Budget | None = None
    """Stops the run before it costs more than a limit."""


async def replay(plan: Plan, watcher: Watcher) -> Path:
    """Replay and return the run directory, whose run.json says how it ended (done or interrupted).

    ConfigError and FailedError before the first turn leave no run directory; after it the directory says `failed`.
    """
    _raise_open_files()
    clock = RunClock.start()
    if plan.budget is not None:
        plan.budget.zero_unix_ns = clock.realtime_shift_ns
    endpoint = await Endpoint.open(plan.profile, clock)
    try:
        info = await endpoint.discover(plan.model)
        thinks = thinking(plan.trace, info, plan.settings)
        _sender(plan, endpoint, info, thinks).check_models(plan.trace)
        if plan.budget is not None:
            for name in _models(plan, info):
                plan.budget.check(name)
        choice = Choice(tokenizer=plan.profile.tokenizer, prompts=plan.profile.hash_prompts)
        hashed, doubts = await hash_prompts(plan.trace, endpoint, choice, live=plan.settings.history == "live")
        with _writer(plan, info, thinks, clock) as writer:
            await _Replay(plan, endpoint, info, clock, writer, watcher, thinks, hashed, warnings=doubts).run()
            return writer.dir
    finally:
        await endpoint.aclose()


def _models(plan: Plan, info: EndpointInfo) -> list[str | None]:
    """Those that will be asked, as far as the trace tells."""
    if plan.model is not None:
        return [plan.model]
    return [plan.model_map.get(name, name) for name in plan.trace.models] or [info.model]


def _sender(plan: Plan, endpoint: Endpoint, info: EndpointInfo, thinks: bool | None) -> EndpointSender:
    return EndpointSender(endpoint, info, plan.settings, plan.model, thinks, plan.model_map)


def _raise_open_files() -> None:
    """As many sockets as the system allows: the usual soft limit of 1,024 is less than a large run has streams."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _writer(plan: Plan, info: EndpointInfo, thinks: bool | None, clock: RunClock) -> RunWriter:
    trace = plan.trace
    name = trace.header.name or trace.path.stem
    return RunWriter.create(
        plan.out_dir,
        RunInfo(
            kvbench_version=__version__,
            run_id="",
            name=name,
            status="started",
            started_at=_utc_now(),
            zero_unix_ns=clock.realtime_shift_ns,
            command=plan.command,
            endpoint=plan.profile.safe_dict() | ({"simulated": plan.simulated} if plan.simulated else {}),
            server=msgspec.to_builtins(info),
            trace={
                "name": name,
                "file": trace.path.name,
                "sha256": trace.sha256,
                "sessions": trace.session_count,
                "trees": trace.tree_count,
                "turns": trace.turn_count,
                "format": trace.imported.format if trace.imported else "native",
                "import": msgspec.to_builtins(trace.imported),
            },
            settings=msgspec.to_builtins(plan.settings)
            | {"model": plan.model, "model_map": dict(plan.model_map)}
            | ({} if plan.budget is None else {"max_cost": plan.budget.described()})
            | ({"thinking": "disabled"} if thinks is False else {}),
            seed=plan.settings.seed,
            environment=environment(),
        ),
    )


@dataclass
class _Replay:
    plan: Plan
    endpoint: Endpoint
    info: EndpointInfo
    clock: RunClock
    writer: RunWriter
    watcher: Watcher
    thinks: bool | None
    hashed: HashPrompts | None
    records: list[Record] = field(default_factory=list)
    """Without their chunk arrivals, so that little stays in memory."""
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    warnings: list[Warning] = field(default_factory=list)
    sessions_ended: int = 0
    trace_s: float | None = None
    interrupted: bool = False
    aborted: bool = False
    _written: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.account = Account(self.endpoint.balance if self.plan.profile.balance else None, self._balance)

    async def run(self) -> None:
        began_ns = self.clock.now_ns()
        health: ClientHealth | None = None
        status, failure = "failed", None
        try:
            await self.account.start()
            health = await self._measure()
            if not self.aborted:
                await self._afterwards()
            status = "interrupted" if self.interrupted else "done"
        except asyncio.CancelledError:
            status = "interrupted"
            if not self.interrupted:
                raise
        except (KvbenchError, OSError) as error:
            failure = str(error)
            raise
        finally:
            self.watcher.stop()
            with contextlib.suppress(FailedError):
                self.writer.update(self._final_info(status, failure, began_ns, health))

    def _sender(self) -> EndpointSender:
        return _sender(self.plan, self.endpoint, self.info, self.thinks)

    # ------------------------------------------------------------------------------------------------ measuring

    async def _measure(self) -> ClientHealth:
        settings = self.plan.settings
        sender = self._sender()
        rate = self.plan.profile.limits.requests_per_minute
        runner = Runner(
            self.plan.trace,
            sender,
            settings,
            Limits(self._max_in_flight(), rate, self.clock.now_ns),
            self,
            self.clock.now_ns,
            self.writer.info.run_id,
            resend_reasoning=self.endpoint.resends_reasoning,
            hashed=self.hashed,
            spending=self.plan.budget,
        )
        self.writer.trace_lines(b"".join(self.plan.trace.raw_head()))
        scraper = Scraper(self.endpoint.scrape, self._metrics)
        await scraper.start()
        monitor = Monitor(self.clock.check_step)
        task = asyncio.ensure_future(runner.run())
        ticking = asyncio.ensure_future(self._tick(runner, monitor))
        self._say_overridden()
        self.watcher.start()
        monitor.start()

        def on_signal() -> None:
            if self.interrupted:
                self.aborted = True
                task.cancel()
                return
            self.interrupted = True
            self.writer.event("interrupted", self.clock.now_ns(), in_flight=runner.in_flight)
            self.watcher.say(f"stopping: {runner.in_flight} requests in flight are let finish; again to abort them")
            runner.stop()

        try:
            with signals(on_signal):
                await task
        except asyncio.CancelledError:
            if not self.aborted:
                raise
        finally:
            health = monitor.stop()
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            self.watcher.tick(runner.in_flight, monitor.last_lag_s, self.sessions_ended)
            self.watcher.stop()
            self.trace_s = runner.trace_s
            await scraper.stop()
            self.warnings += scraper.warnings
        return health

    def _say_overridden(self) -> None:
        """Before a quarter of an hour is spent on a run that cannot be valid."""
        info = self.writer.info
        if self.plan.settings.rules is not None:
            for reason in agentx.overridden(info.settings, info.endpoint, info.server):
                self.watcher.say(f"not valid by the agentx rules: {reason}")

    def _max_in_flight(self) -> int | None:
        """What was asked for, but never more than the endpoint's own limit."""
        wanted, limit = self.plan.settings.max_in_flight, self.info.in_flight_limit
        if limit is None or (wanted is not None and wanted <= limit):
            return wanted
        if wanted is not None:
            self.warnings.append(
                Warning(
                    code="in_flight_limit",
                    message=f"--max-in-flight {wanted:,} is above the endpoint's limit of {limit:,} requests at a time",
                    advice="where the account has a higher limit, set limits.in_flight in an endpoint TOML",
                )
            )
        return limit

    async def _tick(self, runner: Runner, monitor: Monitor) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.watcher.tick(runner.in_flight, monitor.last_lag_s, self.sessions_ended)
            self.writer.event("lag", self.clock.now_ns(), lag_ns=round(monitor.last_lag_s * 1e9))

    # ------------------------------------------------------------------------------------- observer of the runner

    def record(self, record: Record) -> None:
        self.writer.record(record)
        self.records.append(replace(record, clock=replace(record.clock, chunks=[]), usage_raw=None))
        self.watcher.record(record)

    def tree_started(self, arrival: Arrival, root_id: str) -> None:
        self.arrivals[root_id] = arrival
        if arrival.index not in self._written:
            self._written.add(arrival.index)
            self.writer.trace_lines(b"".join(self.plan.trace.raw_lines(arrival.index)))

    def session_ended(self) -> None:
        self.sessions_ended += 1

    def tree_ended(self, root_id: str, complete: bool) -> None:
        self.writer.event("tree_ended", self.clock.now_ns(), root_id=root_id, complete=complete)

    def measuring(self, at_ns: int) -> None:
        self.writer.event(MEASURING, at_ns, duration_s=self.plan.settings.duration_s)
        self.watcher.say(f"warmed up: measuring for {self.plan.settings.duration_s:g} s from here on")

    def _balance(self, phase: str, totals: dict[str, str]) -> None:
        self.writer.event("balance", self.clock.now_ns(), phase=phase, totals=totals)

    def _metrics(self, phase: str, metrics: ServerMetrics, took_ns: int) -> None:
        now_ns = self.clock.now_ns()
        self.writer.event("metrics", now_ns, phase=phase, took_ns=took_ns, metrics=metrics.to_dict())

    # ----------------------------------------------------------------------------------------------- afterwards

    async def _afterwards(self) -> None:
        """A SIGINT or SIGTERM gives up what is not worked out yet, and nothing that was measured."""
        task = asyncio.ensure_future(self._conclude())
        stopped = False

        def on_signal() -> None:
            nonlocal stopped
            stopped = self.interrupted = True
            task.cancel()

        with signals(on_signal):
            try:
                await task
            except asyncio.CancelledError:
                if not stopped:
                    raise
                self.writer.event("interrupted", self.clock.now_ns(), in_flight=0)
                self.warnings.append(incomplete_expectation("the run was interrupted while they were worked out"))

    async def _conclude(self) -> None:
        await self.account.end()
        await self._expect()

    async def _expect(self) -> None:
        expecting = Expecting(
            self.plan.trace,
            self.plan.profile,
            self.plan.settings,
            self.endpoint,
            self.info,
            self.writer,
            self.hashed,
            self._sender().tokenize,
            simulated=bool(self.plan.simulated),
        )
        self.warnings += await expecting.work_out(self.records, self.arrivals)

    def _final_info(self, status: str, failure: str | None, began_ns: int, health: ClientHealth | None) -> RunInfo:
        measured = [r for r in self.records if r.phase == "measure"]
        error, trust = judged(measured, health)
        trace = self.writer.info.trace
        settings = self.plan.settings
        if settings.live_trees is None and settings.rate is None:
            trace = trace | {"span_s": self.trace_s}
        if self.hashed is not None:
            trace = trace | {"prompts": self.hashed.described()}
        info = replace(
            self.writer.info,
            status=status,
            failure=failure,
            ended_at=_utc_now(),
            wall_s=(self.clock.now_ns() - began_ns) / 1e9,
            own_error=error,
            trust=trust,
            trace=trace,
            warnings=(*self.endpoint.warnings, *self.account.warnings, *self.warnings, *self._budget_warnings()),
            balance=self.account.spent,
        )
        return replace(info, rules=agentx.check(info, self.records))

    def _budget_warnings(self) -> list[Warning]:
        return [] if self.plan.budget is None else self.plan.budget.warnings()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
