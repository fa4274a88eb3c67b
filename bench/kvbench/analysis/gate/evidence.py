"""A run as the gate sees it: its statistics, and all that has to be alike for them to be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.measured import Measured, measured
from kvbench.analysis.metrics import Metric, statistic
from kvbench.analysis.pricing.run_cost import RunCost
from kvbench.analysis.slo import Slo
from kvbench.analysis.summary import summarise
from kvbench.model import RulesCheck, RunInfo
from kvbench.prices.pricing import PriceList
from kvbench.runs import agentx
from kvbench.runs.reader import Run, load_run, status_text

Tokens = tuple[int | None, int | None]
"""Input and output tokens."""


@dataclass(frozen=True)
class Evidence:
    """One run, or one result of another tool.

    facts: what has to be alike, by dotted names (trace.sha256, settings.rate, server.server ...). problems: why this
    run cannot be used whatever it is compared with. requested, completed, failed: turns; None = not told. turns: tokens
    of each ok turn by (session, turn); None where only `tokens`, their sums, are known. marks: one a request, so
    unlikely to be the same in two runs that they tell a copy. value(metric, stat): None = not reported.
    """

    label: str
    source: str
    started_at: datetime | None
    ended_at: datetime | None
    facts: Mapping[str, str]
    value: Callable[[Metric, str | None], float | None]
    requested: int | None
    completed: int | None
    failed: int | None
    tokens: Tokens = (None, None)
    turns: Mapping[tuple[str, int], Tokens] | None = None
    same_turns: bool = True
    """The trace is replayed once: every run has the same turns."""
    marks: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()
    url: str | None = None
    """Of the server, where two runs at a time would disturb each other."""
    rules: RulesCheck | None = None
    cost: RunCost | None = None
    """None: not priced."""
    measured: Measured | None = field(default=None, repr=False)

    @property
    def failed_share(self) -> float:
        counted = (self.completed or 0) + (self.failed or 0)
        return (self.failed or 0) / counted if counted else 0.0


def from_run(path: Path, slos: tuple[Slo, ...] = (), prices: PriceList | None = None) -> Evidence:
    """A run directory, priced where there are prices. Raises what `load_run` raises."""
    run = load_run(path)
    ran = measured(run, slos, prices)
    finals = [record for record in run.records if record.final]
    reused = run.info.settings.get("duration_s") is not None
    requested = None if reused else run.info.trace.get("turns")
    turns = {
        (str(session), int(turn)): (_count(given), _count(got))
        for session, turn, given, got in zip(
            ran.ok["session_id"], ran.ok["turn"], ran.ok["input_tokens"], ran.ok["output_tokens"], strict=True
        )
    }
    simulated = run.info.endpoint.get("simulated") is not None
    rules = run.info.rules or agentx.check(run.info, run.records)
    return Evidence(
        label=run.info.run_id,
        source="kvbench",
        started_at=moment(run.info.started_at),
        ended_at=moment(run.info.ended_at),
        facts=facts_of(run.info),
        value=lambda metric, stat: statistic(ran, metric.name, stat),
        # Warm-up turns are turns of the trace too: those that are not measured are not missing.
        requested=None if requested is None else requested - (len(finals) - len(ran.finals)),
        completed=len(ran.ok),
        failed=len(ran.finals) - len(ran.ok),
        turns=turns,
        same_turns=not reused,
        marks=frozenset(
            hash((r.session_id, r.turn, r.attempt, r.clock.upload_start, r.clock.first_token, r.clock.end))
            for r in run.records
            if r.clock.end is not None
        ),
        problems=tuple(_problems(run, rules)),
        rules=rules,
        url=None if simulated else run.info.endpoint.get("url"),
        cost=ran.cost,
        measured=ran,
    )


_NOT_COMPARED = {
    "endpoint": {"key", "metrics_urls", "headers", "balance", "simulated"},
    "server": {"models", "metrics_urls"},
    "environment": {"load_average_1min"},
}


def facts_of(info: RunInfo) -> dict[str, str]:
    """What two runs must share to be compared, flat: trace, settings, endpoint, server, environment, version."""
    simulated = info.endpoint.get("simulated")
    endpoint = {k: v for k, v in info.endpoint.items() if k not in _NOT_COMPARED["endpoint"]}
    if simulated is not None:
        # It listens on another port each time.
        endpoint = {**endpoint, "url": None, "simulated": simulated}
    parts: dict[str, Any] = {
        "trace": {"sha256": info.trace.get("sha256"), "turns": info.trace.get("turns")},
        "settings": info.settings,
        "endpoint": endpoint,
        "server": {k: v for k, v in info.server.items() if k not in _NOT_COMPARED["server"]},
        "environment": {k: v for k, v in info.environment.items() if k not in _NOT_COMPARED["environment"]},
        "kvbench_version": info.kvbench_version,
    }
    return flatten(parts)


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} as {"a.b": "1"}; what is null is left out."""
    if isinstance(value, dict):
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{name}.{key}" if name else str(key))
        return flat
    if value is None:
        return {}
    return {name: value if isinstance(value, str) else msgspec.json.encode(value).decode()}


def moment(text: str | None) -> datetime | None:
    """A time as ISO 8601; None where it is none, or names no zone."""
    try:
        at = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _problems(run: Run, rules: RulesCheck | None) -> list[str]:
    found = []
    status = status_text(run.info, run.path)
    if status != "done":
        found.append(f"is {status}")
    # A run whose end was never written has no verdict of its own.
    trust = run.info.trust or summarise(run).trust
    if trust.verdict != "ok":
        found.append(f"is degraded: {'; '.join(trust.reasons)}")
    if rules is not None and not rules.valid:
        found.append(f"is not valid by the {rules.name} rules: {'; '.join(rules.reasons)}")
    return found


def _count(value: Any) -> int | None:
    import pandas as pd

    return None if pd.isna(value) else int(value)
