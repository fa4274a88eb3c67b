"""A claim as a checked row: what is said, by whom, what the model gives, the verdict, and what has to be added."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Literal

import msgspec

FAILS = "does not hold"

Verdict = Literal["holds", "holds with correction", "does not hold", "out of scope", "cannot tell"]
Figure = int | float | str | None


class OnTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The claim on the traffic of a trace. verdict None: the figure is told, and decides nothing."""

    gives: str
    verdict: Verdict | None = None
    figures: dict[str, Figure] = {}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """gives: what the model gives, in words; figures: the same as numbers. correction: what the claim leaves out."""

    id: str
    claim: str
    source: str
    gives: str
    verdict: Verdict
    correction: str | None = None
    figures: dict[str, Figure] = {}
    on_trace: OnTrace | None = None


def rounded(value: Fraction | float, digits: int) -> Decimal:
    """To `digits` decimals, halves up, as a person rounds."""
    exact = Fraction(value)
    quotient = Decimal(exact.numerator) / Decimal(exact.denominator)
    return quotient.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)


def agrees(value: Fraction | float, claimed: str) -> bool:
    """Whether `value`, rounded to as many decimals as `claimed` has, is it."""
    digits = len(claimed.partition(".")[2])
    return rounded(value, digits) == Decimal(claimed)


def times(value: Fraction | float, digits: int = 1) -> str:
    return f"{rounded(value, digits)}x"


def one_in(value: Fraction | float) -> str:
    """`1/2.9`"""
    return f"1/{rounded(value, 1)}"


def at_least(value: Fraction, claimed: str) -> Verdict:
    """On a trace: the claim's figure, more than it (which is told as a correction), or less: it does not hold."""
    if agrees(value, claimed):
        return "holds"
    return "holds with correction" if value > Fraction(claimed) else "does not hold"


def judged(ok: bool, correction: str | None = None) -> Verdict:
    """does not hold where the figure is another; else holds, with a correction where there is one."""
    if not ok:
        return "does not hold"
    return "holds with correction" if correction else "holds"
