"""An export that holds the same window more than once, as two exports that overlap make it when put together.

What a provider bills twice has its tokens twice in one row, or requests twice by their ids; that all rows of a window
stand there again, equal in each number, is a copy in the file. It is counted once, and said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import TypeVar

from msgspec.structs import replace

from kvbench.prices.invoices.lines import BadRow, Charge, Invoice, InvoiceLine

_T = TypeVar("_T", InvoiceLine, Charge)
_LEAST = 2
"""Rows with tokens that a window must have: a single number may be the same by chance."""


def once(invoice: Invoice) -> Invoice:
    """The invoice with each copy of a window among the rows that cannot be read."""
    if invoice.by != "windows":
        return invoice
    groups: dict[tuple[Hashable, str | None], list[InvoiceLine]] = defaultdict(list)
    for line in invoice.lines:
        groups[_window(line), line.key].append(line)
    bad: list[BadRow] = []
    again = {name for name, some in groups.items() if _copies(some) > 1}
    if not again:
        return invoice
    windows = {window for window, _ in again}
    lines = _kept(invoice.lines, [(_window(each), each.key) in again for each in invoice.lines], bad)
    charges = _kept(invoice.charges, [_window(each) in windows for each in invoice.charges], bad)
    return replace(invoice, lines=lines, charges=charges, bad=(*invoice.bad, *bad))


def _window(each: InvoiceLine | Charge) -> Hashable:
    return each.start, each.end, each.model


def _copies(lines: list[InvoiceLine]) -> int:
    """How often a window's rows are there as a whole."""
    counts = Counter((line.kind, line.tokens, line.price) for line in lines)
    told = [count for (kind, tokens, _), count in counts.items() if tokens and kind != "requests"]
    return min(counts.values()) if len(told) >= _LEAST and len(set(counts.values())) == 1 else 1


def _kept(each: tuple[_T, ...], may_repeat: list[bool], bad: list[BadRow]) -> tuple[_T, ...]:
    first: dict[_T, str] = {}
    kept = []
    for one, may in zip(each, may_repeat, strict=True):
        plain = replace(one, place="")
        if may and plain in first:
            bad.append(
                BadRow(place=one.place, field=None, why=f"the same as {first[plain]}: is an export in it twice?")
            )
            continue
        first.setdefault(plain, one.place)
        kept.append(one)
    return tuple(kept)
