"""What a price book must hold to, so that a request has one price or none."""

from __future__ import annotations

from datetime import datetime
from itertools import combinations
from typing import Any, Protocol

from kvbench.errors import InputError
from kvbench.prices.book import Alias, Book, PriceRow


class _Dated(Protocol):
    @property
    def start(self) -> Any: ...
    @property
    def end(self) -> datetime | None: ...


def check_book(book: Book, path: str, model_tables: int) -> None:
    """Raises InputError, naming the line, for the first thing that is wrong."""
    if len(book.models) != model_tables:
        raise InputError("two [[model]] tables have the same id", path=path, field="model")
    if book.currency not in book.currencies and book.rows:
        lists = ", ".join(book.currencies)
        raise InputError(f"no row has this currency; there are {lists}", path=path, field="currency")
    for row in book.rows:
        _check_row(row, book, path)
    _check_overlaps(book, path)
    _check_aliases(book, path)
    _check_peaks(book, path)
    for one, two in combinations(book.tools, 2):
        if {*one.names} & {*two.names} and one.currency == two.currency and _overlap(one, two):
            raise InputError(f"{one.name} has two prices at once", path=path, field="tool")


def _check_row(row: PriceRow, book: Book, path: str) -> None:
    what = f"row of {row.model}"
    line = row.line or None
    model = book.models.get(row.model)
    if model is None:
        known = ", ".join(book.models) or "none"
        raise InputError(f"no [[model]] has this id (there are: {known})", path=path, line=line, field=what)
    if model.unpriced is not None:
        raise InputError(f"its [[model]] says unpriced: {model.unpriced}", path=path, line=line, field=what)
    if row.end is not None and row.end <= row.start:
        raise InputError(f"until {row.end} is not after from {row.start}", path=path, line=line, field=what)
    if row.hit is not None and row.hit > row.miss:
        raise InputError(f"hit {row.hit} is above miss {row.miss}", path=path, line=line, field=what)
    if row.input_from < 0 or (row.input_below is not None and row.input_below <= row.input_from):
        raise InputError("input_below must be above input_from, and both 0 or more", path=path, line=line, field=what)
    if row.peak is None:
        return
    phases = [phase for phase in book.peaks if phase.name == row.peak]
    if not phases:
        raise InputError(f'no [[peak]] is named "{row.peak}"', path=path, line=line, field=what)
    at: datetime | None = row.start
    for phase in sorted(phases, key=lambda phase: phase.start):
        if at is not None and phase.start <= at and (phase.end is None or phase.end > at):
            at = phase.end
    if at is not None and (row.end is None or at < row.end):
        raise InputError(f'[[peak]] "{row.peak}" does not say what is peak at {at}', path=path, line=line, field=what)


def _check_overlaps(book: Book, path: str) -> None:
    """Two rows never hold for one request."""
    for one, two in combinations(book.rows, 2):
        same = (one.model, one.currency, one.service_tier, one.batch) == (
            two.model,
            two.currency,
            two.service_tier,
            two.batch,
        )
        lengths = (one.input_below is None or two.input_from < one.input_below) and (
            two.input_below is None or one.input_from < two.input_below
        )
        if same and lengths and _overlap(one, two):
            raise InputError(
                f"holds at the same time as the row of line {one.line}: end that one where this begins (until is "
                "exclusive)",
                path=path,
                line=two.line or None,
                field=f"row of {two.model} in {two.currency} from {two.start}",
            )


def _check_aliases(book: Book, path: str) -> None:
    for alias in book.aliases:
        if alias.model not in book.models:
            raise InputError(f'no [[model]] has the id "{alias.model}"', path=path, field=f"alias {alias.name}")
        if alias.name in book.models:
            raise InputError("is a model's id already", path=path, field=f"alias {alias.name}")
    for one, two in combinations(book.aliases, 2):
        if one.name == two.name and _alias_overlap(one, two):
            raise InputError(
                f"is ambiguous: billed as {one.model} and as {two.model} at the same time",
                path=path,
                field=f"alias {one.name}",
                hint="date the aliases by from and until, or take one out",
            )


def _check_peaks(book: Book, path: str) -> None:
    for one, two in combinations(book.peaks, 2):
        if one.name == two.name and _overlap(one, two):
            raise InputError("has two phases at once", path=path, field=f"peak {one.name}")


def _overlap(one: _Dated, two: _Dated) -> bool:
    return bool((one.end is None or two.start < one.end) and (two.end is None or one.start < two.end))


def _alias_overlap(one: Alias, two: Alias) -> bool:
    begins_before = one.end is None or two.start is None or two.start < one.end
    return begins_before and (two.end is None or one.start is None or one.start < two.end)
