"""Generated tokens whose ids are known are hit like any other, all but the last sampled one."""

from __future__ import annotations

from array import array

import pytest

from kvbench.model import Expectation
from kvbench.traces.prefix import BlockRule, HitModel, Sent


def request(key: str, ids: list[int], at: int, out: list[int], *, first: int = 5, end: int = 50) -> Sent:
    return Sent(
        key=key,
        session_id="s",
        salt="",
        ids=array("I", ids),
        sent_ns=at,
        first_token_ns=at + first,
        end_ns=at + end,
        output_tokens=len(out),
        output_ids=array("I", out),
    )


def expect(*requests: Sent, capacity: int | None = None) -> dict[str, Expectation]:
    got: dict[str, Expectation] = {}
    model = HitModel(BlockRule(32, capacity), got.__setitem__)
    for each in requests:
        model.add(each)
    model.finish()
    return got


PROMPT = list(range(100))
OUTPUT = list(range(5000, 5060))


def test_the_next_turn_hits_what_was_generated_as_a_real_server_did() -> None:
    """100 + 60 tokens, then 180: a vLLM 0.32 with blocks of 32 reported 128."""
    got = expect(
        request("a", PROMPT, 0, OUTPUT),
        request("b", PROMPT + OUTPUT + list(range(9000, 9020)), 100, [1]),
    )["b"]
    assert (got.floor, got.ceiling, got.reason) == (128, 128, None)


@pytest.mark.parametrize(("generated", "cached"), [(28, 96), (29, 128), (60, 128), (61, 160), (62, 160)])
def test_the_last_sampled_token_is_not_cached(generated: int, cached: int) -> None:
    out = list(range(5000, 5000 + generated))
    got = expect(request("a", PROMPT, 0, out), request("b", PROMPT + out + [7] * 100, 100, [1]))["b"]
    assert (got.floor, got.ceiling) == (cached, cached)


def test_other_output_is_not_hit() -> None:
    got = expect(request("a", PROMPT, 0, OUTPUT), request("b", PROMPT + [1] * 80, 100, [1]))["b"]
    assert (got.floor, got.ceiling) == (96, 96)


def test_a_request_that_overlaps_the_generation_may_hit_it_or_not() -> None:
    got = expect(request("a", PROMPT, 0, OUTPUT, end=500), request("b", PROMPT + OUTPUT + [1] * 9, 100, [1]))["b"]
    assert (got.floor, got.ceiling) == (96, 128)
    assert got.reason is not None
