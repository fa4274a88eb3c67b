"""Shares of turns by their counts: where no run has a failure the runs have no spread, and are still no proof.

Each turn counts as one trial; what differs from run to run beyond that is the t-test's, and the wider of the two holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.analysis.gate.decide import PASS_LEVEL, Test, share_bounds
from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.gate.expression import Gate
from kvbench.analysis.gate.power import runs_for_share

WORDS = ("errors", "good_fraction")


@dataclass(frozen=True)
class Counts:
    """Bad turns of all turns, over the runs of each side: failed ones, or those that are not good. base: None for a
    gate on a value. runs: new ones.
    """

    base: tuple[int, int] | None
    new: tuple[int, int]
    runs: int

    @property
    def turns(self) -> float:
        """A new run."""
        return self.new[1] / self.runs


def counts(gate: Gate, base: Sequence[Evidence], new: Sequence[Evidence]) -> Counts | None:
    """None where the metric is no share of turns, or fails on fewer bad ones. Every run must report it."""
    if gate.metric.word not in WORDS or (gate.metric.word == "errors") is not (gate.sign > 0):
        return None

    def total(runs: Sequence[Evidence]) -> tuple[int, int]:
        bad = turns = 0
        for run in runs:
            of, share = (run.completed or 0) + (run.failed or 0), run.value(gate.metric, gate.stat) or 0.0
            bad += (run.failed or 0) if gate.metric.word == "errors" else of - round(share * of)
            turns += of
        return bad, turns

    sides = None if gate.kind == "value" else total(base), total(new)
    if any(side is not None and not side[1] for side in sides):
        return None
    return Counts(*sides, len(new))


def with_counts(test: Test, found: Counts, gate: Gate) -> Test:
    """The test with the larger p, and the wider bounds, of its own and the counts': binomial for a value; Fisher's
    exact test, and Clopper and Pearson's bounds joined by squares (Zou and Donner 2008), for a change.
    """
    estimate = float(test.estimate)
    if found.base is None:
        # On the tested scale a share of good turns is less by one than that of bad ones.
        shift = 0.0 if gate.metric.word == "errors" else -1.0
        p, upper = share_bounds(*found.new, gate.threshold - shift)
        lower = _bounds(*found.new)[0]
        return _wider(test, p, lower + shift, upper + shift)
    from scipy import stats

    (bad_base, base), (bad_new, new) = found.base, found.new
    p = float(stats.hypergeom.sf(bad_new - 1, base + new, bad_base + bad_new, new))
    ends = [
        [_scale(gate, share) for share in (bad / of, *_bounds(bad, of))]
        for bad, of in ((bad_base, base), (bad_new, new))
    ]
    (at_base, low_base, high_base), (at_new, low_new, high_new) = ends
    up, down = math.hypot(high_new - at_new, at_base - low_base), math.hypot(at_new - low_new, high_base - at_base)
    return _wider(test, p, estimate - down, estimate + up)


def sd_of_counts(found: Counts, gate: Gate) -> float:
    """Standard deviation of one run's share, on the tested scale, with as many bad turns as the pass bound allows."""
    assert found.base is not None
    share = found.base[0] / found.base[1]
    if gate.kind == "ratio":
        bad = 1 - (1 - share) * math.exp(-gate.pass_bound)
        return math.sqrt(bad / (1 - bad) / found.turns)
    bad = min(share + gate.pass_bound, 0.5)
    return math.sqrt(bad * (1 - bad) / found.turns)


def runs_of_counts(found: Counts, gate: Gate) -> int | None:
    """New runs for the counts to keep within a value; None: more than a thousand."""
    limit = gate.threshold if gate.metric.word == "errors" else gate.threshold + 1.0
    return runs_for_share(found.new[0] / found.new[1], found.turns, limit)


def _scale(gate: Gate, bad: float) -> float:
    """A share of bad turns on the tested scale, but for a constant."""
    if gate.kind != "ratio":
        return bad
    return -math.log(1 - bad) if bad < 1 else math.inf


def _bounds(bad: int, of: int) -> tuple[float, float]:
    """One-sided lower and upper bound at PASS_LEVEL each."""
    from scipy import stats

    lower = 0.0 if bad == 0 else float(stats.beta.ppf(1 - PASS_LEVEL, bad, of - bad + 1))
    return lower, share_bounds(bad, of, 0.5)[1]


def _wider(test: Test, p: float, lower: float, upper: float) -> Test:
    return test._replace(
        p=np.maximum(test.p, p), lower=np.minimum(test.lower, lower), upper=np.maximum(test.upper, upper)
    )
