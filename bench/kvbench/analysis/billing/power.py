"""What a verdict is worth: the smallest fault that this bill, with these requests, could not have hidden."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from kvbench.analysis.billing.cells import Cell, Sides
from kvbench.analysis.billing.findings import Found
from kvbench.prices.money import plain, total

_FAULTS = (
    ("hits_as_misses", ("hit", "miss"), "miss", "hit"),
    ("input_inflated", ("hit", "miss", "write_5m", "write_1h", "input"), "miss", None),
    ("output_inflated", ("output", "reasoning"), "output", None),
)


def detectable(sides: Sides, found: Found, currency: str, edges: Sequence[Decimal] = ()) -> dict[str, Any]:
    """amount: any fault of these kinds that costs more is found, wherever it is; null: there is no such bound, and
    by_fault says for what. tokens likewise. edges: what requests on a change of price may cost more or less."""
    cells = [cell for cell in sides.cells if cell.requests or cell.unknown]
    kinds = frozenset(sides.invoice.kinds)
    by_fault: dict[str, Any] = {}
    for name, among, dear, cheap in _FAULTS:
        told = [kind for kind in among if kind in kinds]
        if name == "hits_as_misses" and "hit" not in kinds:
            by_fault[name] = _none("the invoice does not tell hits from misses")
        elif not told:
            by_fault[name] = _none("the invoice does not count these tokens")
        else:
            by_fault[name] = _tokens(cells, told, dear, cheap)
    money = any(line.price is not None for line in sides.invoice.lines) or bool(sides.invoice.charges)
    by_fault["price_off"] = (
        {"amount": plain(found.slack), "tokens": None, "why": "what is printed rounded may be off by this"}
        if money
        else _none("the invoice has no money in it")
    )
    edge = f"of {len(edges):,} requests on a change of price it is not known which price decides"
    by_fault["wrong_peak_hour"] = (
        {"amount": plain(total(edges)), "tokens": None, "why": edge if edges else None}
        if money
        else _none("the invoice has no money in it")
    )
    known = [each for each in by_fault.values() if each["amount"] is not None]
    complete = len(known) == len(by_fault)
    tokens = [each["tokens"] for each in known if each["tokens"] is not None]
    worst = max((Decimal(each["amount"]) for each in known), default=Decimal(0)) + found.slack
    return {
        "amount": plain(worst) if complete else None,
        "currency": currency,
        "tokens": max(tokens, default=None) if complete else None,
        "by_fault": by_fault,
        "to_see_less": _advice(sides, found, cells, edges),
    }


def _tokens(cells: Sequence[Cell], kinds: list[str], dear: str, cheap: str | None) -> dict[str, Any]:
    open_cells = [cell for cell in cells if not cell.closed]
    if open_cells:
        return _none(f"in {len(open_cells):,} of {len(cells):,} windows or requests something else may be billed")
    width = 0
    for cell in cells:
        for kind in kinds:
            least, most = cell.expected(kind)
            if most is None:
                return _none("an answer's length is known from below only")
            width += most - least
    prices = [
        cell.tier.least(dear) - (cell.tier.least(cheap) if cheap is not None else 0)
        for cell in cells
        if cell.tier is not None
    ]
    tokens = width + 1
    return {"amount": plain(max(prices, default=Decimal(0)) * tokens), "tokens": tokens, "why": None}


def _advice(sides: Sides, found: Found, cells: Sequence[Cell], edges: Sequence[Decimal]) -> str:
    if any(cell.unknown for cell in cells):
        return "requests that report their usage (a stream that breaks off reports none), or an invoice by request"
    if any(not cell.closed for cell in cells):
        return "a key that nothing else uses (--dedicated-key), or an invoice by request"
    if edges:
        return "requests that do not run across a change of price"
    if found.slack:
        return "an invoice with more decimals, or more traffic: what is lost by rounding does not grow with the tokens"
    if sides.how == "by window" and sides.invoice.charges and not any(line.price for line in sides.invoice.lines):
        return "an invoice with prices"
    return "nothing: every token is accounted for"


def _none(why: str) -> dict[str, Any]:
    return {"amount": None, "tokens": None, "why": why}
