"""Which hits came up from a tier below HBM, where the server does not say: two kinds told apart by their time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.ttft_model import FEWEST_TIER_ROWS, Fitted, Floats, Form, Rows, fit_form

Mask = NDArray[np.bool_]

FEWEST_HITS = 20
APART = 6.0
"""Of the residuals' spread: so far must the two kinds lie from each other. Halves of one normal distribution, taken for
two kinds, lie 2.6 apart."""
MOST_DOUBTFUL = 0.05
_STARTS = (0.2, 0.35, 0.5, 0.65, 0.8)
_ROUNDS = 12


def split_by_time(rows: Rows) -> Rows | None:
    """The rows with the slower kind of hits marked as tier 1, each hit whole from there; None where hits are of one
    kind, or the kinds cannot be told apart request by request."""
    hot = rows.cached > 0
    if hot.sum() < FEWEST_HITS:
        return None
    first = fit_form(Form(), rows).log_residuals(rows)
    found = [_settled(rows, hot & (first > np.quantile(first[hot], start))) for start in _STARTS]
    split = [one for one in found if one is not None]
    if not split:
        return None
    fitted, slow, spread = min(split, key=lambda one: one[2])
    fast_s, slow_s = _both(fitted, rows)
    gap = np.log(slow_s / fast_s)[hot]
    off = np.abs(np.log(rows.ttft_s / fast_s)[hot]) - np.abs(np.log(rows.ttft_s / slow_s)[hot])
    doubtful = (gap < APART * spread) | (np.abs(off) < spread)
    if doubtful.mean() > MOST_DOUBTFUL or min(slow.sum(), (hot & ~slow).sum()) < FEWEST_TIER_ROWS:
        return None
    return _marked(rows, slow)


def not_below(fitted: Fitted, rows: Rows) -> int:
    """How many of the rows taken for a tier's are explained better as hits in HBM."""
    direct = fitted.predict(replace(rows, tier=np.zeros_like(rows.tier)))
    below = (rows.tier > 0) & (rows.below > 0)
    nearer = np.abs(np.log(rows.ttft_s / direct)) < np.abs(fitted.log_residuals(rows))
    apart = np.abs(np.log(fitted.predict(rows) / direct)) > 3 * _spread(fitted.log_residuals(rows))
    return int((below & nearer & apart).sum())


def _settled(rows: Rows, slow: Mask) -> tuple[Fitted, Mask, float] | None:
    hot = rows.cached > 0
    fitted = None
    for _ in range(_ROUNDS):
        if min(slow.sum(), (hot & ~slow).sum()) < FEWEST_TIER_ROWS:
            return None
        fitted = fit_form(Form(tiers=(1,)), _marked(rows, slow))
        fast_s, slow_s = _both(fitted, rows)
        again = hot & (np.abs(np.log(rows.ttft_s / slow_s)) < np.abs(np.log(rows.ttft_s / fast_s)))
        if (again == slow).all():
            break
        slow = again
    if fitted is None or min(slow.sum(), (hot & ~slow).sum()) < FEWEST_TIER_ROWS:
        return None
    return fitted, slow, _spread(fitted.log_residuals(_marked(rows, slow)))


def _both(fitted: Fitted, rows: Rows) -> tuple[Floats, Floats]:
    none = np.zeros(len(rows), bool)
    return fitted.predict(_marked(rows, none)), fitted.predict(_marked(rows, rows.cached > 0))


def _marked(rows: Rows, slow: Mask) -> Rows:
    return replace(rows, tier=slow.astype(np.int64), below=np.where(slow, rows.cached, 0.0))


def _spread(residuals: Floats) -> float:
    """As a standard deviation, from the median, so that a few late answers do not count."""
    return float(1.4826 * np.median(np.abs(residuals)) + 1e-4)
