"""What a prediction says: figures of a load that was not run, and where the hit rate falls."""

from __future__ import annotations

import msgspec

from kvbench.model.fits import Refusal


class CliffPoint(msgspec.Struct, frozen=True, kw_only=True):
    """At so many live sessions (None: in the trace's own time). hit_rate, ceiling: by token, at the capacity and
    unbounded. needed_tokens: the least capacity that loses no more than the share `lost` of it. falls: more is lost."""

    sessions: int | None
    hit_rate: float
    ceiling: float
    needed_tokens: int
    falls: bool


class Cliff(msgspec.Struct, frozen=True, kw_only=True):
    """sessions_held: the most at which the hit rate does not fall; None: it falls with one. sessions_tried: the most
    that the trace has. present: at the load that was asked for. falls_at: of the sessions, the first at which it falls;
    None: at none of them."""

    capacity_tokens: float
    lost: float
    present: CliffPoint
    points: tuple[CliffPoint, ...]
    sessions_held: int | None
    falls_at: int | None
    sessions_tried: int


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted figure and, where the run exists, the observed one. value None: a floor alone (low). error: of a rate
    the difference, of a time the share by which the prediction is above what was observed."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    observed: float | None = None
    error: float | None = None


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """how: the load, in words. capacity_tokens None: not known, or from below alone. cliff: of the same trace."""

    fitted_on: str
    target: str
    how: str
    capacity_tokens: float | None
    requests: int
    figures: tuple[Figure, ...]
    refusals: tuple[Refusal, ...]
    cliff: Cliff | None
    notes: tuple[str, ...]
