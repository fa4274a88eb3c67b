"""The hit model against cases worked out by hand and against a brute-force statement of the rule."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Expectation
from kvbench.traces.prefix import BlockRule, HitModel, Sent


def expect(rule: BlockRule, *requests: Sent, resent: dict[str, int] | None = None) -> dict[str, Expectation]:
    got: dict[str, Expectation] = {}
    model = HitModel(rule, got.__setitem__)
    for request in sorted(requests, key=lambda r: r.sent_ns):
        model.add(request, (resent or {}).get(request.key, 0))
    model.finish()
    return got


def sent(
    key: str,
    ids: list[int] | range,
    at: int,
    first: int | None = None,
    *,
    salt: str = "",
    session: str = "",
    out: int = 1,
) -> Sent:
    first = at + 5 if first is None else first
    return Sent(
        key=key,
        session_id=session or key,
        salt=salt,
        ids=array("I", ids),
        sent_ns=at,
        first_token_ns=first,
        end_ns=first + 5,
        output_tokens=out,
    )


@pytest.mark.parametrize(("prompt", "cached"), [(32, 0), (33, 32), (64, 32), (65, 64), (1000, 992)])
def test_a_repeated_prompt_hits_whole_blocks_and_recomputes_the_last_token(prompt: int, cached: int) -> None:
    # the table was read off a real vLLM 0.32 with blocks of 32
    got = expect(BlockRule(32), sent("cold", range(prompt), 0), sent("warm", range(prompt), 100))
    assert (got["cold"].floor, got["cold"].ceiling) == (0, 0)
    assert (got["warm"].floor, got["warm"].ceiling) == (cached, cached)
    assert got["warm"].reason is None
    assert got["warm"].input_tokens == prompt


def test_salts_do_not_share() -> None:
    got = expect(BlockRule(4), sent("a", range(9), 0, salt="x"), sent("b", range(9), 100, salt="y"))
    assert (got["b"].floor, got["b"].ceiling) == (0, 0)


def test_overlapping_requests_with_an_uncached_prefix_give_an_interval_both_ways() -> None:
    # the second was sent before the first had its first token: either may have been scheduled first
    got = expect(BlockRule(4), sent("a", range(9), 0, first=50), sent("b", range(9), 10, first=60))
    assert (got["a"].floor, got["a"].ceiling) == (0, 8)
    assert (got["b"].floor, got["b"].ceiling) == (0, 8)
    assert got["a"].reason is not None


def test_a_request_sent_after_the_first_token_cannot_have_helped_the_first() -> None:
    got = expect(BlockRule(4), sent("a", range(9), 0, first=50), sent("b", range(9), 50, first=60))
    assert (got["a"].floor, got["a"].ceiling) == (0, 0)
    assert (got["b"].floor, got["b"].ceiling) == (8, 8)


def test_a_cached_prefix_stays_a_point_while_others_overlap() -> None:
    first = sent("a", range(9), 0, first=5)
    b, c = (
        sent("b", [*range(8), 90, 91, 92, 93, 94], 10, first=50),
        sent("c", [*range(8), 90, 91, 92, 93, 95], 20, first=60),
    )
    got = expect(BlockRule(4), first, b, c)
    assert (got["b"].floor, got["b"].ceiling) == (8, 12)
    assert (got["c"].floor, got["c"].ceiling) == (8, 12)


def test_a_failed_request_leaves_doubt_not_certainty() -> None:
    failed = Sent(key="f", session_id="f", salt="", ids=array("I", range(9)), sent_ns=0, first_token_ns=None, end_ns=9)
    got = expect(BlockRule(4), failed, sent("b", range(9), 100))
    assert (got["b"].floor, got["b"].ceiling) == (0, 8)


def test_generated_tokens_raise_only_the_ceiling_and_only_as_far_as_the_text_agrees() -> None:
    # 100 prompt + 60 generated tokens, next prompt 180 long: a real vLLM with blocks of 32 reports 128 where the
    # generated ids are repeated, and 96 where other text stands there
    a = sent("a", range(100), 0, session="s", out=60)
    b = sent("b", range(180), 100, session="s")
    assert (lambda e: (e.floor, e.ceiling))(expect(BlockRule(32), a, b, resent={"b": 0})["b"]) == (96, 96)
    assert (lambda e: (e.floor, e.ceiling))(expect(BlockRule(32), a, b, resent={"b": 27})["b"]) == (96, 96)
    assert (lambda e: (e.floor, e.ceiling))(expect(BlockRule(32), a, b, resent={"b": 28})["b"]) == (96, 128)
    # the last sampled token is never cached: 159 of 160 tokens are 4 whole blocks, 160 would be 5
    assert (lambda e: (e.floor, e.ceiling))(expect(BlockRule(32), a, b, resent={"b": 900})["b"]) == (96, 128)


def test_generated_tokens_do_not_count_where_the_prompt_does_not_go_on_from_the_previous_one() -> None:
    a = sent("a", range(100), 0, session="s", out=60)
    b = sent("b", [*range(96), 7, 7, 7, 7, *range(100, 180)], 100, session="s")
    assert (lambda e: (e.floor, e.ceiling))(expect(BlockRule(32), a, b, resent={"b": 900})["b"]) == (96, 96)


def test_beyond_the_known_capacity_turns_one_after_another_hit_what_an_lru_holds() -> None:
    # 4 blocks of 4: a leaves 2, then b takes the 2 empty ones and evicts a's tail before its head
    a, b, c = sent("a", range(8), 0, out=0), sent("b", range(100, 112), 100, out=0), sent("c", range(9), 200, out=0)
    got = expect(BlockRule(4, capacity_tokens=16), a, b, c)
    assert (got["c"].floor, got["c"].ceiling, got["c"].reason) == (4, 4, None)
    got = expect(BlockRule(4, capacity_tokens=32), a, b, c)
    assert (got["c"].floor, got["c"].ceiling) == (8, 8)


def test_order_of_sending_is_required() -> None:
    model = HitModel(BlockRule(4), lambda key, e: None)
    model.add(sent("a", range(5), 10))
    with pytest.raises(ValueError, match="order of sending"):
        model.add(sent("b", range(5), 9))


@st.composite
def workloads(draw: st.DrawFn) -> list[Sent]:
    requests = []
    for key in range(draw(st.integers(1, 8))):
        ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
        at = draw(st.integers(0, 30)) * 2
        first = at + 1 + 2 * draw(st.integers(0, 8))
        requests.append(
            sent(str(key), ids, at, first, session=draw(st.sampled_from("xyz")), salt=draw(st.sampled_from("pq")))
        )
    return requests


@given(workloads(), st.integers(1, 4))
def test_intervals_equal_the_rule_stated_by_brute_force(requests: list[Sent], block: int) -> None:
    got = expect(BlockRule(block), *requests)
    for r in requests:
        limit = (len(r.ids) - 1) // block

        def holds(q: Sent, k: int, r: Sent = r) -> bool:
            return q.salt == r.salt and len(q.ids) >= k * block and q.ids[: k * block] == r.ids[: k * block]

        others = [q for q in requests if q.key != r.key]
        floor = ceiling = 0
        for k in range(1, limit + 1):
            if floor == k - 1 and any(holds(q, k) and (q.first_token_ns or 0) <= r.sent_ns for q in others):
                floor = k
            if ceiling == k - 1 and any(holds(q, k) and q.sent_ns < (r.first_token_ns or 0) for q in others):
                ceiling = k
        assert (got[r.key].floor, got[r.key].ceiling) == (floor * block, ceiling * block)
