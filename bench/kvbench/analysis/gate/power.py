"""How many runs a gate needs, from the spread between runs of one side."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kvbench.analysis.gate.decide import ALPHA, MIN_RUNS, PASS_LEVEL, enough, share_bounds

WANTED_POWER = 0.8
MOST_RUNS = 1000
_SPREADS = (np.arange(4000) + 0.5) / 4000


def fail_power(n_base: int, n_new: int, sd: float, effect: float, *, threshold: float, alpha: float = ALPHA) -> float:
    """The chance of FAIL with runs of spread `sd` when the true change is `effect` (all on the tested scale).

    FAIL needs t beyond its critical value and the estimate beyond the threshold, so with sigma_hat the estimated
    spread it is P(estimate > max(threshold, t_crit sigma_hat sqrt(1/n_base + 1/n_new))): integrated over the
    distribution of sigma_hat, with which the estimate has nothing to do. Without a threshold this is the noncentral
    t's `nct.sf(t_crit, df, effect / se)`.
    """
    from scipy import stats

    if sd == 0:
        return float(effect > threshold)
    df, se = n_base + n_new - 2, sd * math.sqrt(1 / n_base + 1 / n_new)
    estimated = np.sqrt(stats.chi2.ppf(_SPREADS, df) / df)
    needed = np.maximum(threshold, stats.t.isf(alpha, df) * se * estimated)
    return float(stats.norm.sf((needed - effect) / se).mean())


def pass_power(n_base: int, n_new: int, sd: float, *, pass_bound: float) -> float:
    """The chance of PASS with runs of spread `sd` when nothing changed: t beyond its critical value against the bound,
    `nct.sf(t_crit, df, pass_bound / se)`.
    """
    if sd == 0:
        return float(pass_bound > 0)
    return _t_power(n_base + n_new - 2, pass_bound / (sd * math.sqrt(1 / n_base + 1 / n_new)), 1 - PASS_LEVEL)


def runs_needed(sd: float, *, threshold: float, pass_bound: float, alpha: float = ALPHA) -> int | None:
    """Runs a side for WANTED_POWER both ways: FAIL at a change as large as the pass bound, PASS when nothing changed.
    None: more than MOST_RUNS.
    """

    def suffice(n: int) -> bool:
        return (
            enough(n, n)
            and fail_power(n, n, sd, pass_bound, threshold=threshold, alpha=alpha) >= WANTED_POWER
            and pass_power(n, n, sd, pass_bound=pass_bound) >= WANTED_POWER
        )

    return _smallest(suffice)


def runs_needed_for_value(sd: float, margin: float, *, alpha: float = ALPHA) -> int | None:
    """New runs for WANTED_POWER of a verdict on an absolute value whose mean is `margin` below the limit (PASS), or
    above it where negative (FAIL). None: more than MOST_RUNS.
    """
    if sd == 0:
        return MIN_RUNS
    level = 1 - PASS_LEVEL if margin > 0 else alpha
    return _smallest(
        lambda n: n >= MIN_RUNS and _t_power(n - 1, abs(margin) * math.sqrt(n) / sd, level) >= WANTED_POWER
    )


def runs_for_share(share: float, turns: float, limit: float) -> int | None:
    """New runs of `turns` turns each for the binomial's upper bound to be below `limit` at this share; 1 where the
    share is above it. None: more than MOST_RUNS.
    """
    if share >= limit:
        return 1
    return _smallest(lambda n: share_bounds(round(share * n * turns), max(1, round(n * turns)), limit)[1] < limit)


def _t_power(df: int, shift: float, alpha: float) -> float:
    """`nct.sf(t.isf(alpha, df), df, shift)`; certain where the shift is so large that the noncentral t overflows."""
    from scipy import stats

    return 1.0 if shift > 37 else float(stats.nct.sf(stats.t.isf(alpha, df), df, shift))


def _smallest(suffice: Callable[[int], bool]) -> int | None:
    if not suffice(MOST_RUNS):
        return None
    low, high = 1, MOST_RUNS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffice(middle) else (middle, high)
    return high
