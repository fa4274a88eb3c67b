"""What two sides cost, with an interval where their session trees are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from kvbench.analysis.compare.resample import mean_change
from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.pricing.run_cost import RunCost, incomparable
from kvbench.prices.money import plain, total

Sides = tuple[Sequence[Evidence], Sequence[Evidence]]


def cost_row(sides: Sides, *, per_job: bool, paired: bool) -> dict[str, Any]:
    """base, new: means over runs; low, high: the 95% interval of their ratio, drawn by session tree; amounts: of each
    run, exact; unit: the currency; reason: why there is no amount.
    """
    costs = [[run.cost for run in side if run.cost is not None] for side in sides]
    if not all(costs):
        return {"base": None, "new": None}
    silent = [(run, run.cost.reason) for side in sides for run in side if run.cost is not None and run.cost.reason]
    if silent:
        return {"base": None, "new": None, "reason": f"{silent[0][0].label}: {silent[0][1]}"}
    amounts = [[cost.per_job if per_job else cost.amount for cost in side] for side in costs]
    told = [[amount for amount in side if amount is not None] for side in amounts]
    if not all(told) or any(len(known) < len(side) for known, side in zip(told, amounts, strict=True)):
        return {"base": None, "new": None, "reason": "not every run has a session tree that ran to its end"}
    if len(currencies := {cost.currency for side in costs for cost in side}) > 1:
        return {"base": None, "new": None, "reason": incomparable([cost for side in costs for cost in side])}
    low, high = _interval(costs) if paired and not per_job else (None, None)
    means = [float(total(side) / len(side)) for side in told]
    return {
        "base": means[0],
        "new": means[1],
        "low": low,
        "high": high,
        "unit": currencies.pop(),
        "amounts": {name: list(map(plain, side)) for name, side in zip(("base", "new"), told, strict=True)},
        "of": None if low is None else f"{len(costs[0][0].by_tree):,} session trees, paired",
    }


def cost_note(sides: Sides) -> list[str]:
    """Whether the clock moved the prices between runs."""
    priced = [run.cost for side in sides for run in side if run.cost is not None and run.cost.reason is None]
    reason = incomparable(priced) if priced else None
    return [] if reason is None else [f"cost: {reason}"]


def _interval(costs: Sequence[Sequence[RunCost]]) -> tuple[float | None, float | None]:
    """Of the ratio of sums: the logarithm of each sum, by its influence, is a mean over trees."""
    trees = set(costs[0][0].by_tree)
    if any(set(cost.by_tree) != trees or not all(map(_positive, [cost.amount])) for side in costs for cost in side):
        return None, None
    parts = []
    for side in costs:
        values = np.array([[float(cost.by_tree[tree]) for cost in side] for tree in sorted(trees)])
        means = values.mean(axis=0)
        parts.append(values / means - 1 + np.log(means))
    low, high = mean_change(*parts)
    return (None if low is None else math.exp(low)), (None if high is None else math.exp(high))


def _positive(amount: Decimal | None) -> bool:
    return amount is not None and amount > 0
