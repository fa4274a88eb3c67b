from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.helpers import MS, ROUND, preset, run, submit, times_ms

from kvbench.sim.engine import Engine
from kvbench.sim.settings import resolve_preset
from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import encode_ids


def test_one_request_by_hand() -> None:
    engine = Engine(preset())
    job = submit(engine, range(100), output=3, at_ms=5)
    # Arrives at 5 ms, 1 ms of frontend, 10 ms + 100 tokens * 0.1 ms of prefill, then decode steps of 5 + 1 ms.
    assert times_ms(run(engine), job) == [26, 32, 38]
    assert (job.scheduled_ns, job.first_token_ns) == (6 * MS, 26 * MS)
    assert (job.cached_tokens, job.sampled, job.done) == (0, 3, True)
    assert engine.next_ns() is None


def test_ttft_without_load_is_the_formula_however_many_chunks() -> None:
    parameters = {"attention_s_per_token2": 1e-8, "prefill_s_per_cached_token": 2e-6}
    cold, warm = 7000, 7500
    for chunk in (100, 999, 2048, 8192):
        engine = Engine(preset(**parameters, max_batched_tokens=chunk))
        first = submit(engine, range(cold), output=1)
        [end] = times_ms(run(engine), first)
        # 1 + 10 + 7000 * 0.1 + 1e-5 ms * 7000^2 / 2 = 956 ms
        assert end == pytest.approx(956.0, abs=1e-5)
        again = submit(engine, range(warm), output=1, at_ms=2000)
        [end] = times_ms(run(engine), again)
        # 218 full blocks of the 7000 tokens are cached: 6976. 524 are not.
        # 1 + 10 + 524 * 0.1 + 6976 * 0.002 + 1e-5 * (524 * 6976 + 524^2 / 2) = 115.27912 ms
        assert again.cached_tokens == 6976
        assert end - 2000 == pytest.approx(115.27912, abs=1e-5)


def test_decode_is_batched_and_a_prefill_chunk_delays_it() -> None:
    engine = Engine(preset())
    one = submit(engine, range(100), output=4)
    two = submit(engine, range(5000, 6500), output=2, at_ms=22)
    tokens = run(engine)
    # one: first token at 1 + 10 + 10 = 21 ms; step 21..27 has one decode. two is ready at 23, admitted at 27 with a
    # chunk of 1000 - 1 tokens: step of 6 + 10 + 99.9 ms ends at 142.9; then 501 tokens: 6 + 50.1 ms, 199.0, in
    # which one ends. two's second token: 6 ms.
    assert times_ms(tokens, one) == pytest.approx([21, 27, 142.9, 199.0])
    assert times_ms(tokens, two) == pytest.approx([199.0, 205.0])


def test_a_batch_of_n_decodes_takes_base_plus_n() -> None:
    engine = Engine(preset(prefill_base_s=0, prefill_s_per_token=0))
    jobs = [submit(engine, range(n * 100, n * 100 + 40), output=3) for n in range(8)]
    tokens = run(engine)
    for job in jobs:
        assert times_ms(tokens, job) == [1, 14, 27]


def test_a_late_caller_catches_up_and_shifts_nothing() -> None:
    prompt_times = []
    for stops in ([1e9], [0.5, 3.3, 21, 26.9, 27, 100, 1e9]):
        engine = Engine(preset())
        job = submit(engine, range(100), output=5)
        tokens = [token for stop in stops for token in run(engine, stop)]
        prompt_times.append(times_ms(tokens, job))
        assert all(token.at_ns <= 1e9 * MS for token in tokens)
    assert prompt_times[0] == prompt_times[1] == [21, 27, 33, 39, 45]


@pytest.mark.parametrize(("length", "cached"), [(32, 0), (33, 32), (64, 32), (65, 64), (1000, 992)])
def test_hits_are_whole_blocks_and_never_the_last_token(length: int, cached: int) -> None:
    engine = Engine(preset())
    submit(engine, range(length), output=1)
    run(engine)
    again = submit(engine, range(length), output=1, at_ms=10_000)
    run(engine)
    assert again.cached_tokens == cached


def test_generated_tokens_are_cached_except_the_last_sampled_one() -> None:
    for output, cached in ((60, 128), (61, 160), (28, 96), (29, 128)):
        engine = Engine(preset())
        first = submit(engine, range(100), output=output)
        run(engine)
        # 100 + 60: 159 tokens were computed, four blocks; 100 + 61 fill the fifth.
        second = engine.submit(
            first.prompt + first.output.tokens(0, output) + encode_ids(range(900_000, 900_040)),
            OutputText(b"", max_tokens=1),
            salt=None,
            now_ns=10_000 * MS,
        )
        run(engine)
        assert second.cached_tokens == cached, output


def test_the_second_of_two_identical_prompts_hits_at_once() -> None:
    engine = Engine(preset())
    first, second = submit(engine, range(600), output=1), submit(engine, range(600), output=1)
    tokens = run(engine)
    assert (first.cached_tokens, second.cached_tokens) == (0, 576)
    # Both fit the same step: 1 + (10 + 60) + (10 + 24 * 0.1) ms.
    assert times_ms(tokens, first) == times_ms(tokens, second) == [83.4]


def test_salts_are_apart() -> None:
    engine = Engine(preset())
    for at, (salt, cached) in enumerate([(None, 0), ("a", 0), ("b", 0), ("a", 96), (None, 96)]):
        job = submit(engine, range(100), output=1, at_ms=at * 1000, salt=salt)
        run(engine)
        assert job.cached_tokens == cached


def test_requests_beyond_max_running_wait_in_order() -> None:
    engine = Engine(preset(max_running=1))
    jobs = [submit(engine, range(n * 1000, n * 1000 + 100), output=2) for n in range(3)]
    tokens = run(engine)
    # 20 ms of prefill and 6 ms for the second token, one after the other.
    assert [times_ms(tokens, job) for job in jobs] == [[21, 27], [47, 53], [73, 79]]
    assert [job.scheduled_ns - job.ready_ns for job in jobs if job.scheduled_ns is not None] == [0, 26 * MS, 52 * MS]


def test_a_prompt_that_does_not_fit_beside_the_running_ones_waits() -> None:
    # Ten blocks: the first holds seven, the second needs four.
    engine = Engine(preset(num_blocks=11, max_model_len=320))
    first = submit(engine, range(200), output=3)
    second = submit(engine, range(1000, 1100), output=1)
    run(engine, 30)
    assert (len(engine.running), len(engine.waiting)) == (1, 1)
    run(engine)
    assert second.scheduled_ns == 43 * MS  # 1 + 30 + two steps of 6: the first one's end
    assert engine.preemptions == 0
    assert first.done
    assert second.done


def test_the_newest_request_is_preempted_when_blocks_run_out_and_loses_nothing() -> None:
    # Ten blocks. Each prompt takes four and needs a fifth at its 33rd token and a sixth at its 65th.
    engine = Engine(preset(num_blocks=11, max_model_len=320))
    first = submit(engine, range(127), output=80)
    second = submit(engine, range(1000, 1127), output=80)
    tokens = run(engine)
    assert engine.preemptions == 1
    assert (first.preemptions, second.preemptions) == (0, 1)
    for job in (first, second):
        assert [token.number for token in tokens if token.job is job] == list(range(80))
    assert engine.pool.free == 10
    # In step until the first needs its sixth block, for its 161st token; by then each has sampled 34. The second needs
    # five blocks to start again, and gets them when the first has ended.
    of_first, of_second = times_ms(tokens, first), times_ms(tokens, second)
    assert of_second[:34] == of_first[:34]
    assert of_second[34] > of_first[79]
    assert of_first[79] - of_first[33] == pytest.approx(46 * 6)
    # What was reported as cached is the first admission's, as in vLLM.
    assert second.cached_tokens == 0


def test_a_preempted_request_comes_before_those_that_never_ran() -> None:
    engine = Engine(preset(num_blocks=11, max_model_len=320))
    first = submit(engine, range(127), output=80)
    second = submit(engine, range(1000, 1127), output=80)
    third = submit(engine, range(2000, 2040), output=1, at_ms=60)  # finds all ten blocks in use
    tokens = run(engine)
    assert second.preemptions == 1
    # While the first runs alone four blocks are free: enough for the third, not for the second, whose turn it is.
    assert third.scheduled_ns is not None
    assert third.scheduled_ns / MS >= times_ms(tokens, first)[79]
    assert times_ms(tokens, third)[0] >= times_ms(tokens, second)[34]


def test_past_the_knee_hits_and_filler_add_up_to_the_capacity() -> None:
    for filler in (12_224, 12_256, 12_320, 14_336, 16_320):
        engine = Engine(resolve_preset("tiny", ROUND))
        submit(engine, range(4096), output=1)
        run(engine)
        for start in range(0, filler, 4096):
            submit(engine, range(100_000 + start, 100_000 + start + min(4096, filler - start)), output=1, at_ms=1e6)
            run(engine)
        again = submit(engine, range(4096), output=1, at_ms=2e6)
        run(engine)
        # 16,352 usable tokens; at most 4,064 of the 4,096 can be hit at all.
        assert again.cached_tokens == min(16_352 - filler, 4064), filler


@pytest.mark.parametrize(("prompts", "rate"), [(16, 992 / 1024), (17, 0.0)])
def test_a_cyclic_working_set_falls_off_a_cliff(prompts: int, rate: float) -> None:
    engine = Engine(resolve_preset("tiny", ROUND))
    for lap in range(3):
        cached = 0
        for number in range(prompts):
            job = submit(engine, range(number * 2000, number * 2000 + 1024), output=1, at_ms=1e6 * (lap + 1))
            run(engine)
            cached += job.cached_tokens
        assert cached / (prompts * 1024) == (rate if lap else 0.0)


def test_an_aborted_request_frees_its_blocks_and_stays_silent() -> None:
    engine = Engine(preset())
    job = submit(engine, range(100), output=50)
    other = submit(engine, range(1000, 1040), output=2, at_ms=30)
    waiting = submit(engine, range(3000, 3040), output=2, at_ms=40)
    run(engine, 33)
    engine.abort(waiting, 33 * MS)
    engine.abort(job, 33 * MS)
    engine.abort(job, 34 * MS)
    tokens = run(engine)
    assert {token.job for token in tokens} == {other}
    assert engine.pool.free == engine.pool.capacity
    assert engine.next_ns() is None
    # What it had computed by then is still a prefix for others.
    again = submit(engine, range(100), output=1, at_ms=1000)
    run(engine)
    assert again.cached_tokens == 96


def test_trace_time_scales_with_the_trace() -> None:
    for scale, cached in ((1.0, 96), (0.5, 0), (0.0, 96)):
        engine = Engine(preset(idle_ttl_s=10), trace_time_scale=scale)
        submit(engine, range(100), output=1)
        run(engine)
        again = submit(engine, range(100), output=1, at_ms=8000)
        run(engine)
        assert again.cached_tokens == cached


def test_the_shortest_life_is_over_at_once() -> None:
    engine = Engine(preset(idle_ttl_s=1e-12))
    submit(engine, range(100), output=1)
    run(engine)
    again = submit(engine, range(100), output=1, at_ms=8000)
    run(engine)
    assert again.cached_tokens == 0


def test_evicted_blocks_are_counted_where_they_were_needed() -> None:
    engine = Engine(preset(num_blocks=11, max_model_len=320))
    first = submit(engine, range(256), output=1)  # eight blocks
    run(engine)
    second = submit(engine, range(1000, 1128), output=1, at_ms=1000)  # four: two unused, two evicted
    run(engine)
    assert (first.evicted_blocks, second.evicted_blocks) == (0, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(1, 60), st.integers(0, 300)),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_comes_every_token_comes_once_and_all_blocks_return(
    requests: list[tuple[int, int, int, int]],
) -> None:
    engine = Engine(preset(num_blocks=11, max_model_len=320, max_batched_tokens=64))
    jobs = [
        submit(engine, range(group * 1000, group * 1000 + length), output=output, at_ms=at_ms)
        for group, length, output, at_ms in sorted(requests, key=lambda request: request[3])
    ]
    tokens = run(engine)
    for job in jobs:
        own = [token for token in tokens if token.job is job]
        assert [token.number for token in own] == list(range(job.output.length_tokens))
        assert [token.last for token in own].index(True) == len(own) - 1
        assert all(early.at_ns <= late.at_ns for early, late in pairwise(own))
        assert job.cached_tokens % 32 == 0
        assert job.cached_tokens < job.prompt_tokens
    assert engine.pool.free == 10
    assert not engine.running
    assert not engine.waiting
