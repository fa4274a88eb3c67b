"""The price of one request: model and moment to a row, the row to exact amounts, or the reason why not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from kvbench.errors import UsageError
from kvbench.model import Usage
from kvbench.prices.book import STANDARD, Book, BookModel, PriceRow
from kvbench.prices.money import Money
from kvbench.prices.parts import CannotPrice, check_usage, price_parts
from kvbench.prices.peak import HolidaysUnknown
from kvbench.prices.priced import Billable, Priced, Unpriced

At = Literal["start", "end"]
_STANDARD_NAMES = (None, STANDARD, "default")


class Found(msgspec.Struct, frozen=True):
    """What a request is priced by."""

    book: Book
    row: PriceRow
    peak: bool


class PriceList:
    """Some books, and the currency of one list. currency None: each book's own.

    Raises UsageError where no book has the currency asked for, and for two books of one name.
    """

    def __init__(self, books: Sequence[Book], currency: str | None = None) -> None:
        self.books = tuple(books)
        names = [book.name for book in books]
        twice = next((book for book in books if names.count(book.name) > 1), None)
        if twice is not None:
            raise UsageError(
                f"two price books have the name {twice.name}", hint="give one of them, or another name in its TOML"
            )
        self.currency = currency
        known = sorted({each for book in books for each in book.currencies})
        if currency is not None and currency not in known:
            raise UsageError(
                f"--currency {currency}: no list in it; there are {', '.join(known)}",
                hint="amounts are never converted from one currency into another",
            )

    def price(self, billable: Billable, at: At = "start") -> Priced | Unpriced:
        """By the row that holds at the request's start (or end, where that is known and asked for)."""
        try:
            check_usage(billable.usage)
            moment = self.moment(billable, at)
            found = self.find(billable.model, moment, billable.usage, batch=billable.batch)
            parts = price_parts(billable, found.row, found.book, moment, peak=found.peak)
        except CannotPrice as error:
            return Unpriced(
                request_id=billable.request_id,
                model=billable.model,
                reason=error.reason,
                why=error.why,
                place=billable.place,
            )
        amount = Money()
        for part in parts:
            amount = amount.plus(part.amount)
        return Priced(
            request_id=billable.request_id,
            response_id=billable.response_id,
            time=moment,
            model=billable.model or "",
            book=found.book.name,
            row=found.row,
            peak=found.peak,
            currency=found.row.currency,
            usage=billable.usage,
            parts=parts,
            amount=amount,
        )

    def moment(self, billable: Billable, at: At) -> datetime:
        """Raises CannotPrice."""
        moment = billable.end if at == "end" and billable.end is not None else billable.start
        if moment is None:
            raise CannotPrice("no_time", "no time is known, so no row of a price book")
        return moment

    def find(self, model: str | None, moment: datetime, usage: Usage, *, batch: bool = False) -> Found:
        """The one row that holds. Raises CannotPrice, naming what is known."""
        if model is None:
            raise CannotPrice("unknown_model", "no model is named")
        book, known = self._model(model, moment)
        if known.unpriced is not None:
            raise CannotPrice("no_row", f"{model}: {known.unpriced}")
        row = _row(book, known.id, self.currency or book.currency, moment, usage, batch)
        return Found(book, row, _is_peak(book, row, moment))

    def _model(self, name: str, moment: datetime) -> tuple[Book, BookModel]:
        found = [(book, model) for book in self.books for model in sorted(book.models_named(name, moment))]
        if len(found) == 1:
            book, model = found[0]
            return book, book.models[model]
        if found:
            where = ", ".join(f"{model} in {book.name}" for book, model in found)
            raise CannotPrice("ambiguous_model", f"{name} may be {where}: name one book by --prices")
        dated = [
            f"{alias.name} is {alias.model} {_span(alias.start, alias.end)} in {book.name}"
            for book in self.books
            for alias in book.aliases
            if alias.name == name
        ]
        names = [each for book in self.books for model, more in book.names().items() for each in (model, *more)]
        near = difflib.get_close_matches(name, names, 3)
        known = "; ".join(dated) or ", ".join(near or names)
        where = "nearest names in" if near and not dated else "known in"
        books = ", ".join(book.name for book in self.books)
        raise CannotPrice(
            "unknown_model", f"no price for the model {name} at {_text(moment)}; {where} {books}: {known}"
        )


def _row(book: Book, model: str, currency: str, moment: datetime, usage: Usage, batch: bool) -> PriceRow:
    rows = [row for row in book.rows if row.model == model]
    listed = [row for row in rows if row.currency == currency]
    if not listed:
        have = ", ".join(sorted({row.currency for row in rows})) or "nothing"
        raise CannotPrice("no_row", f"no list in {currency} for {model} in {book.name}; there is {have}")
    dated = [row for row in listed if row.holds(moment)]
    if not dated:
        known = ", ".join(_span(row.start, row.end) for row in sorted(listed, key=lambda row: row.start))
        raise CannotPrice("no_row", f"no {currency} row for {model} at {_text(moment)}; rows hold {known}")
    tier = STANDARD if usage.service_tier in _STANDARD_NAMES else usage.service_tier
    if tier == "batch":
        tier, batch = STANDARD, True
    of_tier = [row for row in dated if row.service_tier == tier and row.batch == batch]
    if not of_tier:
        known = ", ".join(sorted({row.service_tier + (" batch" if row.batch else "") for row in dated}))
        asked = f"{tier}{' batch' if batch else ''}"
        raise CannotPrice("no_row", f"no {currency} row for {model} at service tier {asked}; there is {known}")
    tokens = usage.input_tokens or 0
    for row in of_tier:
        if row.input_from <= tokens and (row.input_below is None or tokens < row.input_below):
            return row
    raise CannotPrice("no_row", f"no {currency} row for {model} has a price for a prompt of {tokens} tokens")


def _is_peak(book: Book, row: PriceRow, moment: datetime) -> bool:
    if row.peak is None:
        return False
    phase = book.peak_phase(row.peak, moment)
    if phase is None:
        raise CannotPrice("no_row", f"what is peak at {_text(moment)} is not in {book.name}")
    try:
        return phase.is_peak(moment)
    except HolidaysUnknown as error:
        raise CannotPrice("holidays_unknown", str(error)) from None


def _span(start: datetime | None, end: datetime | None) -> str:
    since = "" if start is None else f"from {_text(start)}"
    return f"{since}{'' if end is None else f' until {_text(end)}'}".strip() or "always"


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
