"""Capacity by times, where no cached tokens are reported, against caches that are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.analysis.fit.capacity_runs import Blocks, Fifo, Serve, Shared, probe

from kvbench.analysis.fit.ramp import fit_capacity


def sticky(blocks: int, seed: int) -> Serve:
    rng = random.Random(seed)
    replicas = [Blocks(blocks, 32), Blocks(blocks, 32)]
    home: dict[str, int] = {}

    def serve(name: str, tokens: int) -> int:
        return replicas[home.setdefault(name, rng.randrange(2))].serve(name, tokens)

    return serve


@pytest.mark.parametrize("seed", range(10))
def test_one_lru_cache_is_measured_to_a_prompt_or_two(seed: int) -> None:
    blocks = random.Random(seed).randint(500, 2_000)
    report = fit_capacity(probe(Blocks(blocks, 32).serve, silent=True))
    found = report.named("capacity_tokens")
    assert found is not None, report.refusals
    assert found.low is not None
    assert found.high is not None
    assert found.low <= blocks * 32 <= found.high


OTHERS: dict[str, Callable[[int, int], Serve]] = {
    "sticky replicas": sticky,
    "fifo": lambda blocks, seed: Fifo(blocks, 32).serve,
    "others write two of five blocks": lambda blocks, seed: Shared(blocks, 32, 0.4).serve,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_one_lru_cache_gets_no_number(kind: str, seed: int) -> None:
    blocks = random.Random(seed).randint(500, 2_000)
    report = fit_capacity(probe(OTHERS[kind](blocks, seed), silent=True))
    assert report.named("capacity_tokens") is None
    assert report.refusals
