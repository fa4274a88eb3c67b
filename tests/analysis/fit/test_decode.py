"""The decode slope on times made from known terms."""

from __future__ import annotations

import random

import pytest
from tests.analysis.fit.latency_runs import Sent, run_of

from kvbench.analysis.fit.decode import BASE, READ, SLOPE, fit_decode
from kvbench.analysis.fit.given import Given

STEP_S, PER_TOKEN_S = 0.012, 8.5e-8


def answers(seed: int, noise: float, longest: int = 100_000, slope: float = PER_TOKEN_S) -> list[Sent]:
    """Answers of 64 tokens whose steps take 12 ms and 85 ns a token of context, by hand: TPOT at n + 32."""
    rng = random.Random(seed)
    sent = []
    for i in range(120):
        context = round(2000 * (longest / 2000) ** rng.random())
        tpot = (STEP_S + slope * (context + 32)) * rng.lognormvariate(0, noise)
        sent.append(Sent(f"s{i % 30}", context, 0, 0.5, tpot_s=tpot, output_tokens=64))
    return sent


def test_base_and_slope_are_found() -> None:
    report = fit_decode(run_of(answers(1, 0.02), probe=False), Given(hbm_bytes_per_s=2e12))
    slope, base, read = report.named(SLOPE), report.named(BASE), report.named(READ)
    assert slope is not None
    assert base is not None
    assert read is not None
    assert slope.value == pytest.approx(PER_TOKEN_S, rel=0.05)
    assert slope.low is not None
    assert slope.high is not None
    assert slope.low <= PER_TOKEN_S <= slope.high
    assert base.value == pytest.approx(STEP_S, rel=0.02)
    assert read.value == pytest.approx(170_000, rel=0.05)


def test_without_noise_they_are_exact() -> None:
    report = fit_decode(run_of(answers(1, 0.0), probe=False))
    slope = report.named(SLOPE)
    assert slope is not None
    assert slope.value == pytest.approx(PER_TOKEN_S, rel=1e-3)
    assert report.named(READ) is None


def test_a_step_that_context_does_not_slow_gives_a_bound_alone() -> None:
    slope = fit_decode(run_of(answers(2, 0.02, slope=0.0), probe=False)).named(SLOPE)
    assert slope is not None
    assert slope.value is None
    assert slope.low == 0
    assert slope.high is not None
    assert slope.high < 0.1 * STEP_S / 100_000


def test_what_cannot_tell_is_refused() -> None:
    alike = fit_decode(run_of(answers(1, 0.02, longest=6000), probe=False))
    assert not alike.estimates
    assert "no slope can be told" in alike.refusals[0].reason
    assert "--output-tokens" in alike.refusals[0].experiment
    together = [one._replace(at_s=0.1 * i) for i, one in enumerate(answers(1, 0.02))]
    assert "in flight beside" in fit_decode(run_of(together, probe=False)).refusals[0].reason
    short = [one._replace(output_tokens=2) for one in answers(1, 0.02)]
    assert "no answer has 8 tokens" in fit_decode(run_of(short, probe=False)).refusals[0].reason
    noisy = fit_decode(run_of(answers(1, 1.5)[:24], probe=False))
    assert "known to" in noisy.refusals[0].reason
