"""Capacity by inversion: the size of an LRU cache whose hits are nearest to those reported, request by request.

At capacity C request i hits min(most_i, sum over its runs of blocks of clip(C - above, 0, blocks)) blocks, exactly (see
traces/curve); blocks held by requests that run at the time are no room for others. Other traffic is allowed for: where
it writes q blocks for each one that is computed here, a block that was last touched w computed blocks ago has q w more
above it. The estimate minimises sum |observed - predicted| over C and q. As distance and w differ from block to block,
q shows: a smaller cache and a shared one lose different blocks.

The interval holds each C (at any q) whose errors are not larger than the best one's by more than their scatter over
session trees allows, and half a step of the grid at each end. Where every reported hit is predicted to the block and no
two requests overlapped nothing is left to chance: it then holds all C (at any q) that predict as well, and a block at
each end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvbench.analysis.fit.served import Floats, Ints, Served
from kvbench.traces.curve.hits import Order

MISFIT_LIMIT = 0.05
MISFIT_ALONE = 0.005
"""Limit where requests follow one another: an LRU cache is then predicted exactly, but for copies of aligned blocks."""
MOVED_BY = 0.1
UNACCOUNTED = 0.05
"""Of what running requests hold: blocks that they share are counted once each, and a request that waits holds none."""
OTHERS = (0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.17, 0.22, 0.3, 0.43, 0.6, 0.85)
"""Blocks of other traffic for each own one that are tried: up to 46% of all."""
COARSE, COARSE_OTHERS, FINE = 160, 60, 400
TOLD_APART = 1.1
"""Standard errors by which a fit has to be worse. Set so that nine of ten intervals hold the truth, on runs with 2 to 8
requests at a time and up to 5% of other traffic (not those of reports/fit)."""
HOPELESS = 0.02
"""Of all that was observed: errors by which a coarse search has to be worse to end there."""
MOST_TREES = 1_000
"""Of more session trees several are taken together, which is as good a measure of how errors scatter."""
CELLS = 4_000_000
ROUNDING = 1e-9
TIE = 0.5
"""Tokens: sums of errors that differ by less are equal."""


@dataclass(frozen=True)
class Inverted:
    """The fit, in tokens, and what it rests on. exact: every hit is predicted, and low and high are bounds; else they
    are those of a 90% interval. others: (low, value, high) of blocks that others wrote for each own one. moved:
    requests whose hit changes when the capacity does by 10%. tree_errors: tokens, of each session tree."""

    low: float
    value: float
    high: float
    exact: bool
    others: tuple[float, float, float]
    misfit: float
    limit: float
    moved: int
    requests: int
    overflowed: bool
    residuals: Ints
    tree_errors: Floats
    at_least: int


class Prediction:
    """Hits of each request at any capacity, in blocks."""

    def __init__(self, what: Served, order: Order = "leaf-first", others: float = 0.0) -> None:
        request, self._above, self._whole = what.bounds(order, others)
        self._blocks = what.runs.blocks
        self._parts = order == "leaf-first"
        self._most = what.most
        # runs are in the order of requests
        self._starts = np.flatnonzero(np.diff(request, prepend=-1))
        self._request = request[self._starts]
        self.most_blocks = int(np.ceil(self._whole.max(initial=0)))

    def blocks(self, capacity: float) -> Floats:
        """Predicted hits of all requests at one capacity."""
        hits: Floats = self.table(np.array([capacity]))[0]
        return hits

    def table(self, capacities: Floats) -> Floats:
        """(capacities, requests)"""
        at = capacities[:, None]
        got = (
            np.clip(at - self._above, 0, self._blocks)
            if self._parts
            else np.where(at >= self._whole, self._blocks, 0.0)
        )
        hits = np.zeros((len(capacities), len(self._most)))
        hits[:, self._request] = np.add.reduceat(got, self._starts, axis=1)
        return np.minimum(np.floor(hits + ROUNDING), self._most)


@dataclass(frozen=True)
class _Searched:
    """Errors of each session tree, in tokens, at each capacity of a grid, in blocks, where others write so much."""

    others: float
    capacities: Floats
    table: Floats
    least: float


class _Search:
    def __init__(self, what: Served, order: Order) -> None:
        self._what, self._order = what, order
        known = np.flatnonzero(what.known)
        trees = what.root % MOST_TREES
        self._known = known[np.argsort(trees[known], kind="stable")]
        self._observed = what.observed[self._known]
        self._trees = np.flatnonzero(np.diff(trees[self._known], prepend=-1))

    def alone(self) -> _Searched:
        prediction = Prediction(self._what, self._order)
        smallest = max(1.0, float(self._what.runs.depth.max()) * 0.25)
        best, _ = self._coarse(prediction, smallest, prediction.most_blocks * 1.05 + 2, COARSE)
        return self._fine(prediction, 0.0, best)

    def shared(self, others: float, capacity: float, least: float) -> _Searched | None:
        """capacity, least: where there is no other traffic, the best and its errors. None: so much worse than those
        that nothing more need be known."""
        prediction = Prediction(self._what, self._order, others)
        best, errors = self._coarse(prediction, capacity * 0.9, capacity * 1.2 * (1 + others), COARSE_OTHERS)
        if errors > 2 * least + HOPELESS * float(self._observed.sum()):
            return None
        return self._fine(prediction, others, best)

    def _coarse(self, prediction: Prediction, low: float, high: float, count: int) -> tuple[float, float]:
        grid = np.unique(np.round(np.geomspace(low, high, count)))
        sums = self._errors(prediction, grid).sum(axis=1)
        at = int(sums.argmin())
        return float(grid[at]), float(sums[at])

    def _fine(self, prediction: Prediction, others: float, best: float) -> _Searched:
        fine = np.unique(np.round(np.linspace(best / 1.2, best * 1.2 + 2, FINE)))
        table = self._errors(prediction, fine)
        return _Searched(others, fine, table, float(table.sum(axis=1).min()))

    def _errors(self, prediction: Prediction, capacities: Floats) -> Floats:
        """(capacities, trees), a few capacities at a time."""
        at_a_time = max(1, CELLS // max(1, len(self._what.runs.request)))
        parts = []
        for start in range(0, len(capacities), at_a_time):
            hits = prediction.table(capacities[start : start + at_a_time])[:, self._known]
            errors = np.abs(self._observed - hits * self._what.block_size)
            parts.append(np.add.reduceat(errors, self._trees, axis=1))
        return np.concatenate(parts)


def invert(what: Served, *, order: Order = "leaf-first", shared: bool = True) -> Inverted | None:
    """None where nothing reported can be held against a prediction: no hit is possible at any capacity.

    shared False: other traffic is not allowed for.
    """
    known = what.known
    prediction = Prediction(what, order)
    if not known.any() or prediction.most_blocks == 0:
        return None
    observed, size = what.observed[known], what.block_size
    search = _Search(what, order)
    alone = search.alone()
    searched = [alone]
    if shared:
        start = float(np.median(_best(alone)))
        searched += [s for q in OTHERS[1:] if (s := search.shared(q, start, alone.least)) is not None]
    least = min(s.least for s in searched)
    best = next(s for s in searched if s.least <= least + TIE)
    exact = least <= TIE and what.pinned_blocks == 0
    region = _region(searched, best, exact)
    chosen = alone if region[0].others == 0 else best
    equal = _best(chosen)
    value = float((equal.min() + equal.max()) / 2)
    low, high = min(r.low for r in region), max(r.high for r in region)
    beside = 1.0 if exact else float(np.diff(best.capacities).max()) / 2
    prediction = Prediction(what, order, chosen.others)
    at_most = prediction.blocks(prediction.most_blocks)[known]
    overflowed = bool(value < prediction.most_blocks) and bool((observed < at_most * size).any())
    pinned = min(0.5, UNACCOUNTED * what.pinned_blocks / max(value, 1.0))
    at_value = prediction.blocks(value)[known]
    moved = (prediction.blocks(value * (1 - MOVED_BY))[known] != at_value) | (
        prediction.blocks(value * (1 + MOVED_BY))[known] != at_value
    )
    seen = max(1, int(observed.sum()))
    swing = np.abs(
        prediction.blocks(value * (1 + pinned))[known] - prediction.blocks(value * (1 - pinned))[known]
    ).sum()
    return Inverted(
        low=min(value, low - beside) * size,
        value=value * size,
        high=max(value, high + beside) * size,
        exact=exact,
        others=(region[0].others, chosen.others, region[-1].others),
        misfit=chosen.least / seen,
        limit=min(MISFIT_LIMIT, MISFIT_ALONE + float(swing) * size / seen),
        moved=int(moved.sum()),
        requests=int(known.sum()),
        overflowed=overflowed,
        residuals=(observed - at_value * size).astype(np.int64),
        tree_errors=chosen.table[int(chosen.table.sum(axis=1).argmin())],
        at_least=int(_best(alone).min()) * size,
    )


def separation(worse: Floats, better: Floats) -> float:
    """By how many of its own standard errors one sum over trees is larger than the other: sum d / sqrt(sum d^2). k
    trees that differ alike give sqrt(k)."""
    difference = worse - better
    spread = float(np.sqrt((difference * difference).sum()))
    return float(difference.sum()) / spread if spread else 0.0


def _best(one: _Searched) -> Floats:
    """The capacities of the grid that are best."""
    best: Floats = one.capacities[one.table.sum(axis=1) <= one.least + TIE]
    return best


class _Part(NamedTuple):
    """Capacities in blocks that cannot be told from the best, where others write so much."""

    others: float
    low: float
    high: float


def _region(searched: list[_Searched], best: _Searched, exact: bool) -> list[_Part]:
    """By `others`, rising. exact: what predicts every hit. Else what is not worse than the best by more than its
    errors, which differ from session tree to session tree, allow."""
    sums = best.table.sum(axis=1)
    equal = np.flatnonzero(sums <= best.least + TIE)
    least = best.table[equal[len(equal) // 2]]
    parts = []
    for one in searched:
        if exact:
            inside = one.table.sum(axis=1) <= TIE
        else:
            difference = one.table - least
            spread = np.sqrt((difference * difference).sum(axis=1))
            inside = difference.sum(axis=1) <= TOLD_APART * spread + TIE
        found = one.capacities[inside]
        if len(found):
            parts.append(_Part(one.others, float(found.min()), float(found.max())))
    return parts
