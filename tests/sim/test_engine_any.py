"""Whatever is switched on and whatever comes: every token once and in order, and all blocks return."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.helpers import EVER, MS, preset, submit

from kvbench.sim.cluster import Cluster
from kvbench.sim.engine import Engine

# Ten usable blocks of 32 tokens of 1,000 bytes; the longest request takes eight, its state two more.
SMALL = {"num_blocks": 11, "max_model_len": 256, "bytes_per_token": 1000, "max_batched_tokens": 64}

SWITCHES = st.fixed_dictionaries(
    {
        "bytes_per_session": st.sampled_from([0, 50_000]),
        "eviction": st.sampled_from(["lru", "fifo", "head_first"]),
        "idle_ttl_s": st.sampled_from([None, 0.05, 1]),
        "refresh_on_hit": st.booleans(),
        "lapse_probability": st.sampled_from([0, 0.3]),
        "foreign_share": st.sampled_from([0, 0.5, 0.9]),
        "host_bytes": st.sampled_from([0, 32_000, 320_000]),
        "host_ttl_s": st.sampled_from([None, 0.1]),
        "ssd_bytes": st.sampled_from([0, 160_000]),
        "window_tokens": st.sampled_from([0, 48]),
        "window_replay": st.sampled_from(["always", "after_ttl", "never"]),
        "window_ttl_s": st.sampled_from([None, 0.1]),
        "speculative_tokens": st.sampled_from([0, 3]),
        "noise_sigma": st.sampled_from([0, 0.3]),
        "admission": st.sampled_from(["prompt", "whole"]),
        "cache_blocks": st.sampled_from([None, 4]),
        "cache_outputs": st.booleans(),
        "recompute_last_token": st.booleans(),
        "max_running": st.sampled_from([1, 2, 16]),
        "replicas": st.sampled_from([1, 2]),
        "send_s_per_chunk": st.sampled_from([0, 0.004]),
    }
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 180), st.integers(1, 60), st.integers(0, 300), st.booleans()),
    min_size=1,
    max_size=12,
)


def check(engine: Engine) -> None:
    pool = engine.pool
    assert pool.free == pool.capacity == 10
    idle = pool._unused + len(pool._blank) + len(pool._free)
    assert idle == 10
    assert not set(pool._blank) & set(pool._free)
    assert not pool._users
    assert {block for blocks in pool._blocks_of.values() for block in blocks} == set(pool._hash_of)
    # What is in HBM is nowhere below, and what is below is in one tier.
    below = [block_hash for tier in engine.store.tiers._tiers for block_hash in tier.arrived_ns]
    assert len(set(below)) == len(below)
    assert not set(below) & set(pool._blocks_of)
    assert all(len(tier.arrived_ns) <= tier.blocks for tier in engine.store.tiers._tiers)
    assert not engine.running
    assert not engine.waiting


@settings(max_examples=300, deadline=None)
@given(SWITCHES, REQUESTS)
def test_nothing_is_lost_and_nothing_leaks(
    switches: dict[str, Any], requests: list[tuple[int, int, int, int, bool]]
) -> None:
    if not switches["window_tokens"]:
        switches["window_replay"] = "never"
    cluster = Cluster(preset(**SMALL, **switches))
    jobs, leaving, tokens = [], [], []
    for group, length, output, at_ms, leaves in sorted(requests, key=lambda request: request[3]):
        tokens += cluster.run_until(at_ms * MS)
        job = submit(cluster, range(group * 1000, group * 1000 + length), output=output, at_ms=at_ms)
        jobs.append(job)
        if leaves:
            leaving.append(job)
    for job in leaving[:3]:
        cluster.abort(job, 310 * MS)
    tokens += cluster.run_until(EVER)
    for job in jobs:
        own = [token for token in tokens if token.job is job]
        assert all(early.stop == late.number and early.at_ns <= late.at_ns for early, late in pairwise(own))
        if job not in leaving[:3]:
            assert own[0].number == 0
            assert own[-1].stop == job.output.length_tokens == job.sampled
            assert [token.last for token in own] == [False] * (len(own) - 1) + [True]
            assert job.cached_tokens == sum(job.hits.values())
            assert job.cached_tokens % 32 == 0
            assert job.cached_tokens <= job.prompt_tokens - bool(switches["recompute_last_token"])
        assert job.done
    for engine in cluster.engines:
        check(engine)
