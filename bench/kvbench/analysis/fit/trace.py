"""Capacity from an ordinary run: what the inversion found, or why no figure is given.

No figure where the best fit is still wrong by more than 0.5% of what was observed and what a twentieth of what running
requests hold explains, or by more than 5% at all; where other traffic shows; where eviction of heads first explains the
hits better; or where the run cannot tell a small cache from one that others use too.
"""

from __future__ import annotations

import numpy as np

from kvbench.analysis.fit.inversion import Inverted, Prediction, invert, separation
from kvbench.analysis.fit.served import Served, served
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

FEWEST_MOVED = 10
MISFIT_TOLD = 0.005
MISFIT_SEEN = 0.001
"""Above it other explanations are tried: one that explains the hits twice as well is believed."""
SURELY_BETTER = 1.645
"""Or one that is better by so many standard errors."""
HEADS_FIRST = "eviction of heads before tails"
OTHERS = "other traffic on the cache"
MANY_PINNED = 0.25
MOST_OTHERS = 0.05
"""Share of other traffic in what is written, above which there is no figure."""
OTHERS_EXCLUDED = 0.2
"""Share that a run has to be able to tell from none."""
CAPACITY_PROBE = "kvbench probe capacity, on the endpoint with nothing else on it"


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
    heads_first = _heads_first(what, fit)
    others = tuple(_share(q) for q in fit.others)
    causes = _causes(what, fit, heads_first) if fit.misfit > MISFIT_SEEN or heads_first else ()
    misfit = Misfit(share=fit.misfit, limit=fit.limit, causes=causes)
    if fit.misfit > fit.limit or heads_first:
        over = fit.misfit > fit.limit
        compared = f"(limit {fit.limit * 100:.1f}%)" if over else "and another explanation is better than that"
        reason = (
            f"at the best capacity the hits still differ by {fit.misfit * 100:.1f}% of what was reported "
            f"{compared}: this is not one LRU cache of blocks; it looks like {', '.join(causes)}"
        )
        return _refusal(name, reason, CAPACITY_PROBE, misfit, rows)
    if others[0] > MOST_OTHERS or (others[0] > 0 and others[2] > OTHERS_EXCLUDED):
        reason = (
            f"others use the cache: the hits are those of one into which they write {others[1] * 100:.0f}% of the "
            f"blocks ({others[0] * 100:.0f}% to {others[2] * 100:.0f}%), too much to be allowed for"
        )
        return _refusal(name, reason, CAPACITY_PROBE, Misfit(share=fit.misfit, limit=fit.limit, causes=(OTHERS,)), rows)
    notes: tuple[str, ...] = ()
    if fit.misfit > MISFIT_TOLD:
        notes = (f"hits differ by {fit.misfit * 100:.1f}% of what was reported: it may be {', '.join(causes)}",)
    if others[1] > 0:
        notes += (f"others write about {others[1] * 100:.1f}% of the blocks: allowed for",)
    return _estimates(name, fit, kv_memory_bytes, misfit, notes, rows)


def _estimates(
    name: str,
    fit: Inverted,
    memory: int | None,
    misfit: Misfit,
    notes: tuple[str, ...],
    rows: tuple[dict[str, int], ...],
) -> FitReport:
    interval = "bounds: every hit is predicted" if fit.exact else "90% interval by session trees"
    method = f"least sum of |observed - predicted| hits of an LRU cache, {interval}"
    others = _share(fit.others[2])
    bounded = fit.overflowed and fit.moved >= FEWEST_MOVED and others <= OTHERS_EXCLUDED
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
            if fit.moved < FEWEST_MOVED
            else f"a larger cache into which others write {others * 100:.0f}% of the blocks would do as well"
        )
        notes += (f"{why}: the run gives a lower bound of the capacity alone; more load or a smaller pool would tell",)
    return FitReport(
        runs=(name,),
        estimates=tuple(estimates),
        refusals=tuple(refusals),
        misfit=misfit,
        assumed=(
            "one cache; others' traffic, where there is any, writes a steady share of the blocks: replicas and another "
            "policy look like another size",
        ),
        notes=notes,
        residuals=rows,
    )


def _share(others: float) -> float:
    """Of all blocks that are written, those of others who write so many for each own one."""
    return others / (1 + others)


def _heads_first(what: Served, fit: Inverted) -> bool:
    """Whether a cache that gives up a request's head before its tail explains the hits better."""
    if not fit.misfit:
        return False
    other = invert(what, order="root-first", shared=False)
    if other is None or other.misfit >= fit.misfit:
        return False
    halved = fit.misfit > MISFIT_SEEN and other.misfit < 0.5 * fit.misfit
    return halved or separation(fit.tree_errors, other.tree_errors) > SURELY_BETTER


def _causes(what: Served, fit: Inverted, heads_first: bool) -> tuple[str, ...]:
    """What the residuals look like: hits lost that were just there, hits where none could be left, or both."""
    prediction, known, size = Prediction(what), what.known, what.block_size
    observed = what.observed[known]
    near = prediction.blocks(fit.value / size * 0.4)[known] * size
    far = prediction.blocks(fit.value / size * 1.6)[known] * size
    lost = np.maximum(0, near - observed).sum() / max(1, near.sum())
    beyond = np.maximum(0, observed - prediction.blocks(fit.value / size)[known] * size).sum() / max(1, far.sum())
    causes = []
    if what.pinned_blocks > MANY_PINNED * fit.value / size:
        share = what.pinned_blocks * size / fit.value
        causes.append(f"too many requests at a time: those running held {share * 100:.0f}% of the cache")
    if heads_first:
        causes.append(HEADS_FIRST)
    if lost > 0.02:
        causes.append("replicas that requests are spread over at random, lapses, or hits in coarser units than blocks")
    if beyond > 0.02:
        causes.append("replicas that sessions stick to, or eviction by time of writing (FIFO)")
    return tuple(causes or [f"{OTHERS}, or many requests at a time"])


def _refusal(
    name: str,
    reason: str,
    experiment: str,
    misfit: Misfit | None = None,
    rows: tuple[dict[str, int], ...] = (),
) -> FitReport:
    refusal = Refusal(name="capacity_tokens", reason=reason, experiment=experiment)
    return FitReport(runs=(name,), refusals=(refusal,), misfit=misfit, residuals=rows)
