"""The TTFT model on times made from known terms."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvbench.analysis.fit.ttft import fit_latency
from kvbench.model import Clock, FitReport, Record, RunInfo, Trust, Usage
from kvbench.runs.reader import Run

T0, A, B = 0.037, 50.5e-6, 1.34e-10
"""Measured on a real server: DeepSeek-V4.1 on eight H100, 1K to 260K tokens."""


def run_of(rows: list[tuple[str, int, int, float]], trust: Trust | None = None) -> Run:
    """rows: (cell, uncached, cached, TTFT)"""
    records = []
    for i, (cell, uncached, cached, ttft) in enumerate(rows):
        clock = Clock(scheduled=i, due=i, sent=0, first_token=round(ttft * 1e9), end=round(ttft * 1e9))
        usage = Usage(input_tokens=uncached + cached, cached_tokens=cached, output_tokens=1)
        records.append(Record(request_id=f"{cell}/{i}.read", session_id=cell, turn=0, clock=clock, usage=usage))
    info = RunInfo(kvbench_version="0", run_id="r", name="t", status="done", started_at="", trust=trust)
    return Run(info=info, records=records, events=[], warnings=[], path=Path("r"))


def measured(seed: int, noise: float, hot: bool = True) -> FitReport:
    rng = random.Random(seed)
    rows = []
    for cell in range(60):
        uncached = round(1000 * 260 ** rng.random())
        cached = round(1000 * 100 ** rng.random()) if hot and cell % 4 else 0
        for _ in range(5):
            true = T0 + A * uncached + B * (uncached * cached + uncached**2 / 2)
            rows.append((f"cell{cell}", uncached, cached, true * rng.lognormvariate(0, noise)))
    return fit_latency(run_of(rows))


def test_the_terms_are_found_at_five_percent_noise() -> None:
    inside = 0
    for seed in range(12):
        report = measured(seed, 0.05)
        for name, truth in (("ttft_base_s", T0), ("prefill_s_per_token", A), ("attention_s_per_token2", B)):
            found = report.named(name)
            assert found is not None, report.refusals
            assert found.value is not None
            assert found.low is not None
            assert found.high is not None
            if name == "prefill_s_per_token":
                assert found.value == pytest.approx(truth, rel=0.03)
            if name == "attention_s_per_token2":
                assert found.value == pytest.approx(truth, rel=0.08)
            inside += found.low <= truth <= found.high
    assert inside >= 24  # of 36 intervals of 90%


def test_without_noise_the_terms_are_exact() -> None:
    report = measured(1, 0.0)
    for name, truth in (("ttft_base_s", T0), ("prefill_s_per_token", A), ("attention_s_per_token2", B)):
        found = report.named(name)
        assert found is not None
        assert found.value == pytest.approx(truth, rel=1e-3)
    cached = report.named("prefill_s_per_cached_token")
    assert cached is not None
    assert cached.low == 0


def test_what_cannot_be_told_is_refused() -> None:
    cold = measured(1, 0.05, hot=False)
    assert [r.name for r in cold.refusals] == ["prefill_s_per_cached_token"]
    one_length = run_of([("cell0", 1000, 0, 0.1) for _ in range(40)])
    assert "no slope" in fit_latency(one_length).refusals[0].reason
    few = run_of([("cell0", 1000 * i, 0, 0.1) for i in range(1, 10)])
    assert "too few" in fit_latency(few).refusals[0].reason
    trust = Trust(verdict="degraded", reasons=("x",))
    degraded = run_of([("cell0", 1000 * i, 0, 0.1 * i) for i in range(1, 60)], trust)
    assert "own error" in fit_latency(degraded).refusals[0].reason
    rng = random.Random(3)
    queue = [(f"cell{i % 30}", u := rng.randint(200, 50_000), 0, A * u * rng.choice([1, 3, 9])) for i in range(120)]
    loaded = fit_latency(run_of(queue))
    assert not loaded.estimates
    assert loaded.misfit is not None
    assert loaded.misfit.share > loaded.misfit.limit
