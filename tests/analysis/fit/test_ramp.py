"""Capacity from a reading, against caches of known size."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.analysis.fit.capacity_runs import (
    Blocks,
    HeadsFirst,
    Lives,
    Sessions,
    Shared,
    SharedSessions,
    Windowed,
    probe,
)

from kvbench.analysis.fit.fit import fit_runs
from kvbench.analysis.fit.ramp import fit_capacity
from kvbench.analysis.fit.sessions import Held, Window, session_bounds
from kvbench.model import FitReport


def interval(report: FitReport, name: str) -> tuple[float, float, float]:
    found = report.named(name)
    assert found is not None, report.refusals
    assert found.low is not None
    assert found.value is not None
    assert found.high is not None
    return found.low, found.value, found.high


@pytest.mark.parametrize("seed", range(50))
def test_a_cache_of_blocks_is_measured_to_two_blocks(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([16, 32, 64, 128, 256])
    blocks = rng.randint(300, 4000) if size < 128 else rng.randint(60, 900)
    memory = blocks * size * 512
    run = probe(Blocks(blocks, size).serve, memory=memory)
    assert len(run.records) <= 250
    report = fit_capacity(run)
    low, value, high = interval(report, "capacity_tokens")
    assert low <= blocks * size <= high
    assert high - low <= 4 * size
    assert abs(value - blocks * size) <= 2 * size
    low, _, high = interval(report, "bytes_per_token")
    assert low <= 512 <= high


def test_aligned_prompts_do_not_make_the_cache_look_smaller() -> None:
    """Asked for lengths of whole blocks, the experiment takes a token more."""
    low, _, high = interval(fit_capacity(probe(Blocks(511, 32).serve, lengths=(512, 1024))), "capacity_tokens")
    assert low <= 511 * 32 <= high


@pytest.mark.parametrize("seed", range(20))
def test_whole_hits_give_intervals_of_both_bytes(seed: int) -> None:
    rng = random.Random(seed)
    per_token, per_session = rng.uniform(200, 2000), rng.uniform(1e5, 2e6)
    memory = rng.uniform(15, 40) * (per_session + 1000 * per_token)
    run = probe(Sessions(memory, per_token, per_session, 32).serve, memory=round(memory), budget=2000)
    report = fit_capacity(run)
    assert report.named("capacity_tokens") is None
    for name, truth in (("bytes_per_token", per_token), ("bytes_per_session", per_session)):
        low, _, high = interval(report, name)
        assert low <= truth <= high, name


@pytest.mark.parametrize("seed", range(30))
def test_a_window_is_found_and_both_bytes_hold_the_truth(seed: int) -> None:
    """Blocks of 8,192 bytes in each layer: m is one layer's token, F the window's blocks of the others. What a prefill
    takes while it runs is up to six times what stays."""
    rng = random.Random(seed)
    layers, window, size = rng.choice([1, 1, 3, 5]), rng.choice([4, 8, 16, 32]), 32
    blocks = rng.randint(20, 40) * (32 + layers * window)
    run = probe(Windowed(blocks, size, layers, window).serve, memory=blocks * 8192, budget=400)
    report = fit_capacity(run)
    assert report.named("capacity_tokens") is None
    low, _, high = interval(report, "window_tokens")
    assert low <= window * size <= high <= window * size + 2 * size
    for name, truth in (("bytes_per_token", 256), ("bytes_per_session", layers * window * 8192)):
        low, _, high = interval(report, name)
        assert low <= truth <= high, (name, layers, window, blocks)


def test_what_a_real_server_with_a_window_of_512_held() -> None:
    """vLLM 0.32, 1,023 blocks of 8,192 bytes, a layer of each kind: 34, 21 and 12 whole hits at 501, 1,001 and 2,001
    tokens, of which the shortest is within the window. Without what the last prefill took, the truth is outside."""
    held = [Held(34, 480, 0, 501, 32), Held(21, 992, 0, 1001, 32), Held(12, 1984, 0, 2001, 32)]
    memory = 1024 * 8192
    bounds = session_bounds(held, Window(512, 544))
    assert bounds is not None
    (m_low, m_high), (f_low, f_high) = bounds
    assert m_low * memory <= 256 <= m_high * memory
    assert f_low * memory <= 16 * 8192 <= f_high * memory
    # every m and F inside satisfies the inequalities of sessions.py, and beyond either end none does

    def fits(m: float, f: float) -> bool:
        return all(
            n * (f * min(1, hit / 544) + m * hit) <= 1
            and (n + 1) * (f * min(1, (length + 32) / 512) + m * (length + 32)) + f * max(0, (length + 32) / 512 - 1)
            >= 1
            for n, hit, _, length, _ in held
        )

    steps = [i / 200 for i in range(201)]
    inside = [(m, f) for a in steps for b in steps if fits(m := a * 2 * m_high, f := b * 2 * f_high)]
    assert inside
    grid_m, grid_f = 2 * m_high / 200, 2 * f_high / 200
    assert m_low - grid_m <= min(m for m, _ in inside) <= m_low + 3 * grid_m
    assert m_high - 3 * grid_m <= max(m for m, _ in inside) <= m_high + grid_m
    assert f_low - grid_f <= min(f for _, f in inside)
    assert max(f for _, f in inside) <= f_high + grid_f


def test_eviction_of_heads_first_is_not_taken_for_bytes_of_a_session() -> None:
    for seed in range(20):
        blocks = random.Random(seed).randint(300, 2000)
        report = fit_capacity(probe(HeadsFirst(blocks, 32).serve, memory=blocks * 32 * 512))
        assert not report.estimates, seed
        assert "a prompt's head goes before its tail" in report.refusals[0].reason


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_cache_that_others_write_a_steady_share_of_is_not_taken_for_a_smaller_one(share: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        report = fit_capacity(probe(Shared(rng.randint(500, 2000), 32, share).serve))
        assert not report.estimates, seed
        assert "no one capacity" in report.refusals[0].reason or share > 0.05


@pytest.mark.parametrize("seed", range(10))
def test_sessions_beside_others_are_not_taken_for_larger_ones(seed: int) -> None:
    """Two of five tokens written are others': bytes a token would come out a third too high, and more."""
    tokens = random.Random(seed).randint(12_000, 60_000)
    report = fit_capacity(probe(SharedSessions(tokens, 1.0, 32, 0.4).serve, memory=tokens))
    assert not report.estimates
    assert "others wrote to the cache in between" in report.refusals[0].reason
    alone = fit_capacity(probe(SharedSessions(tokens, 1.0, 32, 0.0).serve, memory=tokens))
    low, _, high = interval(alone, "bytes_per_token")
    assert low <= 1 <= high
    assert not any("left no room" in text for text in alone.assumed)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("silent", [False, True])
def test_prompts_that_live_for_a_time_are_not_taken_for_a_full_cache(seed: int, silent: bool) -> None:
    """At 1,000 tokens a second what was sent within 20 to 60 s is found: that looks like as many thousand tokens."""
    report = fit_capacity(probe(Lives(random.Random(seed).uniform(20, 60), 32).serve, memory=10**9, silent=silent))
    assert not report.estimates
    assert "given up by age" in report.refusals[0].reason


def two_replicas(seed: int, sticky: bool) -> Callable[[str, int], int]:
    rng = random.Random(seed)
    replicas = [Blocks(400, 32), Blocks(400, 32)]
    home: dict[str, int] = {}

    def serve(name: str, tokens: int) -> int:
        at = home.setdefault(name, rng.randrange(2)) if sticky else rng.randrange(2)
        return replicas[at].serve(name, tokens)

    return serve


def lapsing(seed: int) -> Callable[[str, int], int]:
    rng, cache = random.Random(seed), Blocks(511, 32)
    return lambda name, tokens: 0 if rng.random() < 0.1 else cache.serve(name, tokens)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", ["random", "sticky", "lapses"])
def test_several_caches_are_not_taken_for_one(kind: str, seed: int) -> None:
    serve = lapsing(seed) if kind == "lapses" else two_replicas(seed, kind == "sticky")
    report = fit_capacity(probe(serve))
    assert report.named("capacity_tokens") is None
    assert report.refusals


def test_nothing_is_said_without_an_overflow() -> None:
    report = fit_capacity(probe(Blocks(10**9, 32).serve, budget=60))
    assert not report.estimates
    assert "did not overflow" in report.refusals[0].reason


def test_nothing_is_said_where_nothing_is_reported_or_cached() -> None:
    for answer, word in ((None, "reports no cached tokens"), (0, "prefix caching is off")):
        report = fit_capacity(probe(lambda name, tokens, a=answer: a))
        assert not report.estimates
        assert word in report.refusals[0].reason


def test_without_the_memory_bytes_are_refused_and_tokens_are_not() -> None:
    report = fit_capacity(probe(Blocks(511, 32).serve))
    assert report.named("capacity_tokens") is not None
    assert [r.name for r in report.refusals] == ["bytes_per_token"]
    given = fit_capacity(probe(Blocks(511, 32).serve), kv_memory_bytes=511 * 32 * 100)
    low, _, high = interval(given, "bytes_per_token")
    assert low <= 100 <= high


def test_two_pools_cancel_what_does_not_grow_with_them() -> None:
    """300 bytes a token, and 40 blocks that a running request takes besides its own, in pools of 600 and 1,800."""
    block = 32 * 300
    runs = [probe(Blocks(blocks - 40, 32).serve, memory=blocks * block) for blocks in (600, 1800)]
    report = fit_runs(runs)
    low, _, high = interval(report, "bytes_per_token_of_two_pools")
    assert low <= 300 <= high
    assert high - low < 3
    low, _, high = interval(report, "bytes_beside_tokens")
    assert low <= 40 * block <= high
    alone = fit_runs(runs[:1])
    assert alone.named("bytes_per_token_of_two_pools") is None
    biased = interval(alone, "bytes_per_token")
    assert biased[0] > 300
