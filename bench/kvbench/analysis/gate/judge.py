"""The verdict on new runs: every gate judged on its own, together by Holm, or refused with the reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kvbench.analysis.cache import reported
from kvbench.analysis.gate.counts import Counts, counts, runs_of_counts, sd_of_counts, with_counts
from kvbench.analysis.gate.decide import (
    ALPHA,
    MIN_RUNS,
    PASS_LEVEL,
    Test,
    enough,
    holm,
    one_sample,
    outcomes,
    two_samples,
)
from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.gate.expression import Gate
from kvbench.analysis.gate.power import fail_power, pass_power, runs_needed, runs_needed_for_value
from kvbench.analysis.gate.validity import Treatment, refusals, too_many_failed
from kvbench.analysis.metrics import PRICED
from kvbench.analysis.pricing.run_cost import incomparable

Outcome = Literal["pass", "fail", "inconclusive", "refused"]

REPORTED_LIMIT = 0.01
"""Hit rates are of one thing where the shares of turns that report cached tokens differ by no more."""

STORED_NOTE = (
    "whether the runs were interleaved is not judged, as --allow-order asks: with 2% of noise from night to night 5 to "
    "7% of nights fail though nothing changed; run again before you believe a FAIL"
)


_OF_A_TEST = (
    *("change", "low", "high", "p", "p_holm", "test", "spread", "power_fail", "power_fail_family", "power_pass"),
    *("fail_at_threshold", "runs_needed", "runs_needed_family"),
)


@dataclass(frozen=True)
class Judged:
    """verdict: refused, else fail if any gate fails, else inconclusive if any is, else pass; a gate that is refused
    alone, as it has no price, refuses all where none fails. gates: a JSON object each (`_figures` says its fields).
    reasons: of a refusal. notes: what to know beside it.
    """

    verdict: Outcome
    gates: list[dict[str, Any]]
    reasons: list[str]
    notes: list[str]


@dataclass(frozen=True)
class _Row:
    """A gate with its values on the tested scale, or the reason why there are none."""

    gate: Gate
    base: np.ndarray[Any, np.dtype[np.float64]]
    new: np.ndarray[Any, np.dtype[np.float64]]
    test: Test | None
    reason: str | None
    counts: Counts | None = None
    """Where a share of turns is judged by its counts too."""
    refused: bool = False
    """The gate alone cannot be judged, whatever its figures."""
    unit: str | None = None
    """Of money, in place of the metric's."""


def judge(
    base: Sequence[Evidence],
    new: Sequence[Evidence],
    gates: Sequence[Gate],
    *,
    treatments: Sequence[Treatment] = (),
    allow_order: bool = False,
) -> Judged:
    """Judge `new` against `base` (empty where no gate needs one). UsageError: a treatment names nothing."""
    reasons = refusals(base, new, treatments, allow_order=allow_order)
    failed = too_many_failed([*base, *new])
    if failed and not any(gate.metric.word == "errors" for gate in gates):
        reasons += [
            f"{text}: latencies would be of what succeeded; gate the failures too, errors>1%" for text in failed
        ]
    rows = [_row(gate, base, new, failed) for gate in gates]
    tested = [i for i, row in enumerate(rows) if row.test is not None]
    adjusted = holm(np.array([float(row.test.p) for row in rows if row.test is not None])) if tested else np.array([])
    p_holm = dict(zip(tested, adjusted.tolist(), strict=True))
    found = [_figures(row, p_holm.get(i), len(rows), refused=bool(reasons)) for i, row in enumerate(rows)]
    verdicts = {gate["verdict"] for gate in found}
    if "fail" not in verdicts:
        # A failure beside it stays one: it is what a job has to act on.
        reasons += [f"{row.gate.expr}: {row.reason}" for row in rows if row.refused]
    verdict: Outcome = (
        "refused"
        if reasons
        else "fail"
        if "fail" in verdicts
        else "inconclusive"
        if "inconclusive" in verdicts
        else "pass"
    )
    return Judged(verdict, found, reasons, _notes(rows, allow_order=allow_order and bool(base)))


def _row(gate: Gate, base: Sequence[Evidence], new: Sequence[Evidence], failed: Sequence[str]) -> _Row:
    sides = [base, new] if gate.kind != "value" else [new]
    values = [[run.value(gate.metric, gate.stat) for run in side] for side in sides]
    reason = _unusable(gate, sides, values, failed)
    if gate.metric.word in PRICED and (why := _not_priced([run for side in sides for run in side])) is not None:
        return _Row(gate, np.array([]), np.array([]), None, why, refused=True)
    if any(value is None or (gate.log and value <= 0) for side in values for value in side):
        return _Row(gate, np.array([]), np.array([]), None, reason)
    arrays = [np.array(side, dtype=float) for side in values]
    scaled = [gate.sign * (np.log(side) if gate.log else side) for side in arrays]
    before, after = scaled if len(scaled) == 2 else (np.array([]), scaled[0])
    unit = sides[0][0].cost.currency if gate.metric.word in PRICED and sides[0][0].cost is not None else None
    if any(len(side) < 2 for side in scaled):
        return _Row(gate, before, after, None, reason, unit=unit)
    test = two_samples(before, after) if gate.kind != "value" else one_sample(after, gate.threshold)
    counted = counts(gate, base, new)
    if counted is not None:
        test = with_counts(test, counted, gate)
    return _Row(gate, before, after, test, reason, counted, unit=unit)


def _not_priced(runs: Sequence[Evidence]) -> str | None:
    """Why amounts of these runs cannot be compared."""
    costs = []
    for run in runs:
        if run.cost is None:
            return f"not priced: {run.label}, a result of {run.source}, does not hold the usage of each request"
        if run.cost.reason is not None:
            return f"not priced: {run.label}: {run.cost.reason}"
        costs.append(run.cost)
    return incomparable(costs)


def _unusable(
    gate: Gate, sides: Sequence[Sequence[Evidence]], values: Sequence[Sequence[float | None]], failed: Sequence[str]
) -> str | None:
    """Why a gate cannot have a verdict, whatever its figures."""
    silent = [
        run.label
        for side, found in zip(sides, values, strict=True)
        for run, value in zip(side, found, strict=True)
        if value is None
    ]
    if silent:
        goal = (
            "; name the SLOs it counts, --slo 'ttft<2s', by figures that the runs report"
            if gate.metric.word in ("goodput", "good_fraction")
            else ""
        )
        if gate.metric.adjusted:
            goal = ", or never: so many turns failed that the figure is one of theirs; gate errors>1% too"
        return f"not reported in {silent[0]}{_more(silent)}{goal}"
    if gate.log and any(value is not None and value <= 0 for found in values for value in found):
        return "a value is 0, so there is no ratio to it: use a difference in the metric's own unit"
    if failed and gate.metric.word != "errors" and not gate.metric.adjusted:
        return f"{failed[0]}{_more(failed)}: what succeeded says nothing of the rest"
    if gate.metric.word in ("hit_rate", "eligible_hit_rate") and (why := _half_told(gate, sides)) is not None:
        return why
    if gate.kind == "value":
        if len(sides[0]) < MIN_RUNS:
            return f"too few runs: {len(sides[0])} of at least {MIN_RUNS}"
    elif not enough(len(sides[0]), len(sides[1])):
        return f"too few runs: {len(sides[0])} + {len(sides[1])}; from 5 + 5 on (or 3 new and 7 baseline) one can tell"
    return None


def _half_told(gate: Gate, sides: Sequence[Sequence[Evidence]]) -> str | None:
    """Why a hit rate is none of the run's: servers that report no cached tokens where there were none leave out the
    misses, and more of them then raise the rate."""
    shares = {
        run.label: len(reported(run.measured.ok)) / len(run.measured.ok)
        for side in sides
        for run in side
        if run.measured is not None and len(run.measured.ok)
    }
    if not shares:
        return None
    least, most = min(shares, key=lambda label: shares[label]), max(shares, key=lambda label: shares[label])
    if (1.0 if gate.kind == "value" else shares[most]) - shares[least] <= REPORTED_LIMIT:
        return None
    other = "" if gate.kind == "value" else f" and by {shares[most]:.1%} in {most}"
    return (
        f"cached tokens are reported by {shares[least]:.1%} of the turns in {least}{other}: the rate leaves out the "
        "rest, which may be the misses"
    )


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def unjudged(gate: Gate, verdict: str, reason: str | None) -> dict[str, Any]:
    """A gate as the JSON object that it would have with runs, all figures null."""
    row = _Row(gate, np.array([]), np.array([]), None, reason)
    return _figures(row, None, 1, refused=False) | {"verdict": verdict}


def _figures(row: _Row, p_holm: float | None, family: int, *, refused: bool) -> dict[str, Any]:
    """A gate as a JSON object.

    base, new: mean over runs, geometric where the scale is log, in the metric's unit. ratio: new / base. scale: what
    low, high and change are (ratio, difference or value); [low, high] is the 90% interval, so that each end is a
    one-sided 95% bound. p: one-sided, of no change (or of the limit); p_holm: within all gates. spread: standard
    deviation between runs of one side, on the tested scale (log, so about relative, where `log`). power_fail: the
    chance, with these runs and this spread, of FAIL at a change as large as the pass bound, alone and as the strictest
    of the family; power_pass: of PASS when nothing changed; fail_at_threshold: of FAIL when the true change is exactly
    the threshold. runs_needed: a side, for 80% of both, alone; runs_needed_family likewise.
    """
    gate, test = row.gate, row.test
    found: dict[str, Any] = {
        "expr": gate.expr,
        "verdict": "refused" if refused or row.refused else "inconclusive",
        "reason": row.reason,
        "metric": gate.metric.word,
        "stat": gate.stat,
        "unit": row.unit or gate.metric.unit,
        "scale": gate.kind,
        "log": gate.log,
        "fails_beyond": _back(gate, gate.threshold),
        "passes_within": _back(gate, gate.pass_bound),
        "base": _mean(gate, row.base),
        "new": _mean(gate, row.new),
        "n_base": len(row.base),
        "n_new": len(row.new),
    }
    before, after = found["base"], found["new"]
    found["ratio"] = after / before if before and after is not None else None
    found |= dict.fromkeys(_OF_A_TEST)
    if test is None:
        return found
    if row.reason is None and not refused:
        found["verdict"] = str(outcomes(test, np.array(p_holm), gate.threshold, gate.pass_bound))
    ends = sorted((_back(gate, float(test.lower)), _back(gate, float(test.upper))))
    sd = float(test.sd)
    return found | {
        "change": _back(gate, float(test.estimate)),
        "low": ends[0],
        "high": ends[1],
        "interval_level": 2 * PASS_LEVEL - 1,
        "p": float(test.p),
        "p_holm": p_holm,
        "test": _test_name(row, test),
        "spread": sd,
        **_power(row, sd, family),
    }


def _test_name(row: _Row, test: Test) -> str:
    if row.gate.kind == "value":
        return "one-sample t" + (" and binomial" if row.counts is not None else "")
    return ("Welch's t" if bool(test.welch) else "pooled t") + (" and Fisher's exact" if row.counts is not None else "")


def _power(row: _Row, sd: float, family: int) -> dict[str, Any]:
    gate, strict = row.gate, ALPHA / family
    if gate.kind == "value":
        assert row.test is not None
        margin = gate.threshold - float(row.test.estimate)
        counted = 1 if row.counts is None else runs_of_counts(row.counts, gate)
        found = [runs_needed_for_value(sd, margin, alpha=alpha) for alpha in (ALPHA, strict)]
        alone, within = (None if n is None or counted is None else max(n, counted) for n in found)
        return {"runs_needed": alone, "runs_needed_family": within}
    if row.counts is not None:
        sd = max(sd, sd_of_counts(row.counts, gate))
    n, bounds = (len(row.base), len(row.new)), {"threshold": gate.threshold, "pass_bound": gate.pass_bound}
    return {
        "power_fail": fail_power(*n, sd, gate.pass_bound, threshold=gate.threshold),
        "power_fail_family": fail_power(*n, sd, gate.pass_bound, threshold=gate.threshold, alpha=strict),
        "power_pass": pass_power(*n, sd, pass_bound=gate.pass_bound),
        "fail_at_threshold": fail_power(*n, sd, gate.threshold, threshold=gate.threshold),
        "runs_needed": runs_needed(sd, **bounds),
        "runs_needed_family": runs_needed(sd, **bounds, alpha=strict),
    }


def _back(gate: Gate, value: float) -> float:
    """From the tested scale to a ratio, a difference or a value in the metric's unit."""
    # A zero has no sign to show.
    return math.exp(gate.sign * value) if gate.log else gate.sign * value + 0.0


def _mean(gate: Gate, values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return _back(gate, float(values.mean())) if len(values) else None


def _notes(rows: Sequence[_Row], *, allow_order: bool) -> list[str]:
    notes = [STORED_NOTE] if allow_order else []
    for row in rows:
        test, gate = row.test, row.gate
        if test is None or gate.kind == "value":
            continue
        if -float(test.estimate) > gate.pass_bound and float(test.upper) < 0:
            notes.append(
                f"{gate.expr}: better by more than the pass bound; was the same work done? "
                "(cached answers, shorter outputs, another model)"
            )
        if bool(test.welch):
            notes.append(
                f"{gate.expr}: the sides' spreads differ beyond chance, so Welch's t takes the place of the pooled"
            )
    return notes
