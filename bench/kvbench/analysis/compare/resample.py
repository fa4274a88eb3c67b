"""Intervals by resampling whole sessions (session trees for percentiles and hits), and runs where a side has several.

Turns of one session share its context and its luck, so they are never drawn apart. Runs are drawn too, but what a side
of one run would have been on another day, no resampling knows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL = 0.95
TIMES, TIMES_OF_FIGURES = 2000, 500
MIN_CLUSTERS = 5
_SEED = 20261130
"""Fixed: the same runs give the same interval."""


def mean_change(base: Floats, new: Floats) -> tuple[float | None, float | None]:
    """Bounds of mean(new) - mean(base). base, new: (sessions, runs), paired by session: drawn together. None with fewer
    than MIN_CLUSTERS sessions.
    """
    if len(base) < MIN_CLUSTERS:
        return None, None
    rng = np.random.default_rng(_SEED)
    rows = rng.integers(len(base), size=(TIMES, len(base)))
    weights = np.stack([np.bincount(row, minlength=len(base)) for row in rows]) / len(base)

    def drawn(side: Floats) -> Floats:
        runs = side.shape[1]
        by_run: Floats = weights @ side
        mean: Floats = np.take_along_axis(by_run, rng.integers(runs, size=(TIMES, runs)), axis=1).mean(axis=1)
        return mean

    return _bounds(drawn(new) - drawn(base))


def changes_of(
    groups: tuple[list[list[Floats]], list[list[Floats]]], figures: Callable[[Floats], Floats], *, paired: bool
) -> list[tuple[float | None, float | None]] | None:
    """Bounds of mean over runs of figures(new) less that of base, for figures that are not means (percentiles).

    groups: for each side its runs, for each run its values by session (in one order, where `paired`). None with fewer
    than MIN_CLUSTERS sessions.
    """
    sizes = [len(side[0]) for side in groups]
    if min(sizes) < MIN_CLUSTERS:
        return None
    rng = np.random.default_rng(_SEED)
    changes = []
    for _ in range(TIMES_OF_FIGURES):
        rows = rng.integers(sizes[0], size=sizes[0])
        found = []
        for side, size in zip(groups, sizes, strict=True):
            mine = rows if paired else rng.integers(size, size=size)
            runs = rng.integers(len(side), size=len(side))
            drawn = [figures(np.concatenate([side[run][row] for row in mine])) for run in runs]
            found.append(np.mean(drawn, axis=0))
        changes.append(found[1] - found[0])
    return [_bounds(column) for column in np.array(changes).T]


def _bounds(changes: Floats) -> tuple[float, float]:
    low, high = np.quantile(changes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
