"""The order and times of a replay, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.analysis.predicting.load import Load, Order, Planned, simulate
from kvbench.cli.predict import load_of
from kvbench.errors import RefusedError, UsageError

TWO = [Planned(0, (), 0.0), Planned(0, (0,), 1.0), Planned(1, (), 0.0), Planned(1, (2,), 4.0)]
"""Two sessions of two turns: pauses of 1 s and of 4 s."""


def times(order: Order) -> tuple[list[float], list[float]]:
    return order.sent_s.tolist(), order.end_s.tolist()


def test_sessions_beside_each_other_wait_for_their_own_turns_alone() -> None:
    order = simulate(TWO, (0.0, 0.5), Load(), np.array([2.0, 2.0, 2.0, 2.0]))
    assert times(order) == ([0.0, 3.0, 0.5, 6.5], [2.0, 5.0, 2.5, 8.5])
    assert order.rank.tolist() == [0, 2, 1, 3]
    assert order.beside == 0.5  # the first two


def test_one_live_session_at_a_time_begins_the_next_when_it_has_ended() -> None:
    order = simulate(TWO, (0.0, 0.5), Load(sessions=1), np.array([2.0, 2.0, 2.0, 2.0]))
    assert times(order) == ([0.0, 3.0, 5.0, 11.0], [2.0, 5.0, 7.0, 13.0])
    assert order.beside == 0


def test_a_limit_makes_what_is_due_wait_in_order() -> None:
    """Session 1's first turn waits until 2, its pause of 4 s then ends at 8; session 0's second is due at 3, waits."""
    order = simulate(TWO, (0.0, 0.0), Load(sessions=2, max_in_flight=1), np.array([2.0, 2.0, 2.0, 2.0]))
    assert times(order) == ([0.0, 4.0, 2.0, 8.0], [2.0, 6.0, 4.0, 10.0])
    assert order.rank.tolist() == [0, 2, 1, 3]


def test_pauses_are_capped_then_scaled() -> None:
    order = simulate(TWO, (0.0, 10.0), Load(time_scale=0.5, max_pause_s=2.0), np.zeros(4))
    assert order.sent_s.tolist() == [0.0, 0.5, 5.0, 6.0]


def test_a_sub_agent_begins_after_its_parents_turn_and_is_joined() -> None:
    """Turn 0, then the agent's two turns and turn 1 (which waits for the agent's end)."""
    planned = [Planned(0, (), 0.0), Planned(0, (0, 3), 0.5), Planned(0, (0,), 0.25), Planned(0, (2,), 0.0)]
    order = simulate(planned, (0.0,), Load(), np.array([1.0, 1.0, 2.0, 3.0]))
    assert order.sent_s.tolist() == [0.0, 6.75, 1.25, 3.25]


def test_arrivals_that_are_drawn_are_refused() -> None:
    for settings in ({"rate": 2.0}, {"duration_s": 60.0, "sessions": 4}):
        with pytest.raises(RefusedError, match="order cannot be worked out"):
            Load.of_run(settings)
    assert Load.of_run({"time_scale": 0.0}).sessions == 8
    assert Load.of_run({"time_scale": 0.5, "sessions": None}).sessions is None


def test_without_pauses_as_many_sessions_live_as_in_a_replay() -> None:
    assert Load(time_scale=0.0).as_replayed().sessions == 8
    assert Load(time_scale=0.0, sessions=3).as_replayed().sessions == 3
    assert Load(time_scale=0.1).as_replayed().sessions is None
    assert load_of(Load(), {"time_scale": 0.0}).sessions == 8


@pytest.mark.parametrize("scale", [float("inf"), 1e308, 1e12])
@pytest.mark.parametrize("sessions", [None, 2])
def test_a_replay_of_centuries_is_refused(scale: float, sessions: int | None) -> None:
    with pytest.raises(UsageError, match="over 100 years"):
        simulate(TWO, (0.0, 0.5), Load(time_scale=scale, sessions=sessions), np.full(4, 2.0))
