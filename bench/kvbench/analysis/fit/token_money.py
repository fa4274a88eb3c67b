"""What tokens too many cost by a price book: of a million, at the price that held when the run began."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from urllib.parse import urlsplit

from msgspec.structs import replace

from kvbench.model import Check, Usage
from kvbench.prices.money import PER_M, plain, product
from kvbench.prices.parts import CannotPrice
from kvbench.prices.pricing import Found, PriceList
from kvbench.runs.reader import Run

MILLION = 1_000_000
_SHARE = Decimal("0.000001")
_KIND = {
    **dict.fromkeys(("input", "input_grain", "template", "tokenizer", "repeated", "stream"), "miss"),
    **dict.fromkeys(("output", "output_grain"), "output"),
    "reasoning": "reasoning",
}
"""Which price a check's tokens have; a row without one for reasoning bills it as output."""


def priced(checks: tuple[Check, ...], run: Run, prices: PriceList) -> tuple[tuple[Check, ...], str | None]:
    """The checks with the money of their excess, and a note on the prices; None where nothing is in excess.

    An excess of input is priced as uncached, off-peak: hits cost less.
    """
    if not any(check.excess is not None and check.name in _KIND for check in checks):
        return checks, None
    model = str((run.info.server or {}).get("model") or "")
    try:
        found = prices.find(model, datetime.fromisoformat(run.info.started_at), Usage())
    except CannotPrice as error:
        return checks, f"no money: {error.why.partition(';')[0]}"
    host = urlsplit(str(run.info.endpoint.get("url") or "")).hostname
    note = f"money by {found.book.name}'s list for {model}, uncached and off-peak, row {found.row.status}"
    if found.book.hosts and host not in found.book.hosts:
        note += f"; {host} is no endpoint of that list, and may charge otherwise"
    return tuple(_with_money(check, found) for check in checks), note


def _with_money(check: Check, found: Found) -> Check:
    kind = _KIND.get(check.name)
    price: Decimal | None = None if kind is None else getattr(found.row, kind)
    if kind == "reasoning" and price is None:
        price = found.row.output
    if price is None or check.excess is None:
        return check
    of_requests = check.excess_unit == "tokens a request"
    # rounded to a millionth of the share, and exact from there
    excess = Decimal(check.excess).quantize(_SHARE)
    tokens = product(excess, MILLION)
    money = {
        "amount": plain(product(price, PER_M, tokens)),
        "currency": found.row.currency,
        "of": "1,000,000 requests" if of_requests else f"1,000,000 exact {_noun(check)} tokens",
        "price_per_mtok": plain(price),
        "book": found.book.name,
    }
    return replace(check, money=money)


def _noun(check: Check) -> str:
    return "output" if check.name.startswith("output") else "reasoning" if check.name == "reasoning" else "input"
