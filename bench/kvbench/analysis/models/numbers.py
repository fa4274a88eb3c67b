"""Exact numbers in and out: bytes are fractions (a token of a compressed cache need not be whole bytes)."""

from __future__ import annotations

from fractions import Fraction


def plain(value: Fraction | int) -> int | float:
    """For JSON: an int where it is whole, else the nearest float."""
    value = Fraction(value)
    return value.numerator if value.denominator == 1 else float(value)


def text(value: Fraction | int) -> str:
    """`389,120`, `3,514.25`; at most four decimals, and `about` before what they do not hold."""
    value = Fraction(value)
    if value.denominator == 1:
        return f"{value.numerator:,}"
    scaled = value * 10_000
    digits = f"{float(value):,.4f}".rstrip("0").rstrip(".")
    return digits if scaled.denominator == 1 else f"about {digits}"
