"""Reported hits against predicted ones, request by request: where they leave [floor, ceiling], by how far and when.

A residual is 0 inside the interval; outside it is the signed distance in tokens: below the floor negative, above the
ceiling positive. Its money is what the missing hits cost more, or the surplus ones less, than predicted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kvbench.prices.money import ZERO, plain
from kvbench.prices.money import total as total_of
from kvbench.prices.priced import Billable, Priced

_TURNS = (1, 2, 5, 10, 20, 50)
_TURN_NAMES = ("0", "1", "2-4", "5-9", "10-19", "20-49", "50 and on")
_PAUSES_S = (1.0, 10.0, 60.0, 300.0, 3600.0)
_PAUSE_NAMES = ("below 1 s", "1-10 s", "10-60 s", "1-5 min", "5-60 min", "1 h and more")
_FIRST = "first turn"
BY = ("turn", "pause", "session", "hour")
_ORDER = {"turn": _TURN_NAMES, "pause": (_FIRST, *_PAUSE_NAMES), "session": ("root", "sub-agent")}


@dataclass
class _Bin:
    """Residuals of some requests, and what those outside cost."""

    residuals: list[int] = field(default_factory=list)
    below_amounts: list[Decimal] = field(default_factory=list)
    above_amounts: list[Decimal] = field(default_factory=list)

    def add(self, residual: int, amount: Decimal) -> None:
        self.residuals.append(residual)
        if residual < 0:
            self.below_amounts.append(amount)
        elif residual > 0:
            self.above_amounts.append(amount)

    def as_dict(self) -> dict[str, Any]:
        found = sorted(self.residuals)
        below = [each for each in found if each < 0]
        above = [each for each in found if each > 0]
        return {
            "requests": len(found),
            "inside": len(found) - len(below) - len(above),
            "below": len(below),
            "above": len(above),
            "below_tokens": -sum(below),
            "above_tokens": sum(above),
            "below_amount": plain(total_of(self.below_amounts)),
            "above_amount": plain(total_of(self.above_amounts)),
            "tokens": {
                "least": found[0],
                "p5": _quantile(found, 0.05),
                "p50": _quantile(found, 0.5),
                "p95": _quantile(found, 0.95),
                "most": found[-1],
                "mean": sum(found) / len(found),
            },
        }


class Residuals:
    """Feeds on priced requests; those without a prediction, or without reported hits, are counted apart."""

    def __init__(self) -> None:
        self._all = _Bin()
        self._bins: dict[str, dict[str, _Bin]] = {name: {} for name in BY}
        self._widths: list[float] = []
        self._rules: set[str] = set()
        self._unpredicted = 0
        self._unreported = 0

    def add(self, billable: Billable, got: Priced) -> None:
        floor, ceiling, cached = billable.floor, billable.ceiling, got.usage.cached_tokens
        if floor is None or ceiling is None:
            self._unpredicted += 1
            return
        if cached is None:
            self._unreported += 1
            return
        residual = cached - floor if cached < floor else max(0, cached - ceiling)
        amount = abs(residual) * _saved(got) if residual else ZERO
        self._widths.append((ceiling - floor) / (got.usage.input_tokens or 1))
        if billable.rule is not None:
            self._rules.add(billable.rule)
        self._all.add(residual, amount)
        for name, where in _places(billable, got).items():
            self._bins[name].setdefault(where, _Bin()).add(residual, amount)

    def as_dict(self, why_none: str | None) -> dict[str, Any]:
        """requests 0, and why, where nothing was predicted."""
        apart = {"not_predicted": self._unpredicted, "hits_not_reported": self._unreported}
        if not self._all.residuals:
            why = why_none or "no request has predicted and reported hits"
            return {"requests": 0, "why": why, **apart}
        return {
            **self._all.as_dict(),
            "why": why_none if self._unpredicted else None,
            **apart,
            "rules": sorted(self._rules),
            "median_width": _quantile(sorted(self._widths), 0.5),
            "by": {
                name: {where: bins[where].as_dict() for where in _sorted(name, bins)} for name, bins in self._named()
            },
        }

    def _named(self) -> list[tuple[str, dict[str, _Bin]]]:
        return [(name, bins) for name, bins in self._bins.items() if bins]


def _places(billable: Billable, got: Priced) -> dict[str, str]:
    places = {"hour": f"{billable.start or got.time:%H}"}
    if billable.turn is not None:
        places["turn"] = _TURN_NAMES[bisect_right(_TURNS, billable.turn)]
        if billable.pause_s is not None:
            places["pause"] = _PAUSE_NAMES[bisect_right(_PAUSES_S, billable.pause_s)]
        elif billable.turn == 0:
            places["pause"] = _FIRST
    if billable.sub_agent is not None:
        places["session"] = "sub-agent" if billable.sub_agent else "root"
    return places


def _saved(got: Priced) -> Decimal:
    """What a hit costs less than a miss, for one token; 0 where the row lists no discount."""
    hit, miss = (got.row.per_token(kind, peak=got.peak) for kind in ("hit", "miss"))
    return ZERO if hit is None or miss is None else miss - hit


def _sorted(name: str, bins: dict[str, _Bin]) -> list[str]:
    order = _ORDER.get(name)
    return sorted(bins) if order is None else [where for where in order if where in bins]


def _quantile(ordered: list[Any], share: float) -> float:
    """Linear interpolation."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (at - low))
