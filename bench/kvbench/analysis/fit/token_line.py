"""Reported against exact tokens as a line, with bounds that hold whatever the roundings are.

reported_i = intercept + slope * exact_i + e_i, where all e_i lie in a window of some tokens. Every pair i, j with
exact_i > exact_j then says

    (d_i - d_j - window) / (exact_i - exact_j) <= slope - 1 <= (d_i - d_j + window) / (exact_i - exact_j)

with d = reported - exact, and the slope lies in what all pairs allow. The interval is a bound, not a chance: as long as
no count is off by more than the window, a slope outside it is impossible. Where the pairs allow nothing, the counts
scatter more than that, and no line explains them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SLACK_TOKENS = 2
"""Window where counts are whole tokens: honest ones may be off by one to either side (a merge at a join)."""
CHANCE = 1e-6
"""Of honest counts all having a divisor in common, at most."""


Points = list[tuple[int, int]]
"""(exact, reported) of each request."""


class Line(NamedTuple):
    """slope, with its bounds; intercept, with the least and the most that single requests have. window: tokens, as
    above. scatter: what the counts would need as a window at the best slope. holds: that is no more than the window."""

    slope: float
    low: float
    high: float
    intercept: float
    least: float
    most: float
    window: float
    scatter: float
    holds: bool
    n: int
    reach: int
    """Longest less shortest, exact tokens."""

    @property
    def detectable(self) -> float | None:
        """The smallest share too much that would surely have been seen: it moves the ends by more than the window and
        the rounding of both."""
        return (self.window + max(1.0, self.window - 1)) / self.reach if self.reach and self.holds else None


def fit_line(points: Sequence[tuple[int, int]], window: float = SLACK_TOKENS) -> Line | None:
    """The line of (exact, reported); None for fewer than three requests, or for one length alone."""
    lengths = {exact for exact, _ in points}
    if len(points) < 3 or len(lengths) < 2:
        return None
    off = [(exact, reported - exact) for exact, reported in points]
    low, high, holds = -math.inf, math.inf, True
    for i, (x, d) in enumerate(off):
        for other_x, other_d in off[i + 1 :]:
            run, rise = x - other_x, d - other_d
            if run == 0:
                holds = holds and abs(rise) <= window
                continue
            if run < 0:
                run, rise = -run, -rise
            low, high = max(low, (rise - window) / run), min(high, (rise + window) / run)
    holds = holds and low <= high
    more = _least_squares(off)
    if holds:
        more = min(max(more, low), high)
    rest = sorted(d - more * x for x, d in off)
    middle = rest[len(rest) // 2] if len(rest) % 2 else (rest[len(rest) // 2 - 1] + rest[len(rest) // 2]) / 2
    if not holds:
        low, high = min(low, high), max(low, high)
    return Line(
        slope=1 + more,
        low=1 + low,
        high=1 + high,
        intercept=middle,
        least=rest[0],
        most=rest[-1],
        window=window,
        scatter=rest[-1] - rest[0],
        holds=holds,
        n=len(points),
        reach=max(lengths) - min(lengths),
    )


def grain_of(points: Sequence[tuple[int, int]]) -> int:
    """What all reported counts are whole multiples of, where that is no chance and the exact ones are not: else 1."""
    counts = {reported for _, reported in points}
    grain = math.gcd(*counts) if counts else 1
    if grain < 2 or math.gcd(*[a - b for a, _ in points for b, _ in points]) % grain == 0:
        return 1
    return grain if grain ** (1 - len(counts)) < CHANCE else 1


def _least_squares(off: Sequence[tuple[int, int]]) -> float:
    """Slope of d over exact; 0.0, exactly, where d is the same everywhere."""
    n = len(off)
    x_mean, d_first = sum(x for x, _ in off) / n, off[0][1]
    d_mean = sum(d - d_first for _, d in off) / n
    above = sum((x - x_mean) * (d - d_first - d_mean) for x, d in off)
    return above / sum((x - x_mean) ** 2 for x, _ in off)
