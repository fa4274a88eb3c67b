"""What a shared prefix is worth under each rule, from the statements of the providers and of vLLM's source."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Expectation
from kvbench.traces.prefix import BlockRule, HitModel, Rule, Sent, StepsRule


def second_of(rule: Rule, first: int, shared: int, prompt: int) -> Expectation:
    """A prompt of `prompt` tokens that shares `shared` with an earlier one of `first`."""
    got: list[Expectation] = []
    model = HitModel(rule, lambda _, e: got.append(e))
    ids = array("I", [*range(shared), *range(10**6, 10**6 + prompt - shared)])
    model.add(Sent("1", "1", "", array("I", range(first)), 0, 5, 6))
    model.add(Sent("2", "2", "", ids, 10, 15, 16))
    model.finish()
    assert got[0].floor == got[0].ceiling == 0
    return got[1]


@pytest.mark.parametrize(
    ("shared", "prompt", "bounds"),
    [
        (1023, 2000, (0, 0)),
        (1024, 2000, (1024, 1024)),
        (1151, 2000, (1024, 1024)),
        (1152, 2000, (1152, 1152)),
        (1024, 1024, (0, 1024)),
        (1152, 1152, (1024, 1152)),
        (1153, 1153, (1152, 1152)),
        (0, 5000, (0, 0)),
    ],
)
def test_steps_of_128_from_1024(shared: int, prompt: int, bounds: tuple[int, int]) -> None:
    got = second_of(StepsRule(), 5000, shared, prompt)
    assert (got.rule, got.floor, got.ceiling) == ("steps 1024 + 128", *bounds)
    assert (got.reason is None) == (bounds[0] == bounds[1])


@pytest.mark.parametrize(
    ("block", "shared", "prompt", "cached"),
    [
        (64, 128, 500, 0),
        (64, 191, 500, 0),
        (64, 192, 500, 192),
        (64, 256, 256, 192),
        (64, 193, 193, 192),
        (64, 192, 192, 0),
        (256, 255, 300, 0),
        (256, 256, 300, 256),
        (32, 159, 500, 0),
        (32, 160, 500, 160),
    ],
)
def test_a_hit_no_longer_than_the_replayed_window_is_not_taken(
    block: int, shared: int, prompt: int, cached: int
) -> None:
    got = second_of(BlockRule(block, replay_tokens=128), 600, shared, prompt)
    assert (got.rule, got.floor, got.ceiling) == (f"block {block} with replay 128", cached, cached)


def test_what_was_not_taken_is_computed_into_further_blocks() -> None:
    """Pool of 4 blocks of 64. a: 2 blocks; again: hit of 64 <= 128 refused, so 2 more; b (1 block) then evicts the
    oldest, the tail of a's first two; c finds a's second copies whole: 128 is no longer than the window, so 0. With no
    replay "again" hits 64, recomputes a last block, and c hits 128."""
    a, b, c = range(128), range(500, 564), [*range(128), 7]
    for replay, cached in ((0, (64, 128)), (128, (0, 0)), (63, (64, 128))):
        got: list[Expectation] = []
        model = HitModel(BlockRule(64, 256, replay), lambda _, e, into=got: into.append(e))
        for i, ids in enumerate((a, a, b, c)):
            model.add(Sent(str(i), str(i), "", array("I", ids), i * 10, i * 10 + 5, i * 10 + 6, 1))
        model.finish()
        assert [(got[i].floor, got[i].ceiling) for i in (1, 3)] == [(cached[0],) * 2, (cached[1],) * 2]


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_steps_by_brute_force(shared: int, prompt: int) -> None:
    shared = min(shared, prompt)
    steps = [0, *range(1024, 4000, 128)]
    got = second_of(StepsRule(), 3000, shared, prompt)
    assert got.floor == max(s for s in steps if s <= shared and s < max(prompt, 1))
    assert got.ceiling == max(s for s in steps if s <= shared)


@given(st.integers(0, 600), st.integers(1, 600), st.sampled_from([16, 32, 64, 256]), st.sampled_from([0, 128, 200]))
def test_replay_by_brute_force(shared: int, prompt: int, block: int, replay: int) -> None:
    shared = min(shared, prompt)
    got = second_of(BlockRule(block, replay_tokens=replay), 600, shared, prompt)
    ends = [k for k in range(0, 600, block) if k <= shared and k < prompt and (k > replay or k == 0)]
    assert (got.floor, got.ceiling) == (max(ends), max(ends))
