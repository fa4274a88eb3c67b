"""Capacity from an ordinary run: the size of an LRU cache whose hits are nearest to those reported, request by request.

At capacity C request i hits min(most_i, sum over its runs of blocks of clip(C - above, 0, blocks)) blocks, exactly (see
traces/curve); blocks held by requests that run at the time are no room for others. The estimate minimises
sum |observed - predicted| over C. Its interval is that of a bootstrap over session trees, joined with the capacities
that fit as well, a block at each end, and a tenth of the share of the cache that running requests hold, which is known
no better. No figure is given where the best fit is still wrong by more than 0.5% of what was observed and what that
tenth explains, or by more than 5% at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.served import Ints, Served, served
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

MISFIT_LIMIT = 0.05
MISFIT_ALONE = 0.005
"""Limit where requests follow one another: an LRU cache is then predicted exactly, but for copies of aligned blocks."""
FEWEST_MOVED = 10
MOVED_BY = 0.1
MISFIT_SEEN = 0.001
"""Above it other explanations are tried: one that explains the hits twice as well is believed."""
HEADS_FIRST = "eviction of heads before tails"
MANY_PINNED = 0.25
UNACCOUNTED = 0.1
"""Of what running requests hold: blocks that they share are counted once each, and a request that waits holds none."""
COARSE, FINE = 160, 400
BOOTSTRAPS = 400
CAPACITY_PROBE = "kvbench probe capacity, on the endpoint with nothing else on it"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Inverted:
    """The fit: tokens, and what it rests on. moved: requests whose hit changes when the capacity does by 10%."""

    low: float
    value: float
    high: float
    misfit: float
    limit: float
    moved: int
    requests: int
    overflowed: bool
    residuals: Ints
    at_least: int


class Prediction:
    """Hits of each known request at any capacity, in blocks."""

    def __init__(self, what: Served, order: str = "leaf-first") -> None:
        request, above, whole = what.bounds(order)  # type: ignore[arg-type]
        self._request, self._above, self._blocks = request, above, whole - above
        self._whole = whole
        self._order = order
        self._what = what
        self.most_blocks = int(whole.max(initial=0))

    def blocks(self, capacity: float) -> Floats:
        """Predicted hits of all requests, blocks."""
        what = self._what
        if self._order == "root-first":
            runs = what.runs.blocks
            got = np.where(capacity >= self._whole, runs, 0).astype(np.float64)
        else:
            got = np.clip(capacity - self._above, 0, self._blocks).astype(np.float64)
        sums = np.bincount(self._request, got, len(what.most))
        return np.minimum(np.floor(sums), what.most)


def invert(what: Served, *, seed: int = 0, order: str = "leaf-first") -> Inverted | None:
    """None where nothing reported can be held against a prediction: no hit is possible at any capacity."""
    known = what.known
    prediction = Prediction(what, order)
    if not known.any() or prediction.most_blocks == 0:
        return None
    observed = what.observed[known]
    size = what.block_size

    def errors(capacity: float) -> Floats:
        return np.abs(observed - prediction.blocks(capacity)[known] * size)

    def tree_errors(grid: Floats) -> Floats:
        return np.stack([np.bincount(what.root[known], errors(c), what.roots) for c in grid])

    smallest = max(1.0, float(what.runs.depth.max()) * 0.25)
    coarse = np.unique(np.round(np.geomspace(smallest, prediction.most_blocks * 1.05 + 2, COARSE)))
    best = float(coarse[int(tree_errors(coarse).sum(axis=1).argmin())])
    fine = np.unique(np.round(np.linspace(best / 1.2, best * 1.2 + 2, FINE)))
    table = tree_errors(fine)
    total = table.sum(axis=1)
    least = float(total.min())
    equal = fine[total <= least + 0.5]
    value = float((equal.min() + equal.max()) / 2)
    overflowed = bool(value < prediction.most_blocks) and bool(
        (observed < prediction.blocks(prediction.most_blocks)[known] * size).any()
    )
    low, high = _interval(fine, table, equal, seed)
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
        low=(low - 1) * size * (1 - pinned),
        value=value * size,
        high=(high + 1) * size * (1 + pinned),
        misfit=least / seen,
        limit=min(MISFIT_LIMIT, MISFIT_ALONE + float(swing) * size / seen),
        moved=int(moved.sum()),
        requests=int(known.sum()),
        overflowed=overflowed,
        residuals=(observed - at_value * size).astype(np.int64),
        at_least=int(equal.min()) * size,
    )


def _interval(fine: Floats, table: Floats, equal: Floats, seed: int) -> tuple[float, float]:
    """90% of the capacities that are best for trees drawn again with replacement, joined with those that fit best."""
    rng = np.random.default_rng(seed)
    trees = table.shape[1]
    drawn = rng.multinomial(trees, np.full(trees, 1 / trees), size=BOOTSTRAPS).astype(np.float64)
    sums = table @ drawn.T
    best = fine[sums.argmin(axis=0)]
    last = fine[len(fine) - 1 - sums[::-1].argmin(axis=0)]
    low, high = np.quantile(best, 0.05), np.quantile(last, 0.95)
    return float(min(low, equal.min())), float(max(high, equal.max()))


def fit_trace(run: Run, kv_memory_bytes: int | None = None) -> FitReport:
    """capacity_tokens of an ordinary run, and bytes_per_token where the memory is given."""
    name = str(run.path)
    what = served(run)
    if what is None:
        reason = (
            "the run does not hold its prompts' blocks: nobody knew the token ids, or its hit rule has no blocks of "
            "one size (prefix units, steps, none)"
        )
        return _refusal(name, reason, "kvbench run on a server with /tokenize, with a block rule ([expected_hits])")
    if not what.known.any():
        return _refusal(
            name,
            "the endpoint reports no cached tokens",
            "start vLLM with --enable-prompt-tokens-details, or use an endpoint that reports them",
        )
    if not (what.observed > 0).any():
        return _refusal(
            name, "no request hit anything: caching is off, or no prompt shares a block with another", CAPACITY_PROBE
        )
    fit = invert(what)
    if fit is None:
        return _refusal(
            name, "no prompt shares a block with an earlier one", "a trace whose sessions have several turns"
        )
    rows = tuple(
        {"request": i, "observed_tokens": int(o), "residual_tokens": int(r)}
        for i, o, r in zip(np.flatnonzero(what.known).tolist(), what.observed[what.known], fit.residuals, strict=True)
        if r
    )
    causes = _causes(what, fit) if fit.misfit > MISFIT_SEEN else ()
    misfit = Misfit(share=fit.misfit, limit=fit.limit, causes=causes)
    if fit.misfit > fit.limit or HEADS_FIRST in causes:
        over = fit.misfit > fit.limit
        compared = f"(limit {fit.limit * 100:.1f}%)" if over else "and another explanation halves that"
        reason = (
            f"at the best capacity the hits still differ by {fit.misfit * 100:.1f}% of what was reported "
            f"{compared}: this is not one LRU cache of blocks; it looks like {', '.join(causes)}"
        )
        return _refusal(name, reason, CAPACITY_PROBE, misfit, rows)
    notes: tuple[str, ...] = ()
    if fit.misfit > MISFIT_ALONE:
        notes = (f"hits differ by {fit.misfit * 100:.1f}% of what was reported: it may be {', '.join(causes)}",)
    return _estimates(name, fit, kv_memory_bytes, misfit, notes, rows)


def _estimates(
    name: str,
    fit: Inverted,
    memory: int | None,
    misfit: Misfit,
    notes: tuple[str, ...],
    rows: tuple[dict[str, int], ...],
) -> FitReport:
    method = "least sum of |observed - predicted| hits of an LRU cache, 90% bootstrap by session tree"
    bounded = fit.overflowed and fit.moved >= FEWEST_MOVED
    value, high = (fit.value, fit.high) if bounded else (None, None)
    low = fit.low if bounded else min(fit.low, float(fit.at_least))
    estimates = [
        Estimate(name="capacity_tokens", value=value, low=low, high=high, unit="tokens", method=method, n=fit.requests)
    ]
    refusals = []
    if memory is None:
        refusals.append(
            Refusal(
                name="bytes_per_token",
                reason="the memory that the capacity takes up is not known",
                experiment="kvbench fit RUN --kv-memory BYTES",
            )
        )
    else:
        estimates.append(
            Estimate(
                name="bytes_per_token",
                value=None if value is None else memory / value,
                low=None if high is None else memory / high,
                high=memory / low if low > 0 else None,
                unit="bytes/token",
                method="memory over capacity: as allocated",
                n=fit.requests,
            )
        )
    if not bounded:
        why = (
            "nothing was lost that an unbounded cache would have kept"
            if not fit.overflowed
            else f"only {fit.moved} requests hit more or less when the capacity changes by 10%"
        )
        notes += (f"{why}: the run gives a lower bound of the capacity alone; more load or a smaller pool would tell",)
    return FitReport(
        runs=(name,),
        estimates=tuple(estimates),
        refusals=tuple(refusals),
        misfit=misfit,
        assumed=(
            "one cache with nothing else on it: foreign traffic, replicas and another policy look like another size",
        ),
        notes=notes,
        residuals=rows,
    )


def _causes(what: Served, fit: Inverted) -> tuple[str, ...]:
    """What the residuals look like: hits lost that were just there, hits where none could be left, or both."""
    prediction, known, size = Prediction(what), what.known, what.block_size
    observed = what.observed[known]
    near = prediction.blocks(fit.value / size * 0.4)[known] * size
    far = prediction.blocks(fit.value / size * 1.6)[known] * size
    lost = np.maximum(0, near - observed).sum() / max(1, near.sum())
    beyond = np.maximum(0, observed - prediction.blocks(fit.value / size)[known] * size).sum() / max(1, far.sum())
    head_first = invert(what, order="root-first")
    causes = []
    if what.pinned_blocks > MANY_PINNED * fit.value / size:
        share = what.pinned_blocks * size / fit.value
        causes.append(f"too many requests at a time: those running held {share * 100:.0f}% of the cache")
    if head_first is not None and head_first.misfit < 0.5 * fit.misfit:
        causes.append(HEADS_FIRST)
    if lost > 0.02:
        causes.append("replicas that requests are spread over at random, lapses, or hits in coarser units than blocks")
    if beyond > 0.02:
        causes.append("replicas that sessions stick to, or eviction by time of writing (FIFO)")
    return tuple(causes or ["other traffic on the cache, or many requests at a time"])


def _refusal(
    name: str,
    reason: str,
    experiment: str,
    misfit: Misfit | None = None,
    rows: tuple[dict[str, int], ...] = (),
) -> FitReport:
    refusal = Refusal(name="capacity_tokens", reason=reason, experiment=experiment)
    return FitReport(runs=(name,), refusals=(refusal,), misfit=misfit, residuals=rows)
