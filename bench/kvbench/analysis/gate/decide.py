"""The gate's statistics, over arrays: one gate is one row, a simulation thousands, and both are these functions.

The run is the unit: what differs between runs is invisible inside one. Values are one a run, on the tested scale (log
for ratios), turned so that more is worse.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ALPHA = 0.01
"""Of a family of gates together (Holm): the chance of any FAIL when nothing changed."""
PASS_LEVEL = 0.95
"""One-sided level of the upper bound that PASS needs."""
MIN_RUNS = 3
"""Fewer runs on a side say nothing of their spread."""

Outcome = Literal["pass", "fail", "inconclusive"]


class Test(NamedTuple):
    """One row each. estimate: change of the mean (or the mean itself, for one sample); p: one-sided, more is worse;
    lower, upper: one-sided bounds at PASS_LEVEL; sd: within the sides, pooled; welch: where variances were kept apart.
    """

    estimate: Floats
    p: Floats
    lower: Floats
    upper: Floats
    sd: Floats
    welch: npt.NDArray[np.bool_]


def enough(n_base: int, n_new: int) -> bool:
    """Whether an exact permutation test of these runs could reach ALPHA at all: 5 + 5, 4 + 5, 3 + 7 can, 4 + 4 not."""
    return min(n_base, n_new) >= MIN_RUNS and math.comb(n_base + n_new, n_new) > 1 / ALPHA


def two_samples(base: Floats, new: Floats) -> Test:
    """scipy.stats.ttest_ind over the last axis, alternative "greater", with the bounds of the same t.

    Variances are pooled, which equal numbers of runs make safe; where the numbers differ and so do the variances (F
    test, p < ALPHA), Welch's. Without any spread the figures are taken as exact (hit rates can be).
    """
    from scipy import stats

    base, new = np.asarray(base, dtype=float), np.asarray(new, dtype=float)
    n_base, n_new = base.shape[-1], new.shape[-1]
    estimate = new.mean(axis=-1) - base.mean(axis=-1)
    var_base, var_new = base.var(axis=-1, ddof=1), new.var(axis=-1, ddof=1)
    df = n_base + n_new - 2
    sd = np.sqrt(((n_base - 1) * var_base + (n_new - 1) * var_new) / df)
    exact = _without_spread(sd, np.concatenate([base, new], axis=-1))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Values that are all alike: dealt with as exact below.
        warnings.simplefilter("ignore", RuntimeWarning)
        pooled = stats.ttest_ind(new, base, axis=-1, alternative="greater")
        two_sided = stats.ttest_ind(new, base, axis=-1).confidence_interval(2 * PASS_LEVEL - 1)
        p, lower, upper = pooled.pvalue, two_sided.low, two_sided.high
        welch = np.zeros(np.shape(estimate), dtype=bool)
        if n_base != n_new:
            larger = np.maximum(var_base / var_new, var_new / var_base)
            first = np.where(var_base > var_new, n_base - 1, n_new - 1)
            welch = 2 * stats.f.sf(larger, first, n_base + n_new - 2 - first) < ALPHA
            apart = stats.ttest_ind(new, base, axis=-1, equal_var=False, alternative="greater")
            apart_bounds = stats.ttest_ind(new, base, axis=-1, equal_var=False).confidence_interval(2 * PASS_LEVEL - 1)
            p = np.where(welch, apart.pvalue, p)
            lower = np.where(welch, apart_bounds.low, lower)
            upper = np.where(welch, apart_bounds.high, upper)
    return _with_exact(Test(estimate, p, lower, upper, sd, welch & ~exact), exact, 0.0)


def one_sample(new: Floats, limit: float) -> Test:
    """scipy.stats.ttest_1samp over the last axis: whether the mean is above `limit`."""
    from scipy import stats

    new = np.asarray(new, dtype=float)
    n = new.shape[-1]
    estimate, sd = new.mean(axis=-1), new.std(axis=-1, ddof=1)
    exact = _without_spread(sd, new)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        p = stats.ttest_1samp(new, limit, axis=-1, alternative="greater").pvalue
    half = stats.t.ppf(PASS_LEVEL, n - 1) * sd / math.sqrt(n)
    test = Test(estimate, p, estimate - half, estimate + half, sd, np.zeros(np.shape(estimate), dtype=bool))
    return _with_exact(test, exact, limit)


def share_bounds(part: int, of: int, limit: float) -> tuple[float, float]:
    """(p, upper) of a share by Clopper and Pearson: the chance of `part` or more of `of` at a true `limit`, and the
    one-sided upper bound at PASS_LEVEL. For shares so small that runs without any case have no spread.
    """
    from scipy import stats

    upper = 1.0 if part >= of else float(stats.beta.ppf(PASS_LEVEL, part + 1, of - part))
    return float(stats.binom.sf(part - 1, of, limit)), upper


def holm(p: Floats) -> Floats:
    """p adjusted for the family in the last axis (Holm 1979): any below ALPHA rejects with family-wise error ALPHA."""
    p = np.asarray(p, dtype=float)
    m = p.shape[-1]
    order = np.argsort(p, axis=-1)
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * (m - np.arange(m)), axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted


def outcomes(test: Test, p_adjusted: Floats, threshold: float, pass_bound: float) -> npt.NDArray[np.str_]:
    """FAIL: p below ALPHA after Holm and the estimate beyond the threshold. PASS: the upper bound below the pass bound.
    Else inconclusive. FAIL goes first.
    """
    fail = (p_adjusted < ALPHA) & (test.estimate > threshold)
    return np.where(fail, "fail", np.where(test.upper < pass_bound, "pass", "inconclusive"))


def _without_spread(sd: Floats, values: Floats) -> npt.NDArray[np.bool_]:
    """No more spread than floating-point arithmetic leaves among equal values."""
    return np.asarray(sd <= 1e-12 * np.maximum(1e-12, np.abs(values).max(axis=-1)))


def _with_exact(test: Test, exact: npt.NDArray[np.bool_], limit: float) -> Test:
    estimate = test.estimate
    return test._replace(
        p=np.where(exact, np.where(estimate > limit, 0.0, 1.0), test.p),
        lower=np.where(exact, estimate, test.lower),
        upper=np.where(exact, estimate, test.upper),
    )
