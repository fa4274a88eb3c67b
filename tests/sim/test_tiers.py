from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.helpers import MS, ask, ttft_ms
from tests.sim.test_cache import brute_force, chains

from kvbench.sim.engine import Engine
from kvbench.sim.hits import BlockStore
from kvbench.sim.parameters import Preset
from kvbench.sim.settings import resolve_preset
from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import encode_ids

KB32 = 32_000  # a block: 32 tokens of 1,000 bytes
EXACT = {
    "bytes_per_token": 1000,
    "frontend_s": 0,
    "send_s_per_chunk": 0,
    "prefill_base_s": 0.010,
    "prefill_s_per_token": 0.0001,
    "attention_s_per_token2": 0,
    "num_blocks": 11,
    "max_model_len": 320,
}


def preset(**settings: object) -> Preset:
    return resolve_preset("tiny", {**EXACT, **settings})


@given(chains(), st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_pool_and_tiers_are_one_lru_as_large_as_all_of_them(
    requests: list[list[int]], hbm: int, host: int, ssd: int
) -> None:
    parameters = {"bytes_per_token": 1, "block_size": 1, "max_model_len": 2, "num_blocks": 1000}
    store = BlockStore(
        resolve_preset("tiny", {**parameters, "cache_blocks": hbm, "host_bytes": host, "ssd_bytes": ssd})
    )
    hits = []
    for now, chain in enumerate(requests):
        found = store.find(chain, now)
        hits.append(len(found.blocks))
        resident = [block for block in found.blocks if block is not None]
        taken = store.pool.take(resident, len(chain) - len(resident), now)
        assert taken is not None
        fresh = iter(taken[len(resident) :])
        blocks = [next(fresh) if block is None else block for block in found.blocks] + list(fresh)
        for number, (block, content) in enumerate(zip(blocks, chain, strict=True)):
            (store.come_up if number < len(found.blocks) else store.publish)(block, content, now)
        store.pool.release(blocks, now)
    assert hits == brute_force(requests, hbm + host + ssd)


def test_coming_up_takes_latency_and_bytes_over_bandwidth() -> None:
    rates = {"host_bandwidth_bytes_per_s": 32e6, "host_latency_s": 0.002}
    engine = Engine(preset(host_bytes=8 * KB32, **rates))
    ask(engine, range(200), 0)  # seven blocks, six of them full
    ask(engine, range(1000, 1200), 1000)  # evicts the unfilled one, the tail's two, and one more
    again = ask(engine, range(200), 2000)
    # Ten blocks: the second has taken the three that were unused, the one without content, and blocks 6, 5 and 4 of the
    # first. Up come three blocks of 32,000 bytes, a millisecond each, after 2 ms; then 10 ms and 8 tokens.
    assert again.hits == {"hbm": 96, "host": 96}
    assert (again.cached_tokens, ttft_ms(again)) == (192, pytest.approx(2 + 3 + 10 + 0.8))
    assert again.restored_ns is not None
    assert again.scheduled_ns is not None
    assert again.restored_ns - again.scheduled_ns == 5 * MS
    assert (engine.queried_tokens, engine.hit_tokens, engine.external_hit_tokens) == (600, 96, 96)
    # Now they are in HBM again, and nowhere else.
    assert [engine.store.tiers.find(block_hash, 2500 * MS) for block_hash in again.hasher.hashes[:6]] == [None] * 6
    assert ask(engine, range(200), 3000).hits == {"hbm": 192, "host": 0}


def test_what_comes_up_after_a_preemption_is_not_the_restoring_before_the_first_token() -> None:
    engine = Engine(preset(host_bytes=20 * KB32, host_latency_s=0.002))
    jobs = []
    for start in (0, 1000):
        prompt = encode_ids(list(range(start, start + 127)))
        output = OutputText(prompt, max_tokens=80, ignore_eos=True)
        jobs.append(engine.submit(prompt, output, salt=None, now_ns=0))
    engine.run_until(10**18)
    newest = jobs[1]
    # Preempted while it decodes; what the older request pushes down meanwhile comes up again.
    assert newest.preemptions == 1
    assert newest.hits == {"hbm": 0, "host": 0}
    assert newest.restored_ns is None


def test_an_aborted_request_that_was_coming_up_takes_no_place_among_the_running() -> None:
    engine = Engine(preset(host_bytes=8 * KB32, host_latency_s=3000, max_running=1))
    ask(engine, range(200), 0)
    ask(engine, range(1000, 1200), 1000)
    prompt = encode_ids(list(range(200)))
    waits = engine.submit(prompt, OutputText(prompt, max_tokens=1), salt=None, now_ns=2000 * MS)
    engine.run_until(2001 * MS)
    assert (engine.waiting_requests, len(engine.running)) == (1, 0)
    engine.abort(waits, 2002 * MS)
    assert engine.waiting_requests == 0
    assert ttft_ms(ask(engine, range(5000, 5010), 2003)) == pytest.approx(10 + 1)


def test_what_the_host_has_no_room_for_goes_to_ssd_and_then_nowhere() -> None:
    rates = {"host_bandwidth_bytes_per_s": 32e6, "host_latency_s": 0, "ssd_bandwidth_bytes_per_s": 8e6}
    engine = Engine(preset(host_bytes=2 * KB32, ssd_bytes=3 * KB32, ssd_latency_s=0.003, **rates))
    ask(engine, range(320), 0)  # ten blocks, all full
    ask(engine, range(1000, 1319), 1000)  # ten more, nine of them full
    again = ask(engine, range(320), 2000)
    # Evicted from the tail: 10, 9, ... 1. The last two to go are in the host, the three before on SSD, the others gone.
    # Up come two blocks at 1 ms, then three at 3 + 3 * 4 ms; 160 tokens are computed.
    assert again.hits == {"hbm": 0, "host": 64, "ssd": 96}
    assert ttft_ms(again) == pytest.approx(2 + 3 + 12 + 10 + 16)


def test_transfers_of_a_tier_follow_each_other() -> None:
    engine = Engine(preset(num_blocks=21, host_bytes=100 * KB32, host_bandwidth_bytes_per_s=3.2e6, host_latency_s=0))
    for start in (0, 1000, 2000, 3000):
        ask(engine, range(start, start + 161), start)  # five full blocks and one token
    prompts = [encode_ids(range(start, start + 161)) for start in (0, 1000)]
    jobs = [engine.submit(p, OutputText(p, max_tokens=1), salt=None, now_ns=10_000 * MS) for p in prompts]
    engine.run_until(10**18)
    # Of 20 blocks 18 are full ones after four times six: the first two have lost four blocks between them, say x and y.
    lost = [job.hits["host"] // 32 for job in jobs]
    assert lost[0] > 0
    assert lost[1] > 0
    # 10 ms a block; both were asked for at once.
    assert [job.restored_ns for job in jobs] == [
        (10_000 + 10 * lost[0]) * MS,
        (10_000 + 10 * (lost[0] + lost[1])) * MS,
    ]


@pytest.mark.parametrize(
    ("pause_s", "where"),
    [(9.9, "hbm"), (10.1, "host"), (29.9, "host"), (30.1, "ssd"), (69.9, "ssd"), (70.1, None)],
)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_what_outlives_a_tier_goes_down_one(pause_s: float, where: str | None, scale: float) -> None:
    """10 s in HBM, 20 s in the host, 40 s on SSD, all of trace time."""
    lives = {"idle_ttl_s": 10, "host_ttl_s": 20, "ssd_ttl_s": 40}
    engine = Engine(preset(host_bytes=10 * KB32, ssd_bytes=10 * KB32, **lives), trace_time_scale=scale)
    first = ask(engine, range(200), 0)
    assert first.last_token_ns is not None
    again = ask(engine, range(200), first.last_token_ns / MS + pause_s * scale * 1000)
    assert {name for name, tokens in again.hits.items() if tokens} == ({where} - {None})
    assert again.cached_tokens == (192 if where else 0)


def test_a_hit_begins_the_life_in_hbm_anew_unless_it_may_not() -> None:
    for refresh, cached in ((True, 192), (False, 0)):
        engine = Engine(preset(idle_ttl_s=10, refresh_on_hit=refresh))
        for at_s in (0, 6):
            ask(engine, range(200), at_s * 1000)
        assert ask(engine, range(200), 12_000).cached_tokens == cached


def test_others_go_on_while_blocks_come_up() -> None:
    engine = Engine(preset(host_bytes=20 * KB32, host_bandwidth_bytes_per_s=3.2e5, host_latency_s=0, idle_ttl_s=1))
    ask(engine, range(161), 0)
    prompt, other = encode_ids(range(161)), encode_ids(range(5000, 5033))
    slow = engine.submit(prompt, OutputText(prompt, max_tokens=1), salt=None, now_ns=5000 * MS)
    quick = engine.submit(other, OutputText(other, max_tokens=1), salt=None, now_ns=5000 * MS)
    engine.run_until(10**18)
    # Five blocks at 100 ms each, then 10 ms and a token. The other needs 10 ms and 33 tokens.
    assert (ttft_ms(slow), ttft_ms(quick)) == (pytest.approx(500 + 10.1), pytest.approx(13.3))


def test_a_client_that_leaves_while_blocks_come_up_holds_none() -> None:
    engine = Engine(preset(host_bytes=20 * KB32, host_bandwidth_bytes_per_s=3.2e5, idle_ttl_s=1))
    ask(engine, range(161), 0)
    prompt = encode_ids(range(161))
    job = engine.submit(prompt, OutputText(prompt, max_tokens=1), salt=None, now_ns=5000 * MS)
    engine.run_until(5100 * MS)
    assert engine.pool.free < 10
    engine.abort(job, 5100 * MS)
    assert engine.pool.free == 10
    assert engine.run_until(10**18) == []
    assert ask(engine, range(161), 9000).hits["host"] == 160
