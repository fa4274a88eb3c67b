"""An export that names no currency: whether its prices are those of another list than ours are."""

from __future__ import annotations

from decimal import Decimal

from kvbench.analysis.billing.sides import find_tier
from kvbench.errors import UsageError
from kvbench.prices.invoices.lines import Invoice, InvoiceLine
from kvbench.prices.pricing import PriceList


def check_currency(invoice: Invoice, prices: PriceList, currency: str) -> None:
    """UsageError where more of its rows have the very prices of another currency's list than of ours."""
    lines = [line for line in invoice.lines if line.price and line.tokens]
    if invoice.currency is not None or not lines:
        return
    lists = {name: prices if name == currency else PriceList(prices.books, name) for name in _known(prices)}
    fits = {name: sum(line.price in _prices(line, known) for line in lines) for name, known in lists.items()}
    best = max(fits, key=lambda name: (fits[name], name == currency))
    if best != currency and fits[best] * 2 > len(lines):
        raise UsageError(
            f"the invoice names no currency, and {fits[best]:,} of its {len(lines):,} prices are those of the {best} "
            f"list, {fits.get(currency, 0):,} of the {currency} list",
            hint=f"--currency {best}",
        )


def _known(prices: PriceList) -> list[str]:
    return sorted({name for book in prices.books for name in book.currencies})


def _prices(line: InvoiceLine, prices: PriceList) -> set[Decimal | None]:
    """What one token of its kind costs by a list, at peak and not."""
    tier = find_tier(prices, line.model, line.start)
    if tier is None:
        return set()
    other = tier.other_peak()
    return {tier.price(line.kind), *([] if other is None else [other.price(line.kind)])}
