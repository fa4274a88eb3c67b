"""A tree opened in its midst, worked out by hand.

Pauses are capped at 10 s; answers take what the source says. a.x is called by a/1, and a/2 waits for it:

a    0 [0, 2]   1 [6, 7]                           2 [24, 25]   (pauses 4 and 50, which is 10)
a.x                      0 [8, 10]   1 [13, 14]                 (pauses 1 and 3)
"""

from __future__ import annotations

import statistics

import pytest

from kvbench.model import Recorded, Session, Tree, Turn, TurnRef
from kvbench.replay.opening import Opening, opening, start_point_s
from kvbench.replay.schedule import Arrival


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
