"""What a hit and a miss cost in time: TTFT = t0 + a u + k c + b (u c + u^2 / 2) over u uncached and c cached tokens.

Residuals are of log(TTFT), with a soft L1 loss, so that a few late answers do not bend the fit; all terms are at least
0. Intervals are 90% of a bootstrap by cell. Only for requests sent one at a time: waiting for others is no part of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.steps import failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe latency"
FEWEST = 20
LEAST_SPREAD = 4.0
MISFIT_LIMIT = 0.15
SOFT_L1_SCALE = 0.1
BOOTSTRAPS = 100
NOTHING = 0.005
"""Of the median TTFT: a term that adds less at its largest may as well be 0."""
TERMS = (
    ("ttft_base_s", "s", "what a request takes however short"),
    ("prefill_s_per_token", "s/token", "an uncached token"),
    ("prefill_s_per_cached_token", "s/token", "a cached token"),
    ("attention_s_per_token2", "s/token^2", "an uncached token against each token before it"),
)

Floats = NDArray[np.float64]


def fit_latency(run: Run) -> FitReport:
    """The four terms; refused where the client's own error was too large or the terms cannot be told apart."""
    name = str(run.path)
    found = [s for s in steps(run) if s.role == "read" and s.ttft_s is not None and s.cached_tokens is not None]
    why = failure(run)
    if why is None and not found:
        why = stop_reason(run) or "the endpoint reports no cached tokens"
    if why is None and run.info.trust is not None and run.info.trust.verdict != "ok":
        why = f"the client's own error is too large: {'; '.join(run.info.trust.reasons)}"
    if why is None and len(found) < FEWEST:
        why = f"{len(found)} measured requests are too few: at least {FEWEST}"
    if why is not None:
        return _refused(name, "ttft_model", why, f"{PROBE} again")
    cells = np.array([s.series for s in found])
    cached = np.array([s.cached_tokens for s in found], float)
    uncached = np.array([s.sent_tokens for s in found], float) - cached
    ttft = np.array([s.ttft_s for s in found], float)
    if uncached.min() <= 0 or uncached.max() / uncached.min() < LEAST_SPREAD:
        why = f"uncached tokens only range from {uncached.min():,.0f} to {uncached.max():,.0f}: no slope can be told"
        return _refused(name, "ttft_model", why, f"{PROBE} with a larger --max-input-tokens")
    hot = float(np.ptp(cached)) > LEAST_SPREAD * float(uncached.min())
    terms = terms_of(uncached, cached)
    used = _used(terms, ttft) if hot else [0, 1, 3]
    best = fit_terms(terms[:, used], ttft)
    share = float(np.median(np.abs(np.log(ttft / (terms[:, used] @ best)))))
    residuals = tuple(
        {"uncached_tokens": int(u), "cached_tokens": int(c), "ttft_s": float(t), "predicted_s": float(p)}
        for u, c, t, p in zip(uncached, cached, ttft, terms[:, used] @ best, strict=True)
    )
    misfit = Misfit(
        share=share,
        limit=MISFIT_LIMIT,
        causes=("waiting behind other requests", "several servers", "prefill in steps") if share > MISFIT_LIMIT else (),
    )
    if share > MISFIT_LIMIT:
        why = f"half of the requests are off by more than {share * 100:.0f}% (limit {MISFIT_LIMIT * 100:.0f}%)"
        refused = _refused(name, "ttft_model", why, f"{PROBE} with nothing else on the endpoint")
        return FitReport(runs=(name,), refusals=refused.refusals, misfit=misfit, residuals=residuals)
    lows, highs = _bootstrap(terms[:, used], ttft, cells)
    # the fit comes near 0 from above and never to it
    lows = np.where(lows * terms[:, used].max(axis=0) < NOTHING * np.median(ttft), 0.0, lows)
    estimates = tuple(
        Estimate(
            name=TERMS[term][0],
            value=float(best[i]),
            low=float(min(lows[i], best[i])),
            high=float(max(highs[i], best[i])),
            unit=TERMS[term][1],
            method=f"{TERMS[term][2]}; log residuals, soft L1, 90% bootstrap by cell",
            n=len(found),
        )
        for i, term in enumerate(used)
    )
    if hot and 2 not in used:
        estimates += (_no_cached_term(terms, ttft, cells),)
    refusals: tuple[Refusal, ...] = ()
    if not hot:
        why = "nothing was cached in these requests, so nothing is known of a cached token's time"
        refusals = _refused(name, TERMS[2][0], why, PROBE).refusals
    notes = ("times are of one request at a time: under load, waiting comes on top",)
    return FitReport(
        runs=(name,), estimates=estimates, refusals=refusals, misfit=misfit, notes=notes, residuals=residuals
    )


def terms_of(uncached: Floats, cached: Floats) -> Floats:
    """Columns 1, u, c, u c + u^2 / 2; shape (requests, 4)."""
    return np.column_stack([np.ones_like(uncached), uncached, cached, uncached * cached + uncached**2 / 2])


def fit_terms(terms: Floats, ttft: Floats) -> Floats:
    """Coefficients, each at least 0. terms: (n, k); ttft: (n,) in s."""
    from scipy.optimize import least_squares, nnls

    scale = np.abs(terms).max(axis=0)
    columns = terms / scale
    weights = 1 / ttft
    first, _ = nnls(columns * weights[:, None], np.ones_like(ttft))
    start = np.maximum(first, 1e-3 * ttft.min())

    def residuals(p: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(columns @ p, 1e-12) / ttft))

    done = least_squares(residuals, start, bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT_L1_SCALE, x_scale=start)
    return np.asarray(done.x / scale)


def _no_cached_term(terms: Floats, ttft: Floats, cells: NDArray[np.str_]) -> Estimate:
    _, highs = _bootstrap(terms, ttft, cells)
    return Estimate(
        name=TERMS[2][0],
        value=0.0,
        low=0.0,
        high=float(highs[2]),
        unit=TERMS[2][1],
        method=f"{TERMS[2][2]}; the fit is as good without it",
        n=len(ttft),
    )


def _used(terms: Floats, ttft: Floats) -> list[int]:
    """All terms, or all but that of a cached token, where that one does not pay for itself (AIC): the others are then
    known better."""
    without, full = (_spread(terms[:, columns], ttft) for columns in ([0, 1, 3], [0, 1, 2, 3]))
    return [0, 1, 2, 3] if len(ttft) * np.log(without / full) > 2 else [0, 1, 3]


def _spread(terms: Floats, ttft: Floats) -> float:
    """Mean soft L1 loss of log residuals."""
    off = np.log(terms @ fit_terms(terms, ttft) / ttft) / SOFT_L1_SCALE
    return float(np.mean(2 * (np.sqrt(1 + off**2) - 1))) + 1e-9


def _bootstrap(terms: Floats, ttft: Floats, cells: NDArray[np.str_]) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    rows = [np.flatnonzero(cells == cell) for cell in np.unique(cells)]
    found = []
    for _ in range(BOOTSTRAPS):
        drawn = np.concatenate([rows[i] for i in rng.integers(0, len(rows), len(rows))])
        found.append(fit_terms(terms[drawn], ttft[drawn]))
    return np.quantile(found, 0.05, axis=0), np.quantile(found, 0.95, axis=0)


def _refused(name: str, what: str, reason: str, experiment: str) -> FitReport:
    return FitReport(runs=(name,), refusals=(Refusal(name=what, reason=reason, experiment=experiment),))
