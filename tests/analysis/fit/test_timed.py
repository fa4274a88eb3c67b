"""Telling hits from misses by TTFT: shares that are known, and readings that were drawn."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy.stats import norm

from kvbench.analysis.fit.steps import Step
from kvbench.analysis.fit.timed import Times, fit_timed, misclassified
from kvbench.model import Clock, Record


def exact(middle: float, sigma: float, n: int = 20_001) -> list[float]:
    """Log-normal times at even quantiles."""
    return [math.exp(middle + sigma * z) for z in norm.ppf((np.arange(n) + 0.5) / n)]


def test_the_share_mistaken_is_that_of_two_normal_curves() -> None:
    """Four standard deviations apart the border is at two: 2.275% of each are beyond it. At 5.2 it is 0.466%."""
    assert misclassified(Times(exact(0, 0.1)), Times(exact(0.4, 0.1))) == pytest.approx(0.02275, rel=0.02)
    assert misclassified(Times(exact(0, 0.1)), Times(exact(0.52, 0.1))) == pytest.approx(0.00466, rel=0.03)
    assert misclassified(Times(exact(0, 0.1)), Times(exact(0, 0.1))) == 0.5
    assert misclassified(Times(exact(1, 0.1)), Times(exact(0, 0.1))) == 0.5


def step(series: str, number: int, role: str, ttft_s: float) -> Step:
    record = Record(request_id=f"{series}/{number}.{role}", session_id="s", turn=0, clock=Clock(scheduled=0, due=0))
    return Step(series, str(number), role, 1025, None, ttft_s, record)


def reading(rng: random.Random, held: int, controls: int, *, sigma: float = 0.1) -> list[Step]:
    """The cache holds `held` prompts of 1,025 tokens and half of one: hits take 5 ms, misses 50, the half 25."""

    def took(seconds: float) -> float:
        stray = 3.0 if rng.random() < 0.01 else 1.0
        return seconds * stray * math.exp(rng.gauss(0, sigma))

    found = []
    for number in range(controls):
        found += [
            step("control1025", number, "prime", took(0.05)),
            step("control1025", number, "again", took(0.005)),
        ]
    times = [0.005] * held + [0.025] + [0.05] * 6
    return found + [step("ramp1025", 100 - i, "read", took(seconds)) for i, seconds in enumerate(times)]


def test_the_truth_is_in_the_interval_whatever_chance_does() -> None:
    """150 readings, an answer in a hundred three times too late."""
    covered = widths = given = 0
    for seed in range(150):
        rng = random.Random(seed)
        held = rng.randint(15, 60)
        truth = held * 1024 + 512
        report = fit_timed("r", reading(rng, held, 12), truth * 512, None, ())
        capacity = report.named("capacity_tokens")
        if capacity is None:
            continue
        given += 1
        assert capacity.low is not None
        assert capacity.high is not None
        covered += capacity.low <= truth <= capacity.high
        widths += capacity.high <= 1.25 * (held + 2) * 1024 and capacity.low >= (held - 2) * 1024
    assert given >= 145
    assert covered >= 0.99 * given
    assert widths >= 0.95 * given


@pytest.mark.parametrize(
    ("controls", "sigma", "word"),
    [(4, 0.1, "4 hits and 4 misses"), (12, 0.9, "would be mistaken for the other (limit 1%)")],
)
def test_too_few_or_overlapping_controls_give_no_number(controls: int, sigma: float, word: str) -> None:
    report = fit_timed("r", reading(random.Random(1), 20, controls, sigma=sigma), 10**7, None, ())
    assert report.estimates == ()
    assert word in report.refusals[0].reason


def test_without_a_certain_miss_nothing_was_lost() -> None:
    found = [s for s in reading(random.Random(1), 20, 12) if (s.ttft_s or 0) < 0.01 or s.role != "read"]
    report = fit_timed("r", found, 10**7, None, ())
    assert report.estimates == ()
    assert "did not overflow" in report.refusals[0].reason
