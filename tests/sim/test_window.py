"""Sliding-window state by hand: blocks of 32 tokens, a window of 64, prompts of 200 tokens with six full blocks."""

from __future__ import annotations

import pytest
from tests.sim.helpers import ask, preset, ttft_ms

from kvbench.sim.engine import Engine
from kvbench.sim.tokenizer import encode_ids


def engine(replay: str, **settings: object) -> Engine:
    return Engine(preset(window_tokens=64, window_replay=replay, **settings))


def test_every_hit_replays_its_last_window() -> None:
    always = engine("always")
    ask(always, range(200), 0)
    again = ask(always, range(200), 1000)
    # Cached is what was hit; of the 200 tokens 8 were not, and 64 are computed again.
    assert (again.cached_tokens, again.replayed_tokens) == (192, 64)
    assert ttft_ms(again) == pytest.approx(1 + 10 + 7.2)
    assert always.hit_tokens == 192


@pytest.mark.parametrize(("tokens", "cached", "computed"), [(65, 0, 65), (96, 0, 96), (97, 96, 65)])
def test_a_hit_no_longer_than_the_window_is_not_taken(tokens: int, cached: int, computed: int) -> None:
    always = engine("always")
    ask(always, range(200), 0)
    again = ask(always, range(tokens), 1000)
    assert again.cached_tokens == cached
    assert ttft_ms(again) == pytest.approx(11 + computed / 10)


def test_without_a_window_nothing_is_replayed() -> None:
    plain = Engine(preset())
    ask(plain, range(200), 0)
    again = ask(plain, range(65), 1000)
    assert (again.cached_tokens, again.replayed_tokens) == (64, 0)


@pytest.mark.parametrize(("pause_s", "replayed"), [(9.9, 0), (10.1, 64)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_kept_state_spares_the_replay_until_its_ttl(pause_s: float, replayed: int, scale: float) -> None:
    after = Engine(preset(window_tokens=64, window_replay="after_ttl", window_ttl_s=10), trace_time_scale=scale)
    first = ask(after, range(200), 0)
    again = ask(after, range(200), ttft_ms(first) + pause_s * scale * 1000)
    assert (again.cached_tokens, again.replayed_tokens) == (192, replayed)
    assert ttft_ms(again) == pytest.approx(11 + 0.8 + replayed / 10)


def test_a_branch_has_no_state_and_replays() -> None:
    after = engine("after_ttl")
    ask(after, range(200), 0)
    branch = ask(after, [*range(170), *range(900, 930)], 1000)
    # Five blocks in common: no input or output ended there.
    assert (branch.cached_tokens, branch.replayed_tokens) == (160, 64)


def test_kept_state_is_taken_where_the_replay_would_compute_more() -> None:
    after = engine("after_ttl")
    ask(after, range(140), 0)  # state at block 4
    ask(after, [*range(140), *range(500, 600)], 1000)  # 240 tokens: state at block 7
    branch = ask(after, [*range(140), *range(500, 530), *range(700, 730)], 2000)
    # 170 in common, five blocks: 128 tokens with their state, or 160 of which 64 are computed again, so 96.
    assert (branch.cached_tokens, branch.replayed_tokens) == (128, 0)


def test_never_replaying_hits_what_has_its_state_or_nothing() -> None:
    never = engine("never", window_ttl_s=10)
    ask(never, range(200), 0)
    assert ask(never, range(200), 1000).cached_tokens == 192
    assert ask(never, [*range(170), *range(900, 930)], 2000).cached_tokens == 0
    assert ask(never, range(200), 30_000).cached_tokens == 0


def test_state_is_kept_at_the_end_of_the_output_too() -> None:
    for cache_outputs, cached in ((True, 128), (False, 96)):
        never = engine("never", cache_outputs=cache_outputs)
        first = ask(never, range(100), 0, output=60)
        # 159 tokens computed: four blocks; the input ended in the fourth, after three.
        longer = first.prompt + first.output.tokens(0, 60) + encode_ids(range(900_000, 900_040))
        assert ask(never, longer, 5000).cached_tokens == cached


@pytest.mark.parametrize(("refresh", "cached"), [(True, 192), (False, 0)])
def test_a_hit_begins_the_states_life_anew_unless_it_may_not(refresh: bool, cached: int) -> None:
    """The repeated prompt itself writes its state anew, so the one in between stops short of it."""
    never = engine("never", window_ttl_s=10, refresh_on_hit=refresh)
    ask(never, range(200), 0)
    ask(never, [*range(200), *range(800, 830)], 6000)
    assert ask(never, range(200), 12_000).cached_tokens == cached


def test_state_goes_with_the_blocks_it_belongs_to() -> None:
    never = engine("never", num_blocks=11, max_model_len=320)
    ask(never, range(200), 0)
    ask(never, range(5000, 5320), 1000)
    assert ask(never, range(200), 2000).cached_tokens == 0
    # The third has evicted the second's tail, at whose end its state was.
    assert len(never.store.window._used_ns) == 1


def test_only_the_replayed_part_of_what_comes_up_is_computed() -> None:
    tiers = {"bytes_per_token": 1000, "host_bytes": 10**7, "host_bandwidth_bytes_per_s": 32e6, "host_latency_s": 0}
    always = engine("always", idle_ttl_s=1, **tiers)
    ask(always, range(200), 0)
    again = ask(always, range(200), 5000)
    assert (again.hits, again.replayed_tokens) == ({"hbm": 0, "host": 192}, 64)
    # Six blocks of a millisecond each, then 72 tokens.
    assert ttft_ms(again) == pytest.approx(1 + 6 + 10 + 7.2)
