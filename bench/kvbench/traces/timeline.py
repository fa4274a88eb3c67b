"""When the turns of a tree run in trace time, if nothing but the trace decides: no server, no scale.

`timeline` is a replay's: a turn starts `delay_s` after the last of what it waits for has ended; an answer takes its
recorded e2e_s, or no time where the source has none. `recorded_timeline` is what the source dates, where it dates every
turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from kvbench.model import Tree, Turn


class TimedTurn(NamedTuple):
    """start_s and end_s are trace time; session is the index in tree.sessions."""

    start_s: float
    session: int
    turn: int
    end_s: float


def timeline(tree: Tree, max_pause_s: float | None = None) -> list[TimedTurn]:
    """All turns in the order in which they start. Of those that start together, one that is waited for comes first;
    else they keep the order of the tree's sessions. Pauses of more than max_pause_s are that long."""
    sessions = tree.sessions

    def pause_s(turn: Turn) -> float:
        return turn.delay_s if max_pause_s is None else min(turn.delay_s, max_pause_s)

    first = sessions[0].turns[0]
    if len(sessions) == 1:
        return _chain(sessions[0].turns, tree.start_s + pause_s(first), pause_s)
    number = {session.session_id: i for i, session in enumerate(sessions)}
    missing: dict[tuple[int, int], int] = {}
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, session in enumerate(sessions):
        for turn in session.turns:
            waits = [(number[name], len(sessions[number[name]].turns) - 1) for name in turn.after]
            if turn.turn:
                waits.append((i, turn.turn - 1))
            elif turn.parent is not None:
                waits.append((number[turn.parent.session_id], turn.parent.turn))
            missing[i, turn.turn] = len(waits)
            for wait in waits:
                waiting.setdefault(wait, []).append((i, turn.turn))
    freed_s: dict[tuple[int, int], float] = {}
    ready = [(tree.start_s + pause_s(first), 0, 0)]
    done: list[TimedTurn] = []
    while ready:
        start_s, i, at = heapq.heappop(ready)
        end_s = start_s + _e2e_s(sessions[i].turns[at])
        done.append(TimedTurn(start_s, i, at, end_s))
        for other in waiting.get((i, at), ()):
            freed_s[other] = max(freed_s.get(other, end_s), end_s)
            missing[other] -= 1
            if not missing[other]:
                delay_s = pause_s(sessions[other[0]].turns[other[1]])
                heapq.heappush(ready, (freed_s[other] + delay_s, *other))
    return done


def recorded_timeline(tree: Tree) -> list[TimedTurn] | None:
    """All turns by the source's own dates (`recorded.at_s`); None where a turn has none.

    A turn is put no earlier than the one before it in its session; of those that start together, the order is
    timeline's.
    """
    at_s: list[list[float]] = []
    for session in tree.sessions:
        starts: list[float] = []
        for turn in session.turns:
            if turn.recorded is None or turn.recorded.at_s is None:
                return None
            start_s = tree.start_s + turn.recorded.at_s
            starts.append(max(start_s, starts[-1]) if starts else start_s)
        at_s.append(starts)
    turns = []
    for _, i, at, _ in timeline(tree):
        start_s = at_s[i][at]
        turns.append(TimedTurn(start_s, i, at, start_s + _e2e_s(tree.sessions[i].turns[at])))
    return sorted(turns, key=lambda timed: timed.start_s)


def _chain(turns: tuple[Turn, ...], start_s: float, pause_s: Callable[[Turn], float]) -> list[TimedTurn]:
    done = []
    for turn in turns:
        if turn.turn:
            start_s += pause_s(turn)
        end_s = start_s + _e2e_s(turn)
        done.append(TimedTurn(start_s, 0, turn.turn, end_s))
        start_s = end_s
    return done


def _e2e_s(turn: Turn) -> float:
    recorded = turn.recorded
    return 0.0 if recorded is None or recorded.e2e_s is None else recorded.e2e_s
