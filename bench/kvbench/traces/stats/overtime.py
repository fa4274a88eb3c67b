"""How much goes on at a time: live sessions, requests in flight, and the working set of a prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvbench.traces.curve.traffic import Traffic

INTERVALS = 48

Floats = NDArray[np.float64]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What rises and falls. mean: over the time from the first to the last moment; None where there is none."""

    peak: int
    mean: float | None


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An equal part of the trace's time, from its first request on. Peaks are the highest moments in it."""

    from_s: float
    to_s: float
    requests: int
    live_sessions_peak: int | None
    in_flight_peak: int | None
    working_set_blocks_peak: int | None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A session is live from its first turn's start to its last one's end; an answer takes its recorded duration, or no
    time. live_sessions: None where no session takes any. in_flight: None unless every turn has a duration.
    working_set_blocks: distinct blocks touched in the last ttl_s; None where it is not known which are."""

    ttl_s: float
    live_sessions: Level | None
    in_flight: Level | None
    working_set_blocks: Level | None
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class _Steps:
    """A level over time: value[i] from time[i] on, 0 before."""

    time: Floats
    value: Floats

    def level(self, from_s: float, to_s: float) -> Level:
        peak = int(self.value.max(initial=0))
        if to_s <= from_s:
            return Level(peak=peak, mean=None)
        until = np.append(self.time[1:], to_s)
        held_s = np.clip(until, from_s, to_s) - np.clip(self.time, from_s, to_s)
        return Level(peak=peak, mean=float((held_s * self.value).sum() / (to_s - from_s)))

    def peak(self, from_s: float, to_s: float) -> int:
        first, end = np.searchsorted(self.time, (from_s, to_s), side="left").tolist()
        before = float(self.value[first - 1]) if first else 0.0
        return int(max(before, self.value[first:end].max(initial=0)))


def load(
    traffic: Traffic,
    *,
    session_begin_s: Sequence[float],
    session_end_s: Sequence[float],
    ends_s: Sequence[float],
    all_dated: bool,
    ttl_s: float,
    working_set: bool,
) -> Load:
    """session_*: one entry a session; ends_s: of requests, in order of time. all_dated: every answer has a duration."""
    begins, session_ends, ends = np.array(session_begin_s), np.array(session_end_s), np.array(ends_s)
    starts = traffic.start_s
    live = _between(begins, session_ends) if bool((session_ends > begins).any()) else None
    in_flight = _between(starts, ends) if all_dated else None
    touched = _working_set(traffic, ttl_s) if working_set else None
    first, last = float(starts[0]), float(max(starts[-1], ends.max(), session_ends.max()))
    edges = np.linspace(first, last, INTERVALS + 1) if last > first else np.array([first, first])
    places = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, len(edges) - 2)
    arrived = np.bincount(places, minlength=len(edges) - 1).tolist()
    intervals = []
    for i, (begin, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        upto = np.inf if i == len(edges) - 2 else end
        intervals.append(
            Interval(
                from_s=begin,
                to_s=end,
                requests=arrived[i],
                live_sessions_peak=None if live is None else live.peak(begin, upto),
                in_flight_peak=None if in_flight is None else in_flight.peak(begin, upto),
                working_set_blocks_peak=None if touched is None else touched.peak(begin, upto),
            )
        )
    return Load(
        ttl_s=ttl_s,
        live_sessions=None if live is None else live.level(first, last),
        in_flight=None if in_flight is None else in_flight.level(first, last),
        working_set_blocks=None if touched is None else touched.level(first, float(starts[-1])),
        intervals=tuple(intervals),
    )


def _between(begins: Floats, ends: Floats) -> _Steps:
    """How many of the spans hold a moment; what ends when others begin is over, and what takes no time is there."""
    takes_time = ends > begins
    over, moment = ends[takes_time], ends[~takes_time]
    times = np.concatenate((over, begins, moment))
    rank = np.repeat([0, 1, 2], [len(over), len(begins), len(moment)])
    order = np.lexsort((rank, times))
    return _Steps(times[order], np.cumsum(np.where(rank == 1, 1.0, -1.0)[order]))


def _working_set(traffic: Traffic, ttl_s: float) -> _Steps:
    """Each touch puts a request's blocks in for ttl_s; a block touched again within it is there once, not twice."""
    runs, starts = traffic.runs, traffic.start_s
    again, before = starts[runs.request], starts[runs.previous]
    twice = traffic.ages_s <= ttl_s
    times = (starts, starts + ttl_s, again[twice], before[twice] + ttl_s)
    depth, blocks = runs.depth.astype(float), runs.blocks[twice].astype(float)
    changes = np.concatenate((depth, -depth, -blocks, blocks))
    moments, places = np.unique(np.concatenate(times), return_inverse=True)
    return _Steps(moments, np.cumsum(np.bincount(places.reshape(-1), changes, len(moments))))
