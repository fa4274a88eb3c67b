"""What every experiment sends with: one request at a time, within what was said before it started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.dialects.openai import logprobs_wanted
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.profile import EndpointProfile
from kvbench.errors import FailedError, UsageError
from kvbench.model import Api, Record, Request
from kvbench.prices.pricing import PriceList
from kvbench.replay.budget import Budget as Spending
from kvbench.replay.probes.prompts import ProbePrompts
from kvbench.replay.probes.taking import Takes, cost_sentence
from kvbench.runs.writer import RunWriter

FEWEST_JUDGED = 4
MOST_EMPTY = 0.5


class Stopped(Exception):
    """An experiment cannot go on: a request failed, or the budget is spent. What was measured is kept."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment may take. None = as much as it needs."""

    requests: int
    hours: float
    tokens: int | None = None

    def check(self) -> Budget:
        """UsageError for what is not above 0."""
        given = (("--max-requests", self.requests), ("--max-hours", self.hours), ("--max-tokens", self.tokens))
        for option, value in given:
            if value is not None and not value > 0:
                raise UsageError(f"{option} {value:g}: must be more than 0")
        return self


@dataclass(frozen=True)
class ProbePlan:
    """name: of the experiment. settings: its resolved options, for run.json. confirm: is shown what the experiment
    will take at most, and says whether to go on. prices: what that is put in money by; spending: a limit on it."""

    name: str
    profile: EndpointProfile
    budget: Budget
    settings: Mapping[str, Any]
    out_dir: Path
    confirm: Callable[[str], bool]
    say: Callable[[str], None]
    prices: PriceList
    spending: Spending | None = None
    model: str | None = None
    command: tuple[str, ...] = ()
    simulated: dict[str, Any] | None = None
    needs_prompts: bool = True
    """False: the experiment makes its own, and the endpoint's words are not asked for."""


class Prober:
    """Sends an experiment's requests one at a time and keeps to its budget.

    Requests are named SERIES/NUMBER.ROLE: the estimators read a run by these names. Prompts of one SERIES/NUMBER are
    the same.
    """

    def __init__(
        self, plan: ProbePlan, endpoint: Endpoint, info: EndpointInfo, prompts: ProbePrompts | None,
        writer: RunWriter, clock: RunClock,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.info = info
        self.endpoint = endpoint
        self.requests = 0
        self.tokens = 0
        self.records: list[Record] = []
        self.usages: list[float] = []
        """How full the server said its cache was, each time that `gauges` asked."""
        self._prompts = prompts
        self._writer = writer
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._empty = 0
        self._said: Takes | None = None
        self._turns: dict[str, int] = {}

    @property
    def elapsed_s(self) -> float:
        return (self._clock.now_ns() - self._began_ns) / 1e9

    @property
    def most_input_tokens(self) -> int:
        """Longest prompt that fits beside a token of output and the little by which a text's length may be off."""
        return (self.info.max_model_len or 8_192) - 64

    def agreed(self, takes: Takes) -> bool:
        """Say what it will take, the budget's limits applied, and ask whether to go on."""
        plan, budget = self.plan, self.plan.budget
        most = replace(
            takes,
            requests=min(takes.requests, budget.requests),
            input_tokens=min([takes.input_tokens, *([budget.tokens] if budget.tokens is not None else [])]),
            hours=None if takes.hours is None else min(takes.hours, budget.hours),
        )
        self._said = most
        told = [
            f"{plan.name}: {most.sentence()}",
            cost_sentence(
                most, plan.prices, self.info.model, as_ids=self._prompts is not None and self._prompts.as_ids
            ),
        ]
        if plan.spending is not None:
            limit = plan.spending.described()
            told.append(f"it stops before {limit['currency']} {limit['amount']} can have been passed (--max-cost)")
        if self._prompts is not None and not self._prompts.exact:
            told.append("lengths are as planned, since the endpoint's tokenizer is not known")
        asked_ns = self._clock.now_ns()
        agreed = plan.confirm("; ".join(told))
        # hours are the experiment's, and not those until somebody answered
        self._began_ns += self._clock.now_ns() - asked_ns
        return agreed

    def room(self, requests: int, tokens: int) -> bool:
        """Whether so much more fits into the budget of requests and tokens."""
        budget = self.plan.budget
        return self.requests + requests <= budget.requests and (
            budget.tokens is None or self.tokens + tokens <= budget.tokens
        )

    async def ask(
        self,
        name: str,
        role: str,
        tokens: int,
        *,
        output_tokens: int = 1,
        extends: str | None = None,
        kept: int = 0,
        extra: Mapping[str, Any] | None = None,
        logprobs: bool = False,
        may_be_refused: bool = False,
    ) -> Record:
        """One request; Stopped where it fails, or where the budget allows no more.

        logprobs: ask for those of the answer. may_be_refused: an answer of HTTP 4xx is one, for a role `trial`.
        """
        assert self._prompts is not None  # an experiment that makes its own prompts sends them itself
        self._within_budget(tokens)
        content = self._prompts.content(name, tokens, extends=extends, kept=kept)
        body = self.endpoint.build_body(**content, output_tokens=output_tokens, thinking=False)
        api: Api = "chat" if "messages" in content else "completions"
        body = {**body, **(logprobs_wanted(api) if logprobs else {}), **(extra or {})}
        record = await self.send(
            name, role, body, tokens, output_tokens, api, wanted=tokens, may_be_refused=may_be_refused
        )
        if not record.ok:
            return record
        self._empty += record.clock.first_token is None
        # a token that is no whole character, or ends the text, comes as nothing: one now and then, not most
        if self.requests >= FEWEST_JUDGED and self._empty > MOST_EMPTY * self.requests:
            raise Stopped(f"{self._empty} of {self.requests} answers had no token in them")
        self._prompts.learn(name, record)
        return record

    async def send(
        self,
        name: str,
        role: str,
        body: Mapping[str, Any],
        tokens: int,
        output_tokens: int,
        api: Api = "chat",
        *,
        wanted: int | None = None,
        may_be_refused: bool = False,
    ) -> Record:
        """One request with a body of the experiment's own, of about so many tokens; Stopped, may_be_refused: as `ask`.
        wanted: tokens that the prompt was made to have, where it was."""
        self._within_budget(tokens)
        self.requests += 1
        self.tokens += tokens
        turn = self._turns[name] = self._turns.get(name, -1) + 1
        request = Request(
            request_id=f"{name}.{role}" if role != "again" else f"{name}.again{turn}",
            session_id=name,
            root_id=name,
            turn=turn,
            body=dict(body),
            api=api,
            wanted_output_tokens=output_tokens,
            wanted_input_tokens=wanted,
        )
        record = await self._spend(request)
        # an endpoint whose tokenizer is not known may count more than planned
        self.tokens += max(0, (record.usage.input_tokens or 0) - tokens)
        self._writer.record(record)
        self.records.append(replace(record, clock=replace(record.clock, chunks=[]), usage_raw=None))
        if may_be_refused and 400 <= (record.http_status or 0) < 500:
            return record
        if not record.ok:
            raise Stopped(f"request {record.request_id} failed: {record.error_class}: {record.error_message}")
        return record

    async def _spend(self, request: Request) -> Record:
        """Stopped where it might cost more than is left."""
        spending = self.plan.spending
        reserved = None if spending is None else await spending.reserve(request.body)
        if spending is not None and reserved is None:
            limit = spending.described()
            raise Stopped(f"the budget of {limit['currency']} {limit['amount']} is spent (--max-cost)")
        now = self._clock.now_ns()
        record = await self.endpoint.send(replace(request, scheduled_ns=now, due_ns=now))
        if spending is not None and reserved is not None:
            spending.settle(reserved, record)
        return record

    @property
    def run_id(self) -> str:
        return self._writer.info.run_id

    async def gauges(self) -> bool:
        """Ask the server how full its cache is, and keep what it says; False where it does not say."""
        asked_ns = self._clock.now_ns()
        metrics = await self.endpoint.scrape()
        if metrics is None or metrics.kv_usage is None:
            return False
        self.usages.append(metrics.kv_usage)
        names = ("kv_usage", "running", "waiting", "preemptions")
        now_ns = self._clock.now_ns()
        self._writer.event("gauges", now_ns, took_ns=now_ns - asked_ns, **{n: getattr(metrics, n) for n in names})
        return True

    def event(self, kind: str, **data: Any) -> None:
        self._writer.event(kind, self._clock.now_ns(), **data)

    async def restored_tokens(self) -> float | None:
        """Tokens that came from below HBM so far, by the server's own counters; None where it does not tell."""
        try:
            metrics = await self.endpoint.scrape()
        except FailedError:
            return None
        by_source = None if metrics is None else metrics.prompt_tokens_by_source
        return None if by_source is None else by_source.get("external_kv_transfer")

    async def sleep_until(self, elapsed_s: float) -> None:
        await asyncio.sleep(max(0.0, elapsed_s - self.elapsed_s))

    def _within_budget(self, tokens: int) -> None:
        budget = self.plan.budget
        if self.requests >= budget.requests:
            raise Stopped(f"the budget of {budget.requests:,} requests is spent (--max-requests)")
        if budget.tokens is not None and self.tokens + tokens > budget.tokens:
            raise Stopped(f"the budget of {budget.tokens:,} prompt tokens is spent (--max-tokens)")
        if self._said is not None and self._said.hours is not None and self.elapsed_s > self._said.hours * 3600:
            raise Stopped(f"the {self._said.hours:.2g} h that were said before it started are over")
        if self.elapsed_s > budget.hours * 3600:
            raise Stopped(f"the budget of {budget.hours:g} hours is spent (--max-hours)")
