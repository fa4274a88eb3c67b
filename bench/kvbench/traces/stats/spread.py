"""Quantiles of what a trace has many of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles by linear interpolation; None where n is 0."""

    n: int
    mean: float | None = None
    min: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def spread(values: Sequence[float]) -> Spread:
    if not len(values):
        return Spread(n=0)
    import numpy as np

    found = np.quantile(np.asarray(values, float), [0, 0.1, 0.5, 0.9, 0.95, 0.99, 1]).tolist()
    names = ("min", "p10", "p50", "p90", "p95", "p99", "max")
    return Spread(n=len(values), mean=float(np.mean(values)), **dict(zip(names, found, strict=True)))
