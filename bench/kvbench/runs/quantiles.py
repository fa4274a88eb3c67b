"""The one definition of a percentile in this project: linear interpolation between order statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvbench.model import Quantiles


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The q-quantile (0..1) of ascending values, NumPy's default method ("linear", Hyndman and Fan type 7).

    None without values. Values may end in +inf: a rank that touches one gives +inf, never NaN.
    """
    if len(ordered) == 0:
        return None
    rank = (len(ordered) - 1) * q
    low = math.floor(rank)
    below = float(ordered[low])
    if rank == low:
        return below
    above = float(ordered[low + 1])
    return above if math.isinf(above) else below + (above - below) * (rank - low)


def quantiles(values: Iterable[float], *, failures: int | None = None) -> Quantiles:
    """p50, p95, p99 and mean of values without NaN; `failures` are added as +inf (adjusted figures).

    A percentile that is +inf becomes None, as JSON has no word for it; an adjusted figure has no mean.
    """
    ordered = sorted(values) + [math.inf] * (failures or 0)

    def finite(q: float) -> float | None:
        value = quantile(ordered, q)
        return None if value is None or math.isinf(value) else value

    mean = math.fsum(ordered) / len(ordered) if ordered and not failures else None
    return Quantiles(
        n=len(ordered), p50=finite(0.5), p95=finite(0.95), p99=finite(0.99), mean=mean, failures_as_inf=failures
    )
