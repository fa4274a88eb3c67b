"""Bytes a token of one model over another's, where both had the same memory: it need not be known, as it cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.analysis.fit.memory import memory_of
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.runs.reader import Run

NAME = "bytes_per_token_ratio"
CAPACITIES = ("capacity_tokens", "capacity_tokens_of_gauge")


class _Share(NamedTuple):
    """Of the memory that a token takes."""

    value: float
    low: float
    high: float
    named: str
    n: int


def fit_ratio(runs: Sequence[Run], reports: Sequence[FitReport]) -> FitReport | None:
    """The first model's over the second's, from the first run of each that has a capacity; None where the runs are not
    of two models, or none has one. m1 / m2 = C2 / C1."""
    models = list(dict.fromkeys(str((run.info.server or {}).get("model")) for run in runs))
    if len(models) != 2:
        return None
    if all(_share(report) is None for report in reports):
        return None
    sides = []
    for model in models:
        of = [(run, report) for run, report in zip(runs, reports, strict=True) if run.info.server.get("model") == model]
        found = next(((run, share) for run, report in of if (share := _share(report)) is not None), None)
        if found is None:
            return _refused(f"no run of {model} gives a capacity")
        sides.append(found)
    (first_run, first), (second_run, second) = sides
    memories = [memory_of(run, None) for run in (first_run, second_run)]
    known = [memory.bytes_ for memory in memories if memory is not None]
    if len(set(known)) > 1:
        return _refused(
            f"the memories differ, {known[0]:,} and {known[1]:,} bytes: each run has bytes a token of its own"
        )
    estimate = Estimate(
        name=NAME,
        value=first.value / second.value,
        low=first.low / second.high,
        high=first.high / second.low,
        unit="times",
        method=f"{models[0]} over {models[1]}: what a token takes of the same memory ({first.named}, {second.named})",
        n=first.n + second.n,
    )
    same = (
        f"{models[0]} and {models[1]} had {known[0]:,} bytes for the KV cache each"
        if len(known) == 2
        else f"{models[0]} and {models[1]} had the same memory for the KV cache, which then cancels"
    )
    return FitReport(runs=(), estimates=(estimate,), assumed=(same,))


def _share(report: FitReport) -> _Share | None:
    """None without a figure that is bounded on both sides."""
    for name in CAPACITIES:
        found = report.named(name)
        if found is not None and found.value and found.low and found.high:
            return _Share(1 / found.value, 1 / found.high, 1 / found.low, name, found.n)
    found = report.named("bytes_per_token")
    if found is not None and found.unit == "memory/token" and found.value and found.low and found.high:
        return _Share(found.value, found.low, found.high, "share of the memory", found.n)
    return None


def _refused(reason: str) -> FitReport:
    experiment = "kvbench probe capacity on both, with the same memory for the KV cache"
    return FitReport(runs=(), refusals=(Refusal(name=NAME, reason=reason, experiment=experiment),))
