"""CSV text as rows of named cells, and cells as what they must be."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TypeVar

from kvbench.errors import InputError
from kvbench.prices.invoices.lines import BadRow
from kvbench.prices.money import product

MAX_TOKENS = 2**63
_GROUPED = re.compile(r"^-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$")
_AMBIGUOUS = re.compile(r"^-?[1-9]\d{0,2},\d{3}$")
_DEAREST = Decimal("0.001")
"""Of one token: what no model costs, and every price of a million tokens is above."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


class CellError(Exception):
    """A cell that is not what its column holds."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class Row:
    """One row: cells by column name. `place` is file:line."""

    def __init__(self, cells: Mapping[str, str], place: str) -> None:
        self._cells = cells
        self.place = place

    def text(self, column: str) -> str | None:
        """None where the column is not there or the cell is empty."""
        return self._cells.get(column, "").strip() or None

    def need(self, column: str) -> str:
        found = self.text(column)
        if found is None:
            raise CellError(column, "empty")
        return found

    def tokens(self, column: str) -> int | None:
        """A whole number of 0 or more."""
        text = self.text(column)
        if text is None:
            return None
        value = _decimal(text, column)
        if value != value.to_integral_value() or not 0 <= value < MAX_TOKENS:
            raise CellError(column, f"{text[:40]!r} is no number of tokens: a whole number, 0 or more")
        return int(value)

    def money(self, column: str) -> Decimal | None:
        text = self.text(column)
        if text is not None and _AMBIGUOUS.match(text):
            raise CellError(
                column, f"{text!r} may be a thousand times as much, or a decimal comma: write it without it"
            )
        return None if text is None else _decimal(text, column)

    def price(self, column: str, per: Decimal | int = 1) -> Decimal | None:
        """Of one token, where the cell times `per` is: 0 or more, and no price of a million tokens."""
        value = self.money(column)
        if value is not None and value < 0:
            raise CellError(column, f"{value} is no price: 0 or more")
        value = None if value is None else product(value, per)
        if value is not None and value >= _DEAREST:
            dear = f"{value * 1_000_000:,.0f} a million"
            raise CellError(column, f"{self.text(column)} makes {dear}: is it for a token, or for a million?")
        return value

    def moment(self, column: str) -> tuple[datetime, bool] | None:
        """(UTC, whether the cell is a date alone)"""
        text = self.text(column)
        return None if text is None else moment(text, column)


def moment(text: str, field: str) -> tuple[datetime, bool]:
    """ISO 8601, YYYYMMDD, or seconds of Unix time; a time without an offset is UTC. Raises CellError."""
    plain = text.strip().removesuffix("UTC").strip()
    try:
        if re.fullmatch(r"\d{9,11}(\.\d+)?", plain):
            return _EPOCH + timedelta(seconds=float(plain)), False
        found = datetime.fromisoformat(plain)
    except (ValueError, OverflowError):
        raise CellError(
            field, f"{text[:40]!r} is no date or time (2026-10-15, 20261015, 2026-10-15T02:00:00Z)"
        ) from None
    dated = re.fullmatch(r"\d{4}-?\d\d-?\d\d", plain) is not None
    return (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)), dated


def header(text: str) -> tuple[str, ...]:
    """Column names of a CSV text, as they are read below."""
    return tuple(cell.strip().lower() for cell in next(csv.reader(io.StringIO(text, newline="")), []))


def rows(text: str, name: str, read: Callable[[Row], _T], bad: list[BadRow]) -> Iterator[_T]:
    """What `read` makes of each row; a row that cannot be read goes to `bad`. Empty lines are no rows.

    Raises InputError where two columns have one name.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    columns = [cell.strip().lower() for cell in next(reader, [])]
    twice = sorted({each for each in columns if each and columns.count(each) > 1})
    if twice:
        raise InputError(f"two columns are named {twice[0]}", path=name, line=1)
    while True:
        line = reader.line_num + 1
        place = f"{name}:{line}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.append(BadRow(place=place, field=None, why=f"not CSV: {error}"))
            continue
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            bad.append(BadRow(place=place, field=None, why=f"{len(cells)} cells, and {len(columns)} columns"))
            continue
        try:
            yield read(Row(dict(zip(columns, cells, strict=True)), place))
        except CellError as error:
            bad.append(BadRow(place=place, field=error.field, why=error.why))


def window(row: Row, date: str, start: str, end: str) -> tuple[datetime, datetime]:
    """[start, end) by a row's two times, or the UTC day of its date, whichever columns it has."""
    first, last = row.moment(start), row.moment(end)
    if first is not None and last is not None:
        if last[0] <= first[0]:
            raise CellError(end, f"{last[0]} is not after {start} {first[0]}")
        return first[0], last[0]
    if first is not None or last is not None:
        raise CellError(end if last is None else start, "empty")
    day = row.moment(date)
    if day is None:
        raise CellError(date, "empty")
    if day[0].hour or day[0].minute or day[0].second or day[0].microsecond:
        raise CellError(date, f"{row.need(date)!r} is not a day")
    return day[0], day[0] + timedelta(days=1)


def last_decimal(amounts: list[Decimal]) -> Decimal | None:
    """The unit of the last decimal that amounts are printed to: of the most precise, as zeros may be left out."""
    places = [int(amount.as_tuple().exponent) for amount in amounts]
    return Decimal(1).scaleb(min(0, *places)) if places else None


def _decimal(text: str, field: str) -> Decimal:
    try:
        value = Decimal(text.replace(",", "") if _GROUPED.match(text) else text)
    except InvalidOperation:
        comma = " (a decimal comma? write a point)" if "," in text else ""
        raise CellError(field, f"{text[:40]!r} is no number{comma}") from None
    if not value.is_finite() or abs(value.adjusted()) > 30:
        raise CellError(field, f"{text[:40]!r} is no amount")
    return value
