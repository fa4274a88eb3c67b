"""What a fit says: figures with their intervals, and what it will not say and why."""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.model.audits import Check


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and the interval it lies in. low, high None: there is no bound on that side. n: what it rests on,
    counted in what `method` says."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    method: str
    n: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is not given: why, and the experiment that would settle it."""

    name: str
    reason: str
    experiment: str


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """How far the best fit is from what was observed. share: sum of |observed - predicted| over the sum observed; above
    `limit` no point estimate is given. causes: what would look like this."""

    share: float
    limit: float
    causes: tuple[str, ...] = ()


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found in some runs. assumed: what the estimates take for granted. residuals: rows for plots.
    checks, verdict: of an audit; verdict is confirmed, disputed or cannot tell, and None where nothing was checked.
    side_by_side: what is claimed of a model and what its architecture implies beside it, where one was named."""

    runs: tuple[str, ...]
    estimates: tuple[Estimate, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    misfit: Misfit | None = None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    residuals: tuple[dict[str, Any], ...] = ()
    checks: tuple[Check, ...] = ()
    verdict: str | None = None
    side_by_side: dict[str, Any] | None = None

    def named(self, name: str) -> Estimate | None:
        return next((e for e in self.estimates if e.name == name), None)
