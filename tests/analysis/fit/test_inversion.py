"""Capacity from ordinary runs, against caches of known size and policy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.analysis.fit.trace_runs import SIZE, Cache, run_of, sessions

from kvbench.analysis.fit.inversion import fit_trace
from kvbench.model import FitReport


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
        if kind == "foreign":
            caches[at].foreign(rng, 0.3, len(ids) - hit)
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
