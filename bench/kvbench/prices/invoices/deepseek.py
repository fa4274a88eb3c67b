"""DeepSeek's usage export: a table of tokens (`amount`) and one of money (`cost`), as a zip or as two CSV files.

    amount  user_id, utc_date | start_time_iso, end_time_iso, model, api_key_name, api_key, type, price, amount
    cost    user_id, utc_date | start_time_iso, end_time_iso, model, wallet_type, cost, currency

`price` is for one token; peak and off-peak are rows of their own. The amount table has no currency, the cost table no
key: what a key is billed is the sum of price x amount.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.errors import InputError
from kvbench.prices.invoices.lines import BadRow, Charge, Invoice, InvoiceLine
from kvbench.prices.invoices.table import CellError, Row, header, last_decimal, rows, window

SHAPE = "known from third-party readers of this export; no genuine file was seen"
_KINDS = {
    "input_cache_hit_tokens": "hit",
    "input_cache_miss_tokens": "miss",
    "output_tokens": "output",
    "request_count": "requests",
}
_AMOUNT = {"model", "type", "price", "amount"}
_COST = {"model", "cost", "currency"}


def is_table(columns: Sequence[str]) -> bool:
    return set(columns) >= _AMOUNT or set(columns) >= _COST


def read(texts: Sequence[tuple[str, str]], path: str) -> Invoice:
    """texts: (name, CSV text) of each table. Raises InputError where there is no table of tokens."""
    bad: list[BadRow] = []
    lines: list[InvoiceLine] = []
    charges: list[tuple[str, Charge]] = []
    for name, text in texts:
        if set(header(text)) >= _AMOUNT:
            lines += rows(text, name, _line, bad)
        else:
            charges += rows(text, name, _charge, bad)
    if not lines:
        wrong = f"; {len(bad):,} rows could not be read, the first: {bad[0]}" if bad else ""
        raise InputError(
            f"no row of tokens in it: the table with the column type is missing or empty{wrong}",
            path=path,
            hint="name the zip, or both CSV files: --invoice amount.csv --invoice cost.csv",
        )
    return Invoice(
        path=path,
        format="DeepSeek usage export",
        shape=SHAPE,
        by="windows",
        kinds=("hit", "miss", "output", "requests"),
        lines=tuple(lines),
        charges=tuple(charge for _, charge in charges),
        bad=tuple(bad),
        currency=one_currency([(currency, charge.place) for currency, charge in charges], path),
        unit=last_decimal([charge.amount for _, charge in charges]),
    )


def one_currency(named: Sequence[tuple[str, str]], path: str) -> str | None:
    """The currency of all of them; None where there are none. Raises InputError for two: nothing is converted."""
    places = dict(reversed(named))
    if len(places) > 1:
        where = ", ".join(f"{currency} ({place})" for currency, place in sorted(places.items()))
        raise InputError(
            f"billed in several currencies: {where}; amounts are never converted or added up",
            path=path,
            hint="export, or split, the bill by currency and verify each by itself",
        )
    return next(iter(places), None)


def _line(row: Row) -> InvoiceLine:
    start, end = window(row, "utc_date", "start_time_iso", "end_time_iso")
    kind = _KINDS.get(row.need("type"))
    if kind is None:
        raise CellError("type", f"{row.need('type')[:40]!r} is none of {', '.join(_KINDS)}")
    tokens = row.tokens("amount")
    if tokens is None:
        raise CellError("amount", "empty")
    price = row.price("price")
    if kind == "requests":
        price = None
    elif price is None and tokens:
        raise CellError("price", "empty, and tokens have one")
    return InvoiceLine(
        start=start,
        end=end,
        model=row.need("model"),
        kind=kind,
        tokens=tokens,
        price=price,
        key=row.text("api_key_name") or row.text("api_key"),
        place=row.place,
    )


def _charge(row: Row) -> tuple[str, Charge]:
    start, end = window(row, "utc_date", "start_time_iso", "end_time_iso")
    amount = row.money("cost")
    if amount is None:
        raise CellError("cost", "empty")
    wallet = row.text("wallet_type")
    return row.need("currency").upper(), Charge(
        start=start,
        end=end,
        amount=amount,
        model=row.text("model"),
        wallet=None if wallet is None else wallet.lower(),
        place=row.place,
    )
