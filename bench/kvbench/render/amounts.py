"""Amounts of money and small tables, as every text about prices shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

WIDTH = 11


def money(value: dict[str, Any], currency: str) -> str:
    """`USD 1.3759`, or the interval it lies in."""
    if value["amount"] is not None:
        return f"{currency} {amount_text(value['amount'])}"
    if value["at_most"] is None:
        return f"at least {currency} {amount_text(value['at_least'])}, without an upper bound"
    return f"{currency} {amount_text(value['at_least'])} to {amount_text(value['at_most'])}"


def amount_text(text: str) -> str:
    """Six significant digits, never fewer than whole cents; the exact amount is in --json."""
    amount = Decimal(text)
    if not amount:
        return "0"
    places = max(2, 5 - amount.adjusted())
    shown = f"{amount:,.{places}f}"
    whole, _, rest = shown.partition(".")
    kept = rest.rstrip("0").ljust(2, "0")
    return f"{whole}.{kept}"


def block(label: str, table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cells[i]) for cells in table) for i in range(len(table[0]))]
    for number, cells in enumerate(table):
        head = label if number == 0 else ""
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        yield f"{head:<{WIDTH}}{text}"
