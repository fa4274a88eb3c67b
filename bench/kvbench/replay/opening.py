"""Where a session tree that is opened in its midst begins: pure, and the same for the same seed.

The start point is uniform in the tree's own time: pauses, capped as they will be replayed, and what answers took where
the source says so (traces/timeline.py). What started before it counts as done.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvbench.model import Session, Tree
from kvbench.replay.schedule import Arrival
from kvbench.traces.timeline import timeline


@dataclass(frozen=True)
class Begin:
    """A session that goes on, or begins, after the start point: its turns from `turn` on. since_s: when what its next
    turn's pause counts from ended, in seconds after the start point (mostly below 0)."""

    session: Session
    turn: int
    since_s: float

    @property
    def warm(self) -> bool:
        """It is under way: the turn before the first that is measured carries all of its prompt so far."""
        return self.turn > 0


@dataclass(frozen=True)
class Opening:
    """begins: the sessions with turns to come whose next turn waits for nothing but what is done, or for each other.
    done: sessions without turns to come, and when they ended, in seconds after the start point."""

    begins: tuple[Begin, ...]
    done: dict[str, float]


def start_point_s(tree: Tree, arrival: Arrival, seed: int, max_pause_s: float | None) -> float:
    """Uniform from the start of the tree's first turn to that of its last, so that at least one is left; trace time."""
    turns = timeline(tree, max_pause_s)
    drawn = random.Random(f"agentx/{seed}/{arrival.index}/{arrival.cycle}").random()
    return turns[0].start_s + drawn * (turns[-1].start_s - turns[0].start_s)


def opening(tree: Tree, at_s: float, max_pause_s: float | None) -> Opening:
    """The tree opened at `at_s`, trace time: turns that start before it are done, all others are to come."""
    before = dict.fromkeys(range(len(tree.sessions)), 0)
    ended_s: dict[tuple[str, int], float] = {}
    for turn in timeline(tree, max_pause_s):
        if turn.start_s < at_s:
            before[turn.session] = max(before[turn.session], turn.turn + 1)
            ended_s[tree.sessions[turn.session].session_id, turn.turn] = turn.end_s - at_s
    begins, done = [], {}
    for number, session in enumerate(tree.sessions):
        at, parent = before[number], session.parent
        if at == len(session.turns):
            done[session.session_id] = ended_s[session.session_id, at - 1]
        elif at:
            begins.append(Begin(session, at, ended_s[session.session_id, at - 1]))
        elif parent is None:
            begins.append(Begin(session, 0, tree.start_s - at_s))
        elif (parent.session_id, parent.turn) in ended_s:
            begins.append(Begin(session, 0, ended_s[parent.session_id, parent.turn]))
    return Opening(tuple(begins), done)
