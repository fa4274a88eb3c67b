"""Capacity from ordinary runs, against caches of known size and policy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.analysis.fit.trace_runs import SIZE, Cache, run_of, sessions

from kvbench.analysis.fit.trace import fit_trace
from kvbench.model import FitReport

OTHERS = {"foreign": 0.3, "little foreign": 0.03}


def served(seed: int, kind: str, path: Path) -> tuple[FitReport, int]:
    """The fit of a run on a cache under pressure, and the cache's tokens."""
    rng = random.Random(seed)
    sent = sessions(rng, count=rng.randint(40, 70), live=rng.randint(6, 14))
    blocks = rng.randint(300, 700)
    policy = kind if kind in ("fifo", "head_first") else "lru"
    replicas = 2 if kind in ("random", "sticky") else 1
    caches = [Cache(blocks, policy) for _ in range(replicas)]
    home: dict[str, int] = {}
    hits: list[int | None] = []
    for name, ids in sent:
        at = home.setdefault(name, rng.randrange(replicas)) if kind == "sticky" else rng.randrange(replicas)
        hit = caches[at].serve(ids)
        if kind in OTHERS:
            caches[at].foreign(rng, OTHERS[kind], len(ids) - hit)
        if kind == "units":
            hit = hit // 1024 * 1024
        hits.append(hit)
    return fit_trace(run_of(sent, hits, path / f"{kind}{seed}")), blocks * SIZE


@pytest.mark.parametrize("seed", range(12))
def test_under_pressure_the_capacity_is_found(seed: int, tmp_path: Path) -> None:
    report, truth = served(seed, "lru", tmp_path)
    found = report.named("capacity_tokens")
    assert found is not None, report.refusals
    assert found.low is not None
    assert found.value is not None
    assert found.high is not None
    assert abs(found.value / truth - 1) < 0.01
    assert found.low <= truth <= found.high
    assert report.misfit is not None
    assert report.misfit.share < 0.001


@pytest.mark.parametrize("kind", ["fifo", "head_first", "random", "sticky", "foreign", "units"])
def test_what_is_not_one_lru_cache_is_refused(kind: str, tmp_path: Path) -> None:
    reports = [served(seed, kind, tmp_path)[0] for seed in range(6)]
    print(kind, [round(r.misfit.share, 3) if r.misfit else None for r in reports])
    assert not [r.estimates for r in reports if r.named("capacity_tokens") is not None]


def test_a_little_of_other_traffic_is_allowed_for(tmp_path: Path) -> None:
    """3% of all that is written makes a cache look 3% smaller: the estimate does not, and the interval says so."""
    errors = []
    for seed in range(8):
        report, truth = served(seed, "little foreign", tmp_path)
        found = report.named("capacity_tokens")
        assert found is not None, report.refusals
        assert found.low is not None
        if found.value is None:
            continue
        assert found.high is not None
        assert found.low - SIZE <= truth <= found.high + SIZE, seed
        errors.append(abs(found.value / truth - 1))
    assert len(errors) >= 6
    assert sorted(errors)[len(errors) // 2] < 0.005


def test_an_exact_run_has_bounds_and_one_with_noise_a_share_of_intervals(tmp_path: Path) -> None:
    exact, _ = served(1, "lru", tmp_path)
    noisy, _ = served(1, "little foreign", tmp_path)
    methods = [found.method for r in (exact, noisy) if (found := r.named("capacity_tokens"))]
    assert ["bounds" in m for m in methods] == [True, False]
    assert ["90% interval" in m for m in methods] == [False, True]
