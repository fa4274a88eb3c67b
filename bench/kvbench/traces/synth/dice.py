"""Random draws for recipes: the same seed gives the same draws in every Python version and on every machine.

Everything is made of `random.Random(text).random()`: the Mersenne Twister, seeded through SHA-512 of a text that names
what is drawn ("7/s03"), both of which Python keeps as they are. A session's draws do not depend on how many others
there are.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

_T = TypeVar("_T")
_NEAR = 0.1
"""How far a rank that stays near the one before it moves at most, half to each side."""


class Dice:
    """Draws of one seed, in order."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def integer(self, low: int, high: int) -> int:
        """low..high, both included."""
        return low + int((high - low + 1) * self._random())

    def choice(self, options: Sequence[_T]) -> _T:
        return options[int(len(options) * self._random())]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def rank(self) -> float:
        """0 <= rank < 1: what `Draw.at` makes a value of."""
        return self._random()

    def near(self, rank: float) -> float:
        """A rank close to `rank`. If `rank` is uniform, so is the result."""
        moved = abs(rank + _NEAR * (self._random() - 0.5))
        return moved if moved < 1.0 else 2.0 - moved - 1e-12

    def shuffled(self, options: Sequence[_T]) -> list[_T]:
        """Fisher-Yates."""
        out = list(options)
        for last in range(len(out) - 1, 0, -1):
            other = self.integer(0, last)
            out[last], out[other] = out[other], out[last]
        return out

    def log_normal(self, median: float, sigma: float, low: float, high: float) -> float:
        """A log-normal draw, cut to [low, high]; Box-Muller."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self._random()))
        normal = radius * math.cos(2.0 * math.pi * self._random())
        return min(high, max(low, median * math.exp(sigma * normal)))


_Number = Annotated[float, Meta(ge=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A distribution of amounts >= 0; exactly one of `median`, `range` alone, `values` and `quantiles`.

    median, sigma, range: log-normal, cut to the range. range: uniform, both ends included. values, weights: one of
    these. quantiles: pairs [share, value], from [0, least] to [1, most], linear in between.
    """

    median: _Number | None = None
    sigma: _Number | None = None
    range: tuple[_Number, _Number] | None = None
    values: tuple[_Number, ...] | None = None
    weights: tuple[_Number, ...] | None = None
    quantiles: tuple[tuple[_Share, _Number], ...] | None = None
    from_turn: Annotated[int, Meta(ge=0)] = 0
    """In a list of draws: holds from this turn on, to the next one's."""

    def __post_init__(self) -> None:
        kinds = [name for name in ("median", "values", "quantiles") if getattr(self, name) is not None]
        if len(kinds) > 1 or (not kinds and self.range is None):
            raise ValueError(
                "a distribution is {median, sigma, range}, {range}, {values, weights} or {quantiles}; found "
                + (" and ".join(kinds) or "none of them")
            )
        if self.range is not None and (self.range[0] > self.range[1] or kinds not in ([], ["median"])):
            raise ValueError("range is [least, most], alone or with median and sigma")
        if (self.median is not None) != (self.sigma is not None) or self.median == 0:
            raise ValueError("median (above 0) and sigma go together")
        if self.values is not None and (
            not self.values or len(self.weights or self.values) != len(self.values) or sum(self.weights or (1,)) <= 0
        ):
            raise ValueError("values are one or more, with as many weights, if any, not all 0")
        if self.weights is not None and self.values is None:
            raise ValueError("weights go with values")
        if self.quantiles is not None and (
            len(self.quantiles) < 2
            or self.quantiles[0][0] != 0
            or self.quantiles[-1][0] != 1
            or any(
                a > b
                for pair in zip(self.quantiles, self.quantiles[1:], strict=False)
                for a, b in zip(*pair, strict=True)
            )
        ):
            raise ValueError("quantiles are pairs [share, value] that rise from share 0 to share 1")

    def at(self, rank: float) -> float:
        """The value that a share `rank` of the draws does not exceed."""
        if self.median is not None and self.sigma is not None:
            from statistics import NormalDist

            low, high = self.range or (0.0, math.inf)
            normal = NormalDist().inv_cdf(min(max(rank, 1e-12), 1 - 1e-12))
            return min(high, max(low, self.median * math.exp(self.sigma * normal)))
        if self.values is not None:
            sums = list(accumulate(self.weights or (1.0,) * len(self.values)))
            return self.values[min(bisect_right(sums, rank * sums[-1]), len(sums) - 1)]
        if self.quantiles is not None:
            upper = min(bisect_right(self.quantiles, rank, key=lambda pair: pair[0]), len(self.quantiles) - 1)
            (share, value), (share_above, above) = self.quantiles[upper - 1], self.quantiles[upper]
            part = (rank - share) / (share_above - share) if share_above > share else 0.0
            return value + (above - value) * part
        assert self.range is not None
        return self.range[0] + (self.range[1] - self.range[0]) * rank

    def whole(self, rank: float) -> int:
        """As at(), of whole numbers; a uniform range of whole numbers has each of them equally often."""
        if self.range is not None and self.median is None:
            low, high = round(self.range[0]), round(self.range[1])
            return min(high, low + int((high - low + 1) * rank))
        return round(self.at(rank))


Amount = _Number | Draw
Amounts = _Number | Draw | tuple[Draw, ...]
"""By turn."""


def drawn(amount: Amount, rank: float) -> float:
    return amount.at(rank) if isinstance(amount, Draw) else amount


def drawn_whole(amount: Amount, rank: float) -> int:
    return amount.whole(rank) if isinstance(amount, Draw) else round(amount)


def of_turn(amounts: Amounts, turn: int) -> Amount:
    """The amount that holds for a turn; the first one holds before its from_turn too."""
    if not isinstance(amounts, tuple):
        return amounts
    held = amounts[0]
    for amount in amounts:
        if amount.from_turn <= turn:
            held = amount
    return held
