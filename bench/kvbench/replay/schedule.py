"""When things are due: pure functions of the trace, the options and what has ended. Nothing here reads a clock.

Times are integer nanoseconds from the run's start; trace times are seconds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvbench.replay.settings import RunSettings

SECOND_NS = 1_000_000_000
BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 60.0


@dataclass(frozen=True)
class Arrival:
    """The `cycle`-th use of tree `index`. at_ns None: as soon as one of the live trees has ended."""

    index: int
    cycle: int
    at_ns: int | None


def due_ns(ended_ns: Iterable[int], delay_s: float, settings: RunSettings) -> int:
    """A turn is due its pause after all it waits for has ended; the pause is capped, then scaled."""
    pause_s = delay_s if settings.max_pause_s is None else min(delay_s, settings.max_pause_s)
    return max(ended_ns) + round(pause_s * settings.time_scale * SECOND_NS)


def arrivals(starts_s: Sequence[float], settings: RunSettings) -> Iterator[Arrival]:
    """The order and times in which root trees start; `starts_s` are the trees' start_s in file order.

    Trace time counts from the earliest start, so that an excerpt of a long trace does not begin with a wait.
    """
    if settings.rate is not None:
        return _by_rate(len(starts_s), settings)
    if settings.live_trees is not None:
        return (Arrival(index, cycle, None) for cycle, index in _uses(len(starts_s), settings.reuses_trees))
    first_s = min(starts_s, default=0.0)
    order = sorted(range(len(starts_s)), key=starts_s.__getitem__)
    return (Arrival(i, 0, round((starts_s[i] - first_s) * settings.time_scale * SECOND_NS)) for i in order)


def _by_rate(trees: int, settings: RunSettings) -> Iterator[Arrival]:
    assert settings.rate is not None
    rng = random.Random(settings.seed)
    at_s = 0.0
    for cycle, index in _uses(trees, settings.reuses_trees):
        yield Arrival(index, cycle, round(at_s * SECOND_NS))
        at_s += 1 / settings.rate if settings.rate_shape == "constant" else rng.expovariate(settings.rate)


def _uses(trees: int, again: bool) -> Iterator[tuple[int, int]]:
    for cycle in itertools.count() if again and trees else range(1):
        for index in range(trees):
            yield cycle, index


def backoff_ns(attempt: int, retry_after_s: float | None) -> int:
    """Wait before the attempt after `attempt`: what the server asks for, else doubling; both capped at a minute."""
    wait_s = BACKOFF_FIRST_S * 2**attempt if retry_after_s is None else max(0.0, retry_after_s)
    return round(min(wait_s, BACKOFF_CAP_S) * SECOND_NS)
