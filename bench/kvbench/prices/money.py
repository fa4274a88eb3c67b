"""Exact money: Decimal sums and products that may not be rounded, and amounts known only as an interval."""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from decimal import Decimal

import msgspec

_EXACT = decimal.Context(prec=200, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
"""Raises where a result would have to be rounded."""

PER_M = Decimal("0.000001")
ZERO = Decimal(0)


def product(*factors: Decimal | int) -> Decimal:
    """Exact product."""
    out = Decimal(1)
    for factor in factors:
        out = _EXACT.multiply(out, Decimal(factor))
    return out


def total(terms: Iterable[Decimal]) -> Decimal:
    """Exact sum."""
    out = ZERO
    for term in terms:
        out = _EXACT.add(out, term)
    return out


def plain(value: Decimal) -> str:
    """Without an exponent and without zeros at its end: the same number is always the same text."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


class Money(msgspec.Struct, frozen=True):
    """At least `least`, at most `most` (None: no bound is known). A point where the two are equal."""

    least: Decimal = ZERO
    most: Decimal | None = ZERO

    @property
    def exact(self) -> Decimal | None:
        """The amount, where it is one."""
        return self.least if self.least == self.most else None

    def plus(self, other: Money) -> Money:
        most = None if self.most is None or other.most is None else _EXACT.add(self.most, other.most)
        return Money(_EXACT.add(self.least, other.least), most)


def point(amount: Decimal) -> Money:
    return Money(amount, amount)
