"""Explicit breakpoints: cases by hand, and a small cache of its own whose undocumented habits are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.model import Expectation
from kvbench.traces.prefix import BreakpointHits, BreakpointsRule, Marked
from kvbench.traces.prefix.marks import Mark, marked_prompt

S = 10**9
M5, H1 = 300.0, 3600.0


def asked(
    key: str,
    blocks: str,
    at_s: float,
    *marks: int | tuple[int, float],
    read: int | None = 0,
    wrote: int | None = 0,
    tokens: int | None = 10_000,
    first_s: float | None = 1.0,
    space: str = "",
) -> Marked:
    """A letter a block; marks by index, of five minutes unless said."""
    return Marked(
        key=key,
        space=space,
        chain=tuple(blocks[: i + 1].encode() for i in range(len(blocks))),
        marks=tuple(Mark(*each) if isinstance(each, tuple) else Mark(each, M5) for each in marks),
        sent_ns=round(at_s * S),
        first_token_ns=None if first_s is None else round((at_s + first_s) * S),
        end_ns=round((at_s + 2) * S),
        input_tokens=tokens,
        read_tokens=read,
        written_tokens=wrote,
    )


def expected(*requests: Marked, rule: BreakpointsRule | None = None) -> dict[str, Expectation]:
    got: dict[str, Expectation] = {}
    model = BreakpointHits(rule or BreakpointsRule(), got.__setitem__)
    model.learn(requests)
    for request in sorted(requests, key=lambda each: each.sent_ns):
        model.add(request)
    model.finish()
    return got


def bounds(*requests: Marked, rule: BreakpointsRule | None = None) -> list[tuple[int | None, int | None]]:
    got = expected(*requests, rule=rule)
    return [(got[each.key].floor, got[each.key].ceiling) for each in requests]


def test_an_agent_reads_what_its_turn_before_cached_to_the_token() -> None:
    got = bounds(
        asked("1", "sab", 0, 0, 2, wrote=5_000),
        asked("2", "sabcd", 60, 0, 4, read=5_000, wrote=800),
        asked("3", "sabcdef", 120, 0, 6, read=5_800, wrote=300),
    )
    assert got == [(0, 0), (5_000, 5_000), (5_800, 5_800)]


def test_nothing_is_cached_without_a_mark() -> None:
    assert bounds(asked("1", "sab", 0, 2, wrote=5_000), asked("2", "sabc", 9)) == [(0, 0), (0, 0)]
    assert bounds(asked("1", "sab", 0), asked("2", "sabc", 9, 3)) == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("blocks", "floor", "ceiling"),
    [(19, 5_000, 5_000), (20, 0, 5_000), (21, 0, 0)],
)
def test_the_look_back_is_20_blocks_with_the_marked_one_or_without_it(blocks: int, floor: int, ceiling: int) -> None:
    later = "sab" + "x" * blocks
    assert bounds(asked("1", "sab", 0, 2, wrote=5_000), asked("2", later, 9, len(later) - 1))[1] == (floor, ceiling)
    # a second mark on the way finds it
    assert bounds(asked("1", "sab", 0, 2, wrote=5_000), asked("2", later, 9, 5, len(later) - 1))[1] == (5_000, 5_000)


@pytest.mark.parametrize(
    ("ttl_s", "pause_s", "floor"), [(M5, 300, 5_000), (M5, 301, 0), (H1, 3600, 5_000), (H1, 3601, 0)]
)
def test_lifetimes(ttl_s: float, pause_s: float, floor: int) -> None:
    got = bounds(asked("1", "sab", 0, (2, ttl_s), wrote=5_000), asked("2", "sabc", pause_s, 3))
    assert got[1] == (floor, 5_000)


def test_a_hit_begins_the_lifetime_anew() -> None:
    one = asked("1", "sab", 0, 2, wrote=5_000)
    again = asked("2", "sabc", 200, 3, read=5_000, wrote=100)
    late = asked("3", "sabd", 499, 3)
    assert bounds(one, again, late)[2] == (5_000, 5_000)
    assert bounds(one, late)[1] == (0, 5_000)
    # a failed request prolongs nothing
    assert bounds(one, asked("2", "sabc", 200, 3, first_s=None), late)[2] == (0, 5_000)
    # of a hit on a longer prefix nobody says that it prolongs the shorter one
    both = asked("1", "sab", 0, 0, 2, wrote=5_000), asked("0", "s", 1, 0, read=4_000)
    assert bounds(*both, asked("2", "sabc", 200, 0, 3, read=5_000, wrote=9), asked("3", "sz", 350, 1))[3] == (0, 4_000)
    assert bounds(*both, asked("3", "sz", 250, 1))[2] == (4_000, 4_000)


def test_a_hit_that_may_have_been_on_a_longer_prefix_prolongs_none_for_sure() -> None:
    """At 350 s `sab` may linger, and then `s` is passed by."""
    requests = asked("1", "sab", 0, 2, wrote=5_000), asked("0", "s", 100, 0, wrote=4_000)
    got = bounds(*requests, asked("2", "sabc", 350, 3, read=5_000, wrote=9), asked("3", "sz", 600, 1))
    assert got[2:] == [(4_000, 5_000), (0, 4_000)]
    # without the longer one it is the one that was hit
    alone = bounds(requests[1], asked("2", "sbc", 350, 2, read=4_000, wrote=9), asked("3", "sz", 600, 1))
    assert alone[1:] == [(4_000, 4_000), (4_000, 4_000)]


def test_a_shared_beginning_has_the_length_that_somebody_reported() -> None:
    first = asked("1", "sab", 0, 0, 2, wrote=5_000)
    # `s` is cached, and how long it is nobody said: two blocks go on from it, of a token at least, to 5,000 and 4,700
    assert bounds(first, asked("2", "sxy", 60, 0, 2, read=4_000, wrote=700))[1] == (0, 4_698)
    told = asked("3", "s", 90, 0, read=4_000)
    assert bounds(first, asked("2", "sxy", 60, 0, 2, read=4_000, wrote=700), told)[1:] == [
        (4_000, 4_000),
        (4_000, 4_000),
    ]


def test_where_it_was_not_marked_it_may_be_hit_or_not() -> None:
    assert bounds(asked("1", "sab", 0, 2, wrote=5_000), asked("2", "saxy", 60, 3))[1] == (0, 4_999)


def test_what_overlaps_may_be_hit_or_not() -> None:
    assert bounds(asked("1", "sab", 0, 2, wrote=5_000), asked("2", "sabc", 0.5, 3))[1] == (0, 5_000)
    # and one that is sent later may overtake
    got = bounds(asked("1", "sabc", 0, 3, first_s=30, wrote=9_000), asked("2", "sab", 1, 2, wrote=5_000))
    assert got == [(0, 5_000), (0, 5_000)]


def test_spaces_do_not_share() -> None:
    got = bounds(asked("1", "sab", 0, 2, wrote=5_000, space="x"), asked("2", "sabc", 60, 3, space="y"))
    assert got[1] == (0, 0)


def test_what_is_not_reported_is_not_expected() -> None:
    got = expected(asked("1", "sab", 0, 2, wrote=None), asked("2", "sabc", 60, 3))
    assert (got["2"].floor, got["2"].ceiling) == (0, 10_000)
    got = expected(asked("1", "sab", 0, 2, wrote=None), asked("2", "sabc", 60, 3, tokens=None))
    assert (got["2"].floor, got["2"].ceiling) == (None, None)


def test_more_than_four_marks_are_not_predicted() -> None:
    (one,) = expected(asked("1", "abcdef", 0, 0, 1, 2, 3, 4)).values()
    assert one.floor is None
    assert "4 marks" in (one.reason or "")


def test_a_least_length_of_the_model() -> None:
    rule = BreakpointsRule(minimum_tokens=1_024)
    assert bounds(asked("1", "sab", 0, 2), asked("2", "sabc", 60, 3, tokens=1_000), rule=rule)[1] == (0, 0)
    assert rule.name == "breakpoints, look-back 20, at least 1024 (lengths by usage)"


def test_a_withheld_report_lowers_the_floor_and_raises_no_accusation() -> None:
    """The second says that it read and wrote less than the first had cached: its own prefix is then of no length that
    can be relied on, and the first one's still is."""
    got = bounds(
        asked("1", "sab", 0, 2, wrote=5_000),
        asked("2", "sabc", 60, 3, read=0, wrote=100),
        asked("3", "sabcd", 90, 4, read=5_100, wrote=50),
    )
    assert got[1] == (5_000, 5_000)
    assert got[2][0] == 5_000
    assert (got[2][1] or 0) >= 5_100


# ---------------------------------------------------------------------------------------------- marks in real shapes

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(words: str, mark: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({} if mark is None else {"cache_control": mark})}


def test_marks_of_openais_and_anthropics_shape_fall_on_the_same_blocks() -> None:
    tool = {"name": "ls", "input_schema": {}}
    anthropic = marked_prompt(
        [{**tool, "cache_control": HOUR}],
        [text("be brief"), text("rules", HOUR)],
        [{"role": "user", "content": [text("a"), text("b", EPHEMERAL)]}],
    )
    assert anthropic.marks == (Mark(0, H1), Mark(2, H1), Mark(4, M5))
    openai = marked_prompt(
        [{"type": "function", "function": tool, "cache_control": HOUR}],
        None,
        [
            {"role": "system", "content": [text("be brief"), text("rules", HOUR)]},
            {"role": "user", "content": [text("a"), text("b", EPHEMERAL)]},
        ],
    )
    assert openai.marks == anthropic.marks
    assert len(openai.chain) == len(anthropic.chain) == 5


def test_marks_are_no_part_of_what_is_cached() -> None:
    def chain(mark: dict[str, str] | None) -> tuple[bytes, ...]:
        return marked_prompt(None, None, [{"role": "user", "content": [text("a", mark), text("b")]}]).chain

    assert chain(None) == chain(EPHEMERAL) == chain(HOUR)
    # a text is the same block whether it stands alone or as the only part
    parts = marked_prompt(None, None, [{"role": "user", "content": [text("a")]}])
    assert parts.chain == marked_prompt(None, None, [{"role": "user", "content": "a"}]).chain


def test_a_mark_of_a_message_or_of_the_request_is_its_last_blocks() -> None:
    messages = [
        {"role": "system", "content": "s", "cache_control": EPHEMERAL},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}, {"id": "2"}], "cache_control": HOUR},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]
    assert marked_prompt(None, None, messages).marks == (Mark(0, M5), Mark(3, H1))
    assert marked_prompt(None, None, messages, last=EPHEMERAL).marks[-1] == Mark(4, M5)
    assert marked_prompt(None, None, "none of it", last="x").chain == ()


# ------------------------------------------------------------------------------------------------- against a cache


class Habits(NamedTuple):
    """What is not documented."""

    any_block: bool
    look_back: int
    refreshes_inside: bool
    lingers: float
    minimum: int
    rewrites_inside: bool


class Cache:
    """Entries by their blocks. A block of the letter c has (c - a) % 3 + 1 tokens."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.entries: dict[str, list[float]] = {}

    def alive(self, prefix: str, now: float) -> bool:
        entry = self.entries.get(prefix)
        return entry is not None and entry[0] <= now <= entry[1] + entry[2] * self.habits.lingers

    def read(self, blocks: str, marks: Sequence[tuple[int, float]], now: float) -> int:
        """Blocks of the prefix that is read."""
        for end in range(len(blocks), 0, -1):
            if not any(mark - self.habits.look_back < end - 1 <= mark for mark, _ in marks):
                continue
            prefix = blocks[:end]
            whole = [prefix] if not self.habits.any_block else [e for e in self.entries if e.startswith(prefix)]
            living = [each for each in whole if self.alive(each, now)]
            if living and length(prefix) >= self.habits.minimum:
                for each in self.entries:
                    used = each in living or (self.habits.refreshes_inside and prefix.startswith(each))
                    if used and self.alive(each, now):
                        self.entries[each][1] = now
                return end
        return 0

    def write(self, blocks: str, marks: Sequence[tuple[int, float]], read: int, sent: float, ready: float) -> None:
        for mark, ttl in marks:
            prefix = blocks[: mark + 1]
            if length(prefix) < self.habits.minimum or (mark + 1 < read and not self.habits.rewrites_inside):
                continue
            if not self.alive(prefix, sent):
                self.entries[prefix] = [ready, ready, ttl]


def length(blocks: str) -> int:
    return sum((ord(block) - ord("a")) % 3 + 1 for block in blocks)


habits = st.builds(
    Habits,
    any_block=st.booleans(),
    look_back=st.sampled_from([3, 4]),
    refreshes_inside=st.booleans(),
    lingers=st.sampled_from([1.0, 2.5]),
    minimum=st.sampled_from([0, 4]),
    rewrites_inside=st.booleans(),
)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[str, list[tuple[int, float]], float, float | None]]:
    """(blocks, marks, sent, first token); prompts mostly go on from an earlier one."""
    found: list[tuple[str, list[tuple[int, float]], float, float | None]] = []
    now = 0.0
    for _ in range(draw(st.integers(2, 9))):
        now += draw(st.sampled_from([0.5, 5, 100, 250, 1000]))
        begins = draw(st.sampled_from([blocks for blocks, *_ in found] or ["a"]))
        blocks = begins[: draw(st.integers(1, len(begins)))] if draw(st.booleans()) else begins
        blocks += draw(st.text("abc", max_size=3))
        places = draw(st.sets(st.integers(0, len(blocks) - 1), max_size=3) | st.just({len(blocks) - 1}))
        marks = [(place, draw(st.sampled_from([M5, H1]))) for place in sorted(places)]
        first = draw(st.sampled_from([None, 0.2, 3, 120]))
        found.append((blocks, marks, now, None if first is None else now + first))
    return found


@settings(max_examples=400)
@given(habits, traffic())
def test_an_honest_cache_stays_inside_whatever_its_habits(
    habits: Habits, calls: list[tuple[str, list[tuple[int, float]], float, float | None]]
) -> None:
    cache = Cache(habits)
    requests: list[Marked] = []
    reads: dict[int, int] = {}
    events = [(sent, 0, i) for i, (_, _, sent, _) in enumerate(calls)]
    events += [(first, 1, i) for i, (_, _, _, first) in enumerate(calls) if first is not None]
    for at, kind, i in sorted(events):
        blocks, marks, sent, _ = calls[i]
        if kind == 0:
            reads[i] = cache.read(blocks, marks, at)
        else:
            cache.write(blocks, marks, reads[i], sent, at)
    for i, (blocks, marks, sent, first) in enumerate(calls):
        read = length(blocks[: reads[i]])
        last = length(blocks[: marks[-1][0] + 1]) if marks else 0
        cached = last if last >= habits.minimum else 0
        usage = {} if first is None else {"read": read, "wrote": max(0, cached - read), "tokens": length(blocks)}
        told: dict[str, Any] = {"read": None, "wrote": None, "tokens": None} | usage
        requests.append(asked(str(i), blocks, sent, *marks, first_s=None if first is None else first - sent, **told))
    got = expected(*requests, rule=BreakpointsRule(look_back=3))
    for i, (blocks, _, _, first) in enumerate(calls):
        if first is None or got[str(i)].floor is None:
            continue
        read = length(blocks[: reads[i]])
        floor, ceiling = got[str(i)].floor, got[str(i)].ceiling
        assert floor is not None
        assert ceiling is not None
        assert floor <= read <= ceiling, (i, floor, read, ceiling)
