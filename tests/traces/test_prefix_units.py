"""DeepSeek's prefix units: cases by hand, and a brute-force statement of the rule over all pairs of requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Expectation
from kvbench.traces.prefix import HitModel, Sent, UnitsRule

S = 10**9
MINUTE = 60


def sent(
    key: str,
    ids: Sequence[int],
    at_s: float,
    *,
    first_s: float | None = 1.0,
    end_s: float = 2.0,
    out: int = 1,
    out_ids: Sequence[int] | None = None,
    session: str = "",
    salt: str = "",
) -> Sent:
    """Times from the sending on, except at_s."""
    return Sent(
        key=key,
        session_id=session or key,
        salt=salt,
        ids=array("I", ids),
        sent_ns=round(at_s * S),
        first_token_ns=None if first_s is None else round((at_s + first_s) * S),
        end_ns=round((at_s + end_s) * S),
        output_tokens=out if out_ids is None else len(out_ids),
        output_ids=None if out_ids is None else array("I", out_ids),
    )


def expect(rule: UnitsRule, *requests: Sent, resent: dict[str, int] | None = None) -> dict[str, Expectation]:
    got: dict[str, Expectation] = {}
    model = HitModel(rule, got.__setitem__)
    for request in sorted(requests, key=lambda r: r.sent_ns):
        model.add(request, (resent or {}).get(request.key, 0))
    model.finish()
    return got


def bounds(rule: UnitsRule, *requests: Sent, resent: dict[str, int] | None = None) -> list[tuple[int, int]]:
    got = expect(rule, *requests, resent=resent)
    return [(e.floor, e.ceiling) for r in requests if (e := got[r.key]).floor is not None and e.ceiling is not None]


A, B, C, D = (list(range(start, start + 1024)) for start in (0, 10_000, 20_000, 30_000))


def test_a_common_prefix_is_hit_by_the_third_request_only() -> None:
    minutes = [sent(key, A + rest, i * MINUTE) for i, (key, rest) in enumerate((("b", B), ("c", C), ("d", D)))]
    assert bounds(UnitsRule(), *minutes) == [(0, 0), (0, 0), (1024, 1024)]


def test_the_longest_common_block_prefix_is_not_the_rule() -> None:
    """A+B, then A alone: nothing ended at A."""
    assert bounds(UnitsRule(), sent("b", A + B, 0), sent("a", A, MINUTE)) == [(0, 0), (0, 0)]


def test_a_longer_prompt_hits_the_whole_earlier_one() -> None:
    assert bounds(UnitsRule(), sent("1", A, 0), sent("2", A + B, MINUTE), sent("3", A + B + C, 2 * MINUTE)) == [
        (0, 0),
        (1024, 1024),
        (2048, 2048),
    ]


def test_the_recorded_answers_lie_inside() -> None:
    """hit/miss/prompt as the API reported them: 512/51/563, 0/875/875 and then 896/80/976."""
    text = list(range(2000))
    first = bounds(UnitsRule(), sent("1", text[:540], 0), sent("2", text[:563], MINUTE))
    assert first == [(0, 0), (512, 512)]
    # 875 tokens and an answer of 50, which the next prompt repeats: up to 925 tokens of it, of which 896 are whole
    # granules of 64 or of 128; without the answer's unit 875 would give 832 or 768
    second = bounds(
        UnitsRule(),
        sent("1", text[:875], 0, out=50, session="s"),
        sent("2", text[:976], MINUTE, session="s"),
        resent={"2": 200},
    )
    assert second == [(0, 0), (768, 896)]
    assert bounds(UnitsRule(), sent("1", text[:875], 0, session="s"), sent("2", text[:976], MINUTE, session="s")) == [
        (0, 0),
        (768, 832),
    ]


@pytest.mark.parametrize(
    ("granularity", "expected"), [(None, (768, 832)), (64, (832, 832)), (128, (768, 768)), (1, (875, 875))]
)
def test_granularity(granularity: int | None, expected: tuple[int, int]) -> None:
    rule = UnitsRule(granularity_tokens=granularity)
    assert bounds(rule, sent("1", range(875), 0), sent("2", range(900), MINUTE))[1] == expected


def test_a_unit_may_be_stored_up_to_its_last_whole_granule() -> None:
    """The first prompt ends at 100 tokens, of which the second has 70: all of the 64 that a granule keeps."""
    other = [*range(70), *range(500, 600)]
    assert bounds(UnitsRule(), sent("1", range(100), 0), sent("2", other, MINUTE))[1] == (0, 64)
    assert bounds(UnitsRule(), sent("1", range(100), 0), sent("2", other[7:], MINUTE))[1] == (0, 0)
    # and where two prompts parted at 100, a third that parts from them at 70
    a, b, c = [*range(100), *B], [*range(100), *C], [*range(70), *D]
    assert bounds(UnitsRule(), sent("a", a, 0), sent("b", b, MINUTE), sent("c", c, 2 * MINUTE))[2] == (0, 64)
    # nothing ends in the granule of 70 where the others parted at 150
    a, b, c = [*range(150), *B], [*range(150), *C], [*range(70), *D]
    assert bounds(UnitsRule(), sent("a", a, 0), sent("b", b, MINUTE), sent("c", c, 2 * MINUTE))[2] == (0, 0)


def test_the_same_prompt_again_leaves_a_token_to_compute_or_not() -> None:
    assert bounds(UnitsRule(), sent("1", range(875), 0), sent("2", range(875), MINUTE))[1] == (768, 832)
    assert bounds(UnitsRule(), sent("1", A, 0), sent("2", A, MINUTE))[1] == (0, 1024)


def test_a_unit_is_there_for_sure_once_it_was_built() -> None:
    rule = UnitsRule(build_s=10)
    # first token at 1 s, so built at 11 s
    assert bounds(rule, sent("1", A, 0), sent("2", A + B, 10.9))[1] == (0, 1024)
    assert bounds(rule, sent("1", A, 0), sent("2", A + B, 11))[1] == (1024, 1024)


def test_a_unit_is_there_for_sure_while_it_is_used() -> None:
    rule = UnitsRule(build_s=10, lifetime_s=300)
    first = sent("1", A, 0)
    assert bounds(rule, first, sent("2", A + B, 311))[1] == (1024, 1024)
    assert bounds(rule, first, sent("2", A + B, 312))[1] == (0, 1024)
    # a use prolongs it; a failed request is no use
    use = sent("u", A + C, 200)
    assert bounds(rule, first, use, sent("2", A + B, 500))[2] == (1024, 1024)
    assert bounds(rule, first, use, sent("2", A + B, 501))[2] == (0, 1024)
    failed = sent("u", A + C, 200, first_s=None)
    assert bounds(rule, first, failed, sent("2", A + B, 500))[2] == (0, 1024)


def test_a_lapsed_unit_is_sure_again_once_made_again() -> None:
    rule = UnitsRule(build_s=10, lifetime_s=300)
    later = [sent("2", A, 1000), sent("3", A + B, 1005), sent("4", A + C, 1050)]
    assert bounds(rule, sent("1", A, 0), *later) == [(0, 0), (0, 1024), (0, 1024), (1024, 1024)]


def test_overlapping_requests_may_have_been_taken_in_either_order() -> None:
    got = bounds(UnitsRule(), sent("1", A, 0, first_s=30, end_s=40), sent("2", A + B, 10, first_s=40, end_s=50))
    assert got == [(0, 0), (0, 1024)]
    got = bounds(UnitsRule(), sent("1", A + B, 0, first_s=30, end_s=40), sent("2", A, 10, first_s=5, end_s=6))
    assert got == [(0, 1024), (0, 0)]


def test_outputs_of_known_ids_are_units() -> None:
    out = list(range(90_000, 90_100))
    got = bounds(
        UnitsRule(granularity_tokens=64),
        sent("1", A, 0, out_ids=out),
        sent("2", A + out + B, MINUTE),
        sent("3", A + out[:80] + B, 2 * MINUTE),
    )
    # 1,124 tokens are 17 granules of 64; the third has them too, but not all of the unit: then 1,024 are sure
    assert got[1:] == [(1088, 1088), (1024, 1088)]


def test_unknown_output_raises_the_ceiling_as_far_as_the_re_sent_text_can_hold_it() -> None:
    a, b = sent("1", A, 0, out=100, session="s"), sent("2", A + B, MINUTE, session="s")
    assert bounds(UnitsRule(), a, b, resent={"2": 63})[1] == (1024, 1024)
    assert bounds(UnitsRule(), a, b, resent={"2": 64})[1] == (1024, 1088)
    assert bounds(UnitsRule(), a, sent("2", A[:-1] + B, MINUTE, session="s"), resent={"2": 64})[1] == (0, 0)


def test_a_coarse_granule_stores_less_of_a_unit_and_is_matched_sooner() -> None:
    """1,124 tokens: 17 granules of 64, of which the second prompt has 16 and a half; 8 of 128, which it has."""
    tail = list(range(80_000, 80_100))
    requests = sent("1", A + tail, 0), sent("2", A + tail[:30] + B, MINUTE)
    assert bounds(UnitsRule(), *requests)[1] == (0, 1024)
    assert bounds(UnitsRule(granularity_tokens=128), *requests)[1] == (0, 1024)
    assert bounds(UnitsRule(granularity_tokens=64), *requests)[1] == (0, 0)
    # the same where the text of an output of unknown ids is sent again: 1,224 are 19 granules of 64, or 9 of 128
    a, b = sent("1", A, 0, out=200, session="s"), sent("2", A + B, MINUTE, session="s")
    assert bounds(UnitsRule(), a, b, resent={"2": 130})[1] == (1024, 1152)
    assert bounds(UnitsRule(granularity_tokens=64), a, b, resent={"2": 130})[1] == (1024, 1024)


def test_fixed_intervals_are_units_where_their_size_is_given() -> None:
    requests = sent("1", A + B, 0), sent("2", A + C, MINUTE)
    assert bounds(UnitsRule(), *requests)[1] == (0, 0)
    assert bounds(UnitsRule(interval_tokens=512), *requests)[1] == (1024, 1024)
    assert bounds(UnitsRule(interval_tokens=1000), *requests)[1] == (896, 960)
    assert bounds(UnitsRule(interval_tokens=1025), *requests)[1] == (0, 0)


def test_salts_do_not_share() -> None:
    assert bounds(UnitsRule(), sent("1", A, 0, salt="x"), sent("2", A + B, MINUTE, salt="y"))[1] == (0, 0)


def test_the_rule_and_its_assumptions_are_stated() -> None:
    (one, two) = expect(UnitsRule(), sent("1", A, 0), sent("2", A + B, 5)).values()
    assert (one.rule, one.input_tokens, one.reason) == ("units 64..128, built in 10 s, kept 300 s", 1024, None)
    assert two.reason == "units are built, found and kept best effort"
    assert UnitsRule(64, 0, 60, 2048).name == "units 64, every 2048, built in 0 s, kept 60 s"


def test_order_of_sending_is_required() -> None:
    model = HitModel(UnitsRule(), lambda key, e: None)
    model.add(sent("a", A, 10))
    with pytest.raises(ValueError, match="order of sending"):
        model.add(sent("b", A, 9))


# ------------------------------------------------------------------------------------------------------ brute force


@st.composite
def workloads(draw: st.DrawFn) -> list[Sent]:
    requests = []
    for key in range(draw(st.integers(1, 9))):
        ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
        first = draw(st.one_of(st.none(), st.integers(0, 8)))
        requests.append(
            sent(
                str(key),
                ids,
                draw(st.integers(0, 30)) * 2 + key / 100,
                first_s=None if first is None else first + 0.5,
                end_s=9,
                salt=draw(st.sampled_from("pq")),
            )
        )
    return sorted(requests, key=lambda r: r.sent_ns)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def brute(requests: list[Sent], r: Sent, grain: int, build_s: int) -> tuple[int, int]:
    """Units of all others: the ends of prompts, and where each two of them part. Nothing lapses."""
    others = [q for q in requests if q.key != r.key and q.salt == r.salt]
    floor = ceiling = 0
    until = r.end_ns if r.first_token_ns is None else r.first_token_ns
    assert until is not None
    for q in others:
        for s in others:
            if s.sent_ns < q.sent_ns:
                continue
            unit = common(q.ids, s.ids)  # for q = s its end
            whole = unit // grain * grain
            if s.sent_ns < until and r.ids[:whole] == s.ids[:whole]:
                ceiling = max(ceiling, whole)
            known = q is s or (q.first_token_ns is not None and q.first_token_ns <= s.sent_ns)
            built = s.first_token_ns is not None and s.first_token_ns + build_s * S <= r.sent_ns
            if known and built and r.ids[:unit] == s.ids[:unit] and whole < len(r.ids):
                floor = max(floor, whole)
    return floor, ceiling


@given(workloads(), st.sampled_from([1, 2, 4]), st.integers(0, 6))
def test_intervals_follow_from_all_pairs_of_requests(requests: list[Sent], grain: int, build_s: int) -> None:
    rule = UnitsRule(granularity_tokens=grain, build_s=build_s, lifetime_s=10_000)
    got = expect(rule, *requests)
    for r in requests:
        floor, ceiling = brute(requests, r, grain, build_s)
        e = got[r.key]
        assert e.floor is not None
        assert e.ceiling is not None
        # a prefix that only overlapping or failed requests share may be found late: the model's floor can be lower
        assert e.floor <= floor
        assert e.ceiling == ceiling if grain == 1 else e.ceiling >= ceiling


@given(workloads(), st.sampled_from([1, 2, 4]))
def test_for_requests_one_after_another_they_equal_it(requests: list[Sent], grain: int) -> None:
    in_turn = [sent(r.key, r.ids, i * MINUTE, salt=r.salt, session=r.session_id) for i, r in enumerate(requests)]
    got = expect(UnitsRule(granularity_tokens=grain, build_s=5, lifetime_s=10_000), *in_turn)
    for r in in_turn:
        e = got[r.key]
        assert (e.floor, e.ceiling) == brute(in_turn, r, grain, 5)


class TwoOrFour(UnitsRule):
    """Granules of 2 or of 4 tokens, which of them is not known."""

    fine_tokens = 2
    coarse_tokens = 4


@given(workloads())
def test_an_unknown_granularity_allows_for_what_either_gives(requests: list[Sent]) -> None:
    in_turn = [sent(r.key, r.ids, i * MINUTE, salt=r.salt, session=r.session_id) for i, r in enumerate(requests)]
    got = expect(TwoOrFour(build_s=5, lifetime_s=10_000), *in_turn)
    for r in in_turn:
        either = [brute(in_turn, r, grain, 5) for grain in (2, 4)]
        e = got[r.key]
        assert e.floor is not None
        assert e.floor <= min(floor for floor, _ in either)
        assert e.ceiling == max(ceiling for _, ceiling in either)


@given(workloads(), st.sampled_from([1, 2, 4]), st.integers(0, 6), st.integers(1, 40))
def test_a_lifetime_only_lowers_floors(requests: list[Sent], grain: int, build_s: int, lifetime_s: int) -> None:
    ever = expect(UnitsRule(grain, build_s, 10_000), *requests)
    for key, e in expect(UnitsRule(grain, build_s, lifetime_s), *requests).items():
        assert e.floor is not None
        assert e.floor <= (ever[key].floor or 0)
        assert e.ceiling == ever[key].ceiling
