"""How requests of a trace would follow one another: the order and the times of a replay, without a server.

As a replay's rules have it (README, "How a run goes"): root sessions begin at their time, or so many live at all times;
a turn is due its pause after the last of what it waits for has ended; where requests in flight are limited, those that
are due wait in order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvbench.errors import RefusedError, UsageError

Floats = NDArray[np.float64]
DEFAULT_LIVE_TREES = 8
LONGEST_S = 100 * 365.25 * 86_400


class Planned(NamedTuple):
    """One turn of a trace. tree: its index; waits: indices of the turns it waits for."""

    tree: int
    waits: tuple[int, ...]
    pause_s: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """sessions: live root sessions at all times; None: they begin at the trace's times. max_in_flight None: no
    limit."""

    sessions: int | None = None
    time_scale: float = 1.0
    max_pause_s: float | None = None
    max_in_flight: int | None = None

    @property
    def told(self) -> str:
        """In words."""
        arrive = "in the trace's own time" if self.sessions is None else f"{self.sessions:,} sessions at a time"
        limit = "" if self.max_in_flight is None else f", at most {self.max_in_flight:,} in flight"
        return f"{arrive}, x{self.time_scale:g}{limit}"

    @classmethod
    def of_run(cls, settings: Mapping[str, Any]) -> Load:
        """RefusedError for arrivals that are drawn, or trees used again: their order is not the trace's alone."""
        for name, what in (("rate", "sessions arrive by --rate"), ("duration_s", "--duration uses trees again")):
            if settings.get(name) is not None:
                raise RefusedError(
                    f"the run's order cannot be worked out: {what}",
                    hint="predict runs with --sessions N, or in the trace's own time",
                )
        return cls(
            sessions=settings.get("sessions"),
            time_scale=float(settings.get("time_scale", 1.0)),
            max_pause_s=settings.get("max_pause_s"),
            max_in_flight=settings.get("max_in_flight"),
        ).as_replayed()

    def as_replayed(self) -> Load:
        """Without pauses the trace's own starts say nothing: so many sessions are then live as in a replay."""
        return replace(self, sessions=DEFAULT_LIVE_TREES) if self.sessions is None and self.time_scale == 0 else self


class Order(NamedTuple):
    """When each turn is sent and has ended, seconds from the start; rank: its place in the order of sending."""

    sent_s: Floats
    end_s: Floats
    rank: NDArray[np.int64]

    @property
    def beside(self) -> float:
        """Share of the turns that another was in flight beside."""
        by = np.argsort(self.rank)
        sent, end = self.sent_s[by], self.end_s[by]
        before = np.concatenate(([-1.0], np.maximum.accumulate(end)[:-1])) > sent
        after = np.concatenate((sent[1:], [np.inf])) < end
        return float((before | after).mean()) if len(by) else 0.0


def simulate(planned: Sequence[Planned], starts_s: Sequence[float], load: Load, takes_s: Floats) -> Order:
    """takes_s: of each turn, from sending to its last token; starts_s: when trees begin, in trace time.

    UsageError where the time scale makes it longer than nanoseconds can count.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        order = _Replay(planned, starts_s, load, takes_s).run()
    if len(order.end_s) and not order.end_s.max() < LONGEST_S:
        raise UsageError(
            f"--time-scale {load.time_scale:g}: the replay would take over 100 years, in which no order is kept",
            hint="a factor near 1, or 0 for no pauses",
        )
    return order


class _Replay:
    def __init__(self, planned: Sequence[Planned], starts_s: Sequence[float], load: Load, takes_s: Floats) -> None:
        self._planned, self._load, self._takes = planned, load, takes_s
        self._sent, self._end = np.zeros(len(planned)), np.zeros(len(planned))
        self._rank = np.zeros(len(planned), np.int64)
        self._sends = 0
        self._after: list[list[int]] = [[] for _ in planned]
        self._waits = [len(turn.waits) for turn in planned]
        self._first: list[list[int]] = [[] for _ in starts_s]
        self._left = [0] * len(starts_s)
        for i, turn in enumerate(planned):
            self._left[turn.tree] += 1
            for other in turn.waits:
                self._after[other].append(i)
            if not turn.waits:
                self._first[turn.tree].append(i)
        self._events: list[tuple[float, int, bool, int]] = []
        self._count = 0
        self._queue: deque[int] = deque()
        self._in_flight = 0
        self._waiting_trees: deque[int] = deque()
        self._begin(starts_s)

    def run(self) -> Order:
        while self._events:
            at, _, ends, i = heapq.heappop(self._events)
            if ends:
                self._ended(i, at)
            else:
                self._queue.append(i)
            self._send(at)
        return Order(self._sent, self._end, self._rank)

    def _begin(self, starts_s: Sequence[float]) -> None:
        load = self._load
        if load.sessions is not None:
            self._waiting_trees.extend(range(len(starts_s)))
            for _ in range(min(load.sessions, len(starts_s))):
                self._start_tree(self._waiting_trees.popleft(), 0.0)
            return
        earliest = min(starts_s, default=0.0)
        for tree in sorted(range(len(starts_s)), key=starts_s.__getitem__):
            self._start_tree(tree, (starts_s[tree] - earliest) * load.time_scale)

    def _start_tree(self, tree: int, at_s: float) -> None:
        for i in self._first[tree]:
            self._due(i, at_s)

    def _due(self, i: int, at_s: float) -> None:
        pause = self._planned[i].pause_s
        if self._load.max_pause_s is not None:
            pause = min(pause, self._load.max_pause_s)
        self._event(at_s + pause * self._load.time_scale, False, i)

    def _event(self, at_s: float, ends: bool, i: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, ends, i))

    def _send(self, at_s: float) -> None:
        limit = self._load.max_in_flight
        while self._queue and (limit is None or self._in_flight < limit):
            i = self._queue.popleft()
            self._in_flight += 1
            self._sent[i], self._rank[i] = at_s, self._sends
            self._sends += 1
            self._end[i] = at_s + self._takes[i]
            self._event(self._end[i], True, i)

    def _ended(self, i: int, at_s: float) -> None:
        self._in_flight -= 1
        for other in self._after[i]:
            self._waits[other] -= 1
            if not self._waits[other]:
                self._due(other, at_s)
        tree = self._planned[i].tree
        self._left[tree] -= 1
        if not self._left[tree] and self._waiting_trees:
            self._start_tree(self._waiting_trees.popleft(), at_s)
