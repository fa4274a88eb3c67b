"""Bytes a token of one model over another's, where both had the same memory: it need not be known, as it cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.analysis.fit.memory import Memory, memory_of
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


class _Side(NamedTuple):
    """What one run says."""

    memory: Memory | None
    share: _Share


def fit_ratio(runs: Sequence[Run], reports: Sequence[FitReport]) -> FitReport | None:
    """The first model's over the second's, from the first two runs that had, or may have had, the same memory; None
    where the runs are not of two models, or none has a capacity. m1 / m2 = C2 / C1. Refused where other such runs
    contradict them."""
    models = list(dict.fromkeys(str((run.info.server or {}).get("model")) for run in runs))
    if len(models) != 2:
        return None
    if all(_share(report) is None for report in reports):
        return None
    sides = []
    for model in models:
        found = [
            _Side(memory_of(run, None), share)
            for run, report in zip(runs, reports, strict=True)
            if str((run.info.server or {}).get("model")) == model and (share := _share(report)) is not None
        ]
        if not found:
            return _refused(f"no run of {model} gives a capacity")
        sides.append(found)
    pairs = _pairs(*sides)
    if not pairs:
        first_memory, second_memory = (side[0].memory for side in sides)
        assert first_memory is not None
        assert second_memory is not None
        return _refused(
            f"the memories differ, {first_memory.bytes_:,} and {second_memory.bytes_:,} bytes: each run has bytes a "
            "token of its own"
        )
    ends = [(a.share.low / b.share.high, a.share.high / b.share.low) for a, b in pairs]
    if max(low for low, _ in ends) > min(high for _, high in ends):
        return _refused(
            f"{len(pairs)} pairs of runs of {models[0]} and {models[1]} give ratios that cannot all be true, from "
            f"{min(low for low, _ in ends):.4g} to {max(high for _, high in ends):.4g}: not all had the same memory, "
            "or their caches are not alike"
        )
    first, second = (side.share for side in pairs[0])
    known = [side.memory.bytes_ for side in pairs[0] if side.memory is not None]
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


def _pairs(first: Sequence[_Side], second: Sequence[_Side]) -> list[tuple[_Side, _Side]]:
    """Those with the same memory; where there is none such, those of which one's is not known."""
    every = [(a, b) for a in first for b in second]
    same = [(a, b) for a, b in every if a.memory and b.memory and a.memory.bytes_ == b.memory.bytes_]
    return same or [(a, b) for a, b in every if a.memory is None or b.memory is None]


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
