"""The table of metrics: name, unit, which way is better, and the function that takes it from a run.

`word` is the name without its unit, which gate expressions use (`ttft.geomean>+3%`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from kvbench.analysis import cache
from kvbench.analysis.active import decode_tokens_per_s, prefill_tokens_per_s
from kvbench.analysis.jobs import job_latencies_s, jobs_per_h_per_user, ttfat_s
from kvbench.analysis.measured import Measured, chunk_gaps_s, credited_output_tokens, in_flight_quantile
from kvbench.analysis.slo import good
from kvbench.model import Quantiles
from kvbench.runs.quantiles import quantile, quantiles

USER_ENDED = ("skipped", "cancelled")
"""Error classes that say nothing of the endpoint's latency: never sent, or ended by the user."""


@dataclass(frozen=True)
class Metric:
    """A figure of a run. `of` gives one value a turn (a job, a gap), or one value in all; None = not reported."""

    name: str
    word: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    of: Callable[[Measured], pd.Series | float | None]
    many: bool = False
    """One value a turn: a statistic of STATISTICS has to be named."""
    adjusted: bool = False
    """Turns that failed are among the values, as +inf; a statistic that they reach is None."""


def _turns(name: str, word: str, unit: str = "s") -> Metric:
    return Metric(name, word, unit, "lower", lambda ran: ran.ok[name], many=True)


def _adjusted(name: str, word: str, of: str) -> Metric:
    def values(ran: Measured) -> pd.Series:
        never = pd.Series(np.inf, index=unanswered(ran).index, dtype=float)
        joined: pd.Series = pd.concat([ran.ok[of], never])
        return joined

    return Metric(name, word, "s", "lower", values, many=True, adjusted=True)


def unanswered(ran: Measured) -> pd.DataFrame:
    """The turns that count as never answered: those that failed, but for what was never sent and what the user
    ended."""
    return ran.finals[~ran.finals["ok"] & ~ran.finals["error_class"].isin(USER_ENDED)]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _turns("ttft_s", "ttft"),
        _turns("ttft_scheduled_s", "ttft_scheduled"),
        _turns("ttfo_s", "ttfo"),
        _turns("tpot_s", "tpot", "s/token"),
        Metric("icl_s", "icl", "s", "lower", chunk_gaps_s, many=True),
        _turns("e2e_s", "e2e"),
        _turns("e2e_scheduled_s", "e2e_scheduled"),
        _adjusted("ttft_adjusted_s", "ttft_adjusted", "ttft_s"),
        _adjusted("e2e_adjusted_s", "e2e_adjusted", "e2e_s"),
        Metric(
            "interactivity_tokens_per_s",
            "interactivity",
            "tokens/s",
            "higher",
            lambda ran: ran.ok["output_tokens"] / ran.ok["e2e_s"],
            many=True,
        ),
        Metric("interactivity_p90_tokens_per_s", "interactivity_p90", "tokens/s", "higher", lambda ran: _p90(ran)),
        _turns("queue_delay_s", "queue_delay"),
        Metric("job_latency_s", "job_latency", "s", "lower", job_latencies_s, many=True),
        Metric("ttfat_s", "ttfat", "s", "lower", ttfat_s, many=True),
        Metric("jobs_per_h_per_user", "jobs_per_h", "1/h", "higher", jobs_per_h_per_user),
        Metric("hit_rate", "hit_rate", "1", "higher", lambda ran: cache.hit_rate(ran.ok)),
        Metric("eligible_hit_rate", "eligible_hit_rate", "1", "higher", lambda ran: cache.eligible_hit_rate(ran.ok)),
        Metric(
            "input_tokens_per_s",
            "input_throughput",
            "tokens/s",
            "higher",
            lambda ran: _per_s(_total(ran, "input_tokens"), ran.window),
        ),
        Metric(
            "output_tokens_per_s",
            "output_throughput",
            "tokens/s",
            "higher",
            lambda ran: _per_s(credited_output_tokens(ran, ran.window), ran.window),
        ),
        Metric(
            "steady_output_tokens_per_s",
            "steady_throughput",
            "tokens/s",
            "higher",
            lambda ran: _per_s(credited_output_tokens(ran, ran.steady), ran.steady),
        ),
        Metric("active_prefill_tokens_per_s", "active_prefill_throughput", "tokens/s", "higher", prefill_tokens_per_s),
        Metric("active_decode_tokens_per_s", "active_decode_throughput", "tokens/s", "higher", decode_tokens_per_s),
        Metric("goodput_per_s", "goodput", "1/s", "higher", lambda ran: _per_s(_good(ran, inside=True), ran.window)),
        Metric("good_fraction", "good_fraction", "1", "higher", lambda ran: _share(_good(ran, inside=False), ran)),
        Metric("error_rate", "errors", "1", "lower", lambda ran: _share(len(ran.finals) - len(ran.ok), ran)),
        Metric("cost", "cost", "currency", "lower", lambda ran: _cost(ran, "amount")),
        Metric("cost_per_job", "cost_per_job", "currency", "lower", lambda ran: _cost(ran, "per_job")),
        Metric("in_flight_p95", "in_flight_p95", "requests", "neither", lambda ran: in_flight_quantile(ran, 0.95)),
    )
}
BY_WORD = {metric.word: metric for metric in METRICS.values()}


def geomean(values: pd.Series, sessions: pd.Series | None = None) -> float | None:
    """Geometric mean of positive values; with their sessions, each session counts the same, however many turns it
    has: exp of the mean over sessions of the mean log of a session's values.
    """
    above = values[values > 0].astype(float)
    logs = pd.Series(np.log(above.to_numpy()), index=above.index)
    if logs.empty:
        return None
    return float(np.exp(logs.mean() if sessions is None else logs.groupby(sessions[logs.index]).mean().mean()))


PRICED = frozenset(metric.word for metric in METRICS.values() if metric.unit == "currency")
"""Metrics that need prices."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = ("geomean", "mean", *QUANTILES)


def statistic(ran: Measured, name: str, stat: str | None) -> float | None:
    """A metric as one value a run: itself, or `stat` of its values. geomean is weighted by session where the values
    are turns'. None = not reported.
    """
    values = METRICS[name].of(ran)
    if not isinstance(values, pd.Series):
        return values
    values = values.dropna()
    if values.empty or stat is None:
        return None
    if stat in QUANTILES:
        found = quantile(sorted(values), QUANTILES[stat])
        return None if found is None or np.isinf(found) else found
    if np.isinf(values).any():
        return None
    if stat == "geomean":
        turns = values.index.isin(ran.ok.index).all() and METRICS[name].of is not chunk_gaps_s
        return geomean(values, ran.ok["session_id"] if turns else None)
    return float(values.mean())


def distribution(ran: Measured, name: str) -> Quantiles:
    """Quantiles of a metric with a value a turn."""
    values = METRICS[name].of(ran)
    if not isinstance(values, pd.Series):
        raise TypeError(f"{name} is one value, not a distribution")
    if METRICS[name].adjusted:
        return quantiles(values[values != np.inf].dropna(), failures=len(unanswered(ran)))
    return quantiles(values.dropna())


def scalar(ran: Measured, name: str) -> float | None:
    """A metric that is one value."""
    value = METRICS[name].of(ran)
    if isinstance(value, pd.Series):
        raise TypeError(f"{name} is a distribution, not one value")
    return value


def total(frame: pd.DataFrame, column: str) -> int | None:
    """Sum over what was reported; None when nothing was."""
    values = frame[column].dropna()
    return int(values.sum()) if len(values) else None


def _total(ran: Measured, column: str) -> int | None:
    """Over the attempts that were under way inside the window."""
    if ran.window is None:
        return None
    return total(ran.attempts[ran.attempts["upload_start_at_s"] <= ran.window[1]], column)


def _per_s(amount: float | None, window: tuple[float, float] | None) -> float | None:
    return None if amount is None or window is None else amount / (window[1] - window[0])


def _cost(ran: Measured, of: Literal["amount", "per_job"]) -> float | None:
    """Exact until here: what follows takes logarithms."""
    amount = None if ran.cost is None else getattr(ran.cost, of)
    return None if amount is None else float(amount)


def _p90(ran: Measured) -> float | None:
    """1 / p90(E2E / output tokens): nine of ten requests are at least as fast."""
    told = ran.ok[ran.ok["output_tokens"].notna() & (ran.ok["output_tokens"] > 0)]
    slow = quantile(sorted((told["e2e_s"] / told["output_tokens"]).dropna()), QUANTILES["p90"])
    return 1 / slow if slow else None


def _good(ran: Measured, *, inside: bool) -> int | None:
    """Turns that met every SLO, for a rate only those that ended inside the window; None without an SLO."""
    if not ran.slos or ran.window is None:
        return None
    met = good(ran.ok, ran.slos)
    if met is None:
        return None
    return int((met & (ran.ok["end_at_s"] <= ran.window[1])).sum() if inside else met.sum())


def _share(part: int | None, ran: Measured) -> float | None:
    return None if part is None or not len(ran.finals) else part / len(ran.finals)
