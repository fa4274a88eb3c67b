"""Turns of many trees in the order of trace time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kvbench.model import Tree, Turn
from kvbench.traces.timeline import TimedTurn, timeline


class PlacedTurn(NamedTuple):
    """A turn with its trace time. after_own_s: pause since its own session's turn before ended; None for a first.
    last: no turn of its session follows."""

    tree: int
    turn: Turn
    start_s: float
    after_own_s: float | None
    last: bool


def in_time_order(trees: Iterable[Tree], read: Callable[[int], Tree]) -> Iterator[PlacedTurn]:
    """Every turn by its start; ties in file order.

    `trees` is gone through once for the times (12 bytes a turn are kept); `read` is then called for a tree when it
    starts, and it is in memory until its last turn.
    """
    starts, numbers = array("d"), array("I")
    for i, tree in enumerate(trees):
        for timed in timeline(tree):
            starts.append(timed.start_s)
            numbers.append(i)
    left = dict[int, int]()
    for i in numbers:
        left[i] = left.get(i, 0) + 1
    live: dict[int, Iterator[PlacedTurn]] = {}
    for at in sorted(range(len(starts)), key=starts.__getitem__):
        i = numbers[at]
        if i not in live:
            tree = read(i)
            live[i] = _placed(i, tree, timeline(tree))
        yield next(live[i])
        left[i] -= 1
        if not left[i]:
            del live[i], left[i]


def _placed(number: int, tree: Tree, times: list[TimedTurn]) -> Iterator[PlacedTurn]:
    ends: dict[int, float] = {}
    for start_s, session, at, end_s in times:
        turns = tree.sessions[session].turns
        turn = turns[at]
        pause_s = start_s - ends[session] if at else None
        ends[session] = end_s
        own_s = turn.delay_s if at and not turn.after else pause_s
        yield PlacedTurn(number, turn, start_s, own_s, at + 1 == len(turns))
