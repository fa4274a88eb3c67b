"""Fixed state, admission, drafts, noise, lapses and foreign blocks, in virtual time and by hand."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from tests.sim.helpers import MS, ask, preset, run, submit, times_ms, ttft_ms

from kvbench.sim.engine import Engine
from kvbench.sim.tokenizer import encode_ids


def test_a_running_request_pins_its_fixed_state() -> None:
    # Blocks of 32,000 bytes: 70,000 bytes of state are three of them. Ten blocks.
    settings = {"bytes_per_token": 1000, "bytes_per_session": 70_000, "num_blocks": 11, "max_model_len": 220}
    engine = Engine(preset(**settings))
    first = submit(engine, range(100), output=3)
    second = submit(engine, range(1000, 1100), output=1)
    run(engine, 22)
    assert engine.pool.free == 10 - 4 - 3
    assert (len(engine.running), len(engine.waiting)) == (1, 1)
    tokens = run(engine)
    # The first ends at 1 + 20 + 6 + 6 ms; without state both would have fitted.
    assert second.scheduled_ns == times_ms(tokens, first)[-1] * MS == 33 * MS
    assert engine.pool.free == 10
    assert engine.pool.evictions == 0
    # An idle session keeps its blocks and no state: seven others' worth of room is not taken from it.
    assert ask(engine, range(100), 1000).cached_tokens == 96


def test_room_for_the_output_beforehand_preempts_nobody() -> None:
    # Ten blocks; each needs 206 tokens' worth in the end, seven blocks.
    for admission, preemptions in (("prompt", 1), ("whole", 0)):
        engine = Engine(preset(num_blocks=11, max_model_len=320, admission=admission))
        first = submit(engine, range(127), output=80)
        second = submit(engine, range(1000, 1127), output=80)
        tokens = run(engine)
        assert engine.preemptions == preemptions
        if admission == "whole":
            assert second.scheduled_ns == times_ms(tokens, first)[-1] * MS
        assert engine.pool.free == 10


@pytest.mark.parametrize(
    ("acceptance", "spans", "times"),
    [
        (1, [(0, 1), (1, 5), (5, 9), (9, 10)], [21, 27, 33, 39]),
        (0, [(n, n + 1) for n in range(10)], [21 + 6 * n for n in range(10)]),
    ],
)
def test_accepted_drafts_share_a_step(acceptance: float, spans: list[tuple[int, int]], times: list[float]) -> None:
    engine = Engine(preset(speculative_tokens=3, speculative_acceptance=acceptance))
    job = submit(engine, range(100), output=10)
    tokens = run(engine)
    assert [(token.number, token.stop) for token in tokens] == spans
    assert times_ms(tokens, job) == times
    assert [token.last for token in tokens] == [False] * (len(spans) - 1) + [True]


def test_drafts_are_accepted_up_to_the_first_that_is_refused() -> None:
    engine = Engine(preset(speculative_tokens=3, speculative_acceptance=0.5, max_model_len=8192))
    submit(engine, range(100), output=8000)
    lengths = [token.stop - token.number for token in run(engine)][1:]
    # 1, 2, 3 or 4 with probabilities 1/2, 1/4, 1/8, 1/8; the last chunk may be cut.
    assert set(lengths) == {1, 2, 3, 4}
    for length, share in ((1, 1 / 2), (2, 1 / 4), (3, 1 / 8), (4, 1 / 8)):
        assert lengths.count(length) / len(lengths) == pytest.approx(share, abs=4 * math.sqrt(share / len(lengths)))


@pytest.mark.parametrize(("output", "cached"), [(60, 128), (61, 160), (28, 96), (29, 128)])
@pytest.mark.parametrize("acceptance", [0.5, 1])
def test_drafts_change_no_hit(output: int, cached: int, acceptance: float) -> None:
    engine = Engine(preset(speculative_tokens=4, speculative_acceptance=acceptance))
    first = ask(engine, range(100), 0, output=output)
    following = first.prompt + first.output.tokens(0, output) + encode_ids(range(900_000, 900_040))
    assert ask(engine, following, 10_000).cached_tokens == cached
    assert engine.pool.free == engine.pool.capacity


def test_a_decode_step_reads_the_context() -> None:
    engine = Engine(preset(decode_s_per_context_token=1e-5))
    job = submit(engine, range(100), output=3)
    # 5 + 1 ms, and 10 us for each of 100, then 101 tokens of context.
    assert times_ms(run(engine), job) == pytest.approx([21, 28, 35.01])


def test_what_is_hit_to_its_end_has_no_chunk_to_pay_for() -> None:
    engine = Engine(preset(prefill_s_per_chunk=0.5, recompute_last_token=False))
    assert ttft_ms(ask(engine, range(96), 0)) == pytest.approx(1 + 10 + 9.6 + 500)
    assert ttft_ms(ask(engine, range(96), 2000)) == pytest.approx(1 + 10)


def test_each_chunk_of_a_prefill_costs() -> None:
    engine = Engine(preset(prefill_s_per_chunk=0.003))
    assert ttft_ms(ask(engine, range(2500), 0)) == pytest.approx(1 + 10 + 250 + 3 * 3)
    assert ttft_ms(ask(engine, range(5000, 6000), 10_000)) == pytest.approx(1 + 10 + 100 + 3)


def test_noise_is_log_normal_and_the_same_for_the_same_seed() -> None:
    def factors(seed: int, sigma: float) -> list[float]:
        engine = Engine(preset(noise_sigma=sigma, seed=seed))
        # 10 ms + 100 tokens, whatever came before: each has ids of its own.
        return [(ttft_ms(ask(engine, range(n * 100, n * 100 + 100), n * 1000)) - 1) / 20 for n in range(400)]

    logs = [math.log(factor) for factor in factors(1, 0.2)]
    assert statistics.stdev(logs) == pytest.approx(0.2, rel=0.15)
    assert statistics.mean(logs) == pytest.approx(0, abs=0.04)
    assert factors(1, 0.2)[:5] == [pytest.approx(math.exp(log)) for log in logs[:5]]
    assert factors(2, 0.2)[:5] != factors(1, 0.2)[:5]
    assert set(factors(1, 0)) == {1.0}


def test_decode_steps_are_noisy_each_for_itself() -> None:
    engine = Engine(preset(noise_sigma=0.2))
    job = submit(engine, range(100), output=500)
    times = times_ms(run(engine), job)
    logs = [math.log((late - early) / 6) for early, late in pairwise(times)]
    assert statistics.stdev(logs) == pytest.approx(0.2, rel=0.15)
    assert statistics.mean(logs) == pytest.approx(0, abs=0.04)


def test_a_hit_may_be_lost_and_is_there_again_once_computed() -> None:
    engine = Engine(preset(lapse_probability=1))
    ask(engine, range(100), 0)
    again = ask(engine, range(100), 1000)
    assert (again.cached_tokens, again.lapsed) == (0, True)
    assert ttft_ms(again) == pytest.approx(21)
    cold = ask(engine, range(5000, 5100), 2000)
    assert not cold.lapsed  # it had no hit to lose
    # What was lost is forgotten, so there is one copy of each block, not three.
    assert sum(len(blocks) for blocks in engine.pool._blocks_of.values()) == 3 + 3


def test_hits_are_lost_as_often_as_said() -> None:
    engine = Engine(preset(lapse_probability=0.3, seed=5))
    ask(engine, range(100), 0)
    jobs = [ask(engine, range(100), 1000 * n) for n in range(1, 1001)]
    lost = sum(job.lapsed for job in jobs)
    assert [job.cached_tokens for job in jobs] == [0 if job.lapsed else 96 for job in jobs]
    assert lost == pytest.approx(300, abs=4 * math.sqrt(1000 * 0.3 * 0.7))


def test_units_are_lost_as_often_as_said_and_the_truth_says_which() -> None:
    units = {"prefix": "units", "unit_granularity_tokens": 32, "lapse_probability": 0.3, "seed": 5}
    engine = Engine(preset(**units))
    ask(engine, range(100), 0)
    jobs = [ask(engine, range(100), 1000 * n) for n in range(1, 1001)]
    assert [job.cached_tokens for job in jobs] == [0 if job.lapsed else 96 for job in jobs]
    assert sum(job.lapsed for job in jobs) == pytest.approx(300, abs=4 * math.sqrt(1000 * 0.3 * 0.7))
    assert not ask(Engine(preset(**{**units, "lapse_probability": 1})), range(100), 0).lapsed


@pytest.mark.parametrize(("refresh", "cached"), [(True, 96), (False, 0)])
def test_a_hit_begins_a_units_life_anew_unless_it_may_not(refresh: bool, cached: int) -> None:
    units = {"prefix": "units", "unit_granularity_tokens": 32, "idle_ttl_s": 10, "refresh_on_hit": refresh}
    engine = Engine(preset(**units))
    assert [ask(engine, range(100), at_ms).cached_tokens for at_ms in (0, 6000, 12_000)] == [0, 96, cached]


def test_replicas_lose_their_units_each_for_itself() -> None:
    settings = {"prefix": "units", "unit_granularity_tokens": 32, "lapse_probability": 0.5, "seed": 5}
    lost = []
    for replica in (0, 1):
        engine = Engine(preset(**settings), replica=replica)
        ask(engine, range(100), 0)
        lost.append([ask(engine, range(100), 1000 * n).lapsed for n in range(1, 51)])
    assert lost[0] != lost[1]


def test_other_tenants_write_their_share() -> None:
    # Ten blocks. A and B: 129 tokens each, four full blocks and a fifth; each writes four foreign ones beside it.
    for share, cached in ((0, 128), (0.5, 32)):
        engine = Engine(preset(num_blocks=11, max_model_len=320, foreign_share=share))
        ask(engine, range(129), 0)
        ask(engine, range(1000, 1129), 1000)
        # B's five blocks: the last unused one and A's four foreign ones. B's foreign ones then take A's block without
        # content and its three last.
        assert ask(engine, range(129), 2000).cached_tokens == cached


def test_chunks_of_a_step_leave_one_after_the_other_first_tokens_first() -> None:
    engine = Engine(preset(prefill_base_s=0, prefill_s_per_token=0, send_s_per_chunk=0.002))
    jobs = [submit(engine, range(n * 100, n * 100 + 40), output=2) for n in range(3)]
    late = submit(engine, range(5000, 5040), output=1, at_ms=2)
    tokens = run(engine)
    # Three first tokens at 1 ms, 2 ms apart. The next step of 5 + 3 ms ends at 9; the late one, which came during it,
    # has its first token in the step after, of no decode and no time: it leaves when the three before it have left.
    assert [times_ms(tokens, job) for job in jobs] == [[1, 9], [3, 11], [5, 13]]
    assert times_ms(tokens, late) == [15]
    again = Engine(preset(prefill_base_s=0, prefill_s_per_token=0, send_s_per_chunk=0.002))
    old = submit(again, range(40), output=3)
    new = submit(again, range(1000, 1040), output=1, at_ms=0.5)
    tokens = run(again)
    # Steps end at 1, 7 and 13 ms; the last has the third token of one and the first of the other, which came at 1.5.
    assert (times_ms(tokens, old), times_ms(tokens, new)) == ([1, 7, 15], [13])


def test_what_will_be_sampled_is_known_when_the_step_begins() -> None:
    engine = Engine(preset())
    job = submit(engine, range(100), output=3)
    seen = []
    for at_ms in (0, 1, 21, 27, 33):
        run(engine, at_ms)
        seen += [(at_ms, token.number, token.at_ns / MS) for token in engine.take_planned()]
    assert seen == [(1, 0, 21), (21, 1, 27), (27, 2, 33)]
    assert job.done


def test_nothing_begins_before_what_has_happened_already() -> None:
    """A request that waited on its connection behind another came, by its bytes, while that one was answered."""
    engine = Engine(preset())
    first = submit(engine, range(100), output=3)
    tokens = run(engine, 33)
    assert times_ms(tokens, first)[-1] == 33
    second = submit(engine, range(1000, 1100), output=1, at_ms=5)
    assert times_ms(run(engine), second) == [53]
    assert second.scheduled_ns == 33 * MS


def test_blocks_that_are_not_full_push_nothing_out() -> None:
    engine = Engine(preset(num_blocks=11, max_model_len=320))
    ask(engine, range(129), 0)
    for n in range(1, 31):
        ask(engine, range(n * 1000, n * 1000 + 20), n * 1000)  # one block each, never full
    assert engine.pool.evictions == 0
    assert ask(engine, range(129), 50_000).cached_tokens == 128
