"""The table of metrics: name, unit, which way is better, and the function that takes it from a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from kvbench.analysis import cache
from kvbench.analysis.measured import (
    Measured,
    chunk_gaps_s,
    credited_output_tokens,
    in_flight_quantile,
    job_latencies_s,
)
from kvbench.model import Quantiles
from kvbench.runs.quantiles import quantiles

USER_ENDED = ("skipped", "cancelled")
"""Error classes that say nothing of the endpoint's latency: never sent, or ended by the user."""


@dataclass(frozen=True)
class Metric:
    """A figure of a run. `of` gives one value a turn (a job, a gap), or one value in all; None = not reported."""

    name: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    of: Callable[[Measured], pd.Series | float | None]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft_s", "s", "lower", lambda ran: ran.ok["ttft_s"]),
        Metric("ttft_scheduled_s", "s", "lower", lambda ran: ran.ok["ttft_scheduled_s"]),
        Metric("ttfo_s", "s", "lower", lambda ran: ran.ok["ttfo_s"]),
        Metric("tpot_s", "s/token", "lower", lambda ran: ran.ok["tpot_s"]),
        Metric("icl_s", "s", "lower", chunk_gaps_s),
        Metric("e2e_s", "s", "lower", lambda ran: ran.ok["e2e_s"]),
        Metric("e2e_scheduled_s", "s", "lower", lambda ran: ran.ok["e2e_scheduled_s"]),
        Metric(
            "interactivity_tokens_per_s", "tokens/s", "higher", lambda ran: ran.ok["output_tokens"] / ran.ok["e2e_s"]
        ),
        Metric("queue_delay_s", "s", "lower", lambda ran: ran.ok["queue_delay_s"]),
        Metric("job_latency_s", "s", "lower", job_latencies_s),
        Metric("hit_rate", "1", "higher", lambda ran: cache.hit_rate(ran.ok)),
        Metric("eligible_hit_rate", "1", "higher", lambda ran: cache.eligible_hit_rate(ran.ok)),
        Metric("input_tokens_per_s", "tokens/s", "higher", lambda ran: _per_s(_total(ran, "input_tokens"), ran)),
        Metric("output_tokens_per_s", "tokens/s", "higher", lambda ran: _per_s(credited_output_tokens(ran), ran)),
        Metric("in_flight_p95", "requests", "neither", lambda ran: in_flight_quantile(ran, 0.95)),
    )
}


def distribution(ran: Measured, name: str, *, adjusted: bool = False) -> Quantiles:
    """Quantiles of a metric with a value a turn. Adjusted: every failed turn counts as +inf, but for those that were
    never sent or that the user ended.
    """
    values = METRICS[name].of(ran)
    if not isinstance(values, pd.Series):
        raise TypeError(f"{name} is one value, not a distribution")
    failed = ran.finals[~ran.finals["ok"] & ~ran.finals["error_class"].isin(USER_ENDED)]
    return quantiles(values.dropna(), failures=len(failed) if adjusted else None)


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


def _per_s(tokens: float | None, ran: Measured) -> float | None:
    return None if tokens is None or not ran.window_s else tokens / ran.window_s
