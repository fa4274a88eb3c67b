"""A tree opened in its midst, worked out by hand.

Pauses are capped at 10 s; answers take what the source says. a.x is called by a/1, and a/2 waits for it:

a    0 [0, 2]   1 [6, 7]                           2 [24, 25]   (pauses 4 and 50, which is 10)
a.x                      0 [8, 10]   1 [13, 14]                 (pauses 1 and 3)
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native_lines import starts_s
from tests.native_trees import trees

from kvbench.model import Recorded, Session, Tree, Turn, TurnRef
from kvbench.replay.opening import Opening, opening, start_point_s
from kvbench.replay.schedule import Arrival
from kvbench.traces.native import open_trace


def turn(session: str, number: int, delay_s: float, e2e_s: float, **fields: object) -> Turn:
    recorded = Recorded(e2e_s=e2e_s)
    return Turn(session_id=session, turn=number, line=1, delay_s=delay_s, recorded=recorded, **fields)  # type: ignore[arg-type]


ROOT = Session(
    session_id="a",
    turns=(turn("a", 0, 0, 2, start_s=100.0), turn("a", 1, 4, 1), turn("a", 2, 50, 1, after=("a.x",))),
)
CHILD = Session(session_id="a.x", turns=(turn("a.x", 0, 1, 2, parent=TurnRef("a", 1)), turn("a.x", 1, 3, 1)))
TREE = Tree(root_id="a", start_s=100.0, sessions=(ROOT, CHILD))


def opened(after_s: float) -> tuple[dict[str, tuple[int, float]], dict[str, float]]:
    """Sessions that go on: their next turn, and what its pause counts from, after the start point."""
    found: Opening = opening(TREE, 100.0 + after_s, max_pause_s=10.0)
    return {begin.session.session_id: (begin.turn, begin.since_s) for begin in found.begins}, found.done


@pytest.mark.parametrize(
    ("after_s", "begins", "done"),
    [
        (0.0, {"a": (0, 0.0)}, {}),
        (1.0, {"a": (1, 1.0)}, {}),  # a/0 is answered a second later
        (7.5, {"a": (2, -0.5), "a.x": (0, -0.5)}, {}),  # called half a second ago, and not begun
        (9.0, {"a": (2, -2.0), "a.x": (1, 1.0)}, {}),
        (20.0, {"a": (2, -13.0)}, {"a.x": -6.0}),  # due 10 s after a.x, at 24
        (24.0, {"a": (2, -17.0)}, {"a.x": -10.0}),
    ],
)
def test_what_started_before_the_start_point_is_done(
    after_s: float, begins: dict[str, tuple[int, float]], done: dict[str, float]
) -> None:
    assert opened(after_s) == (begins, done)


def test_a_background_agent_may_be_all_that_is_left() -> None:
    root = Session(session_id="a", turns=(turn("a", 0, 0, 1, start_s=0.0),))
    child = Session(session_id="b", turns=(turn("b", 0, 5, 1, parent=TurnRef("a", 0)), turn("b", 1, 5, 1)))
    found = opening(Tree(root_id="a", start_s=0.0, sessions=(root, child)), 8.0, 10.0)
    assert found.done == {"a": -7.0}
    assert [(begin.session.session_id, begin.turn, begin.since_s) for begin in found.begins] == [("b", 1, -1.0)]


def test_start_points_are_uniform_up_to_the_last_turn_and_the_same_for_a_seed() -> None:
    def points(seed: int) -> list[float]:
        return [start_point_s(TREE, Arrival(0, cycle, None), seed, 10.0) - 100 for cycle in range(4000)]

    one = points(1)
    assert one == points(1)
    assert one != points(2)
    assert 0 <= min(one) < 0.1
    assert 23.9 < max(one) <= 24, "at least the last turn is left"
    # uniform over 24 s: mean 12, standard deviation 6.93; four standard errors
    assert statistics.mean(one) == pytest.approx(12, abs=0.44)
    assert statistics.stdev(one) == pytest.approx(24 / 12**0.5, rel=0.05)


def test_a_tree_without_time_begins_at_its_start() -> None:
    root = Session(session_id="a", turns=(turn("a", 0, 0, 0, start_s=3.0), turn("a", 1, 0, 0)))
    tree = Tree(root_id="a", start_s=3.0, sessions=(root,))
    at_s = start_point_s(tree, Arrival(0, 0, None), 1, 10.0)
    (begin,) = opening(tree, at_s, 10.0).begins
    assert (begin.turn, begin.since_s) == (0, 0.0)


@settings(max_examples=80, deadline=None)
@given(trees(), st.floats(0, 1), st.sampled_from([None, 0.0, 2.0]))
def test_every_turn_is_done_or_comes_exactly_once_and_no_earlier_than_now(
    lines: list[dict[str, Any]], share: float, max_pause_s: float | None
) -> None:
    """Against the format's rules, read by another reader: starts of all turns, with pauses capped beforehand."""
    capped = [
        line | ({"delay_s": min(line["delay_s"], max_pause_s)} if "delay_s" in line and max_pause_s is not None else {})
        for line in lines
    ]
    start = starts_s({(line["session_id"], line["turn"]): line for line in capped})
    at_s = min(start.values()) + share * (max(start.values()) - min(start.values()))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "t.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in ({"kvbench_trace": 1, "block_size": 4}, *lines)))
        with open_trace(path) as trace:
            tree = trace.read_tree(0)
    found = opening(tree, at_s, max_pause_s)
    begins = {begin.session.session_id: begin for begin in found.begins}
    assert found.begins, "something is left to measure"
    to_come = {key for key, starts in start.items() if starts >= at_s}
    reached = set()
    for session in tree.sessions:
        name, own = session.session_id, {key for key in to_come if key[0] == session.session_id}
        if name in found.done:
            assert not own
        elif name in begins:
            assert own == {(name, turn.turn) for turn in session.turns[begins[name].turn :]}
            reached |= own
        else:
            # It begins with a turn of its parent that is itself still to come.
            assert session.parent is not None
            assert (session.parent.session_id, session.parent.turn) in to_come
            assert len(own) == len(session.turns)
            reached |= own
    assert reached == to_come
    for begin in found.begins:
        turn = begin.session.turns[begin.turn]
        if all(name in found.done for name in turn.after):
            waits = [begin.since_s, *(found.done[name] for name in turn.after)]
            pause_s = turn.delay_s if max_pause_s is None else min(turn.delay_s, max_pause_s)
            due_s = max(waits) + pause_s
            assert due_s == pytest.approx(start[turn.session_id, turn.turn] - at_s, abs=1e-9)
            assert due_s >= -1e-9
