"""Any other CSV, by a TOML that says what its columns are.

    kvbench_invoice = 1
    currency = "USD"           # or a column: [columns] currency = "..."
    window = "hour"            # what a row without an end is about: hour | day | request
    prices_per = "million"     # token | million: what [columns] price is for

    [columns]                  # ours = "theirs"
    start = "hour"
    model = "model"
    kind = "item"              # a row a kind, with `tokens` and `price` (or `amount`) ...
    tokens = "quantity"
    amount = "cost"            # ... or a column a kind: hit, miss, input, write_5m, ..., requests

    [kinds]                    # their names of kinds
    "cached input" = "hit"

`input` includes cached tokens: beside `hit` it leaves misses. Also: end, key, request_id.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvbench.errors import InputError
from kvbench.prices.invoices.deepseek import one_currency
from kvbench.prices.invoices.lines import KINDS, BadRow, Charge, Invoice, InvoiceLine
from kvbench.prices.invoices.table import CellError, Row, header, last_decimal, rows
from kvbench.prices.money import PER_M

_LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
_HINT = "docs/billing.md has a column map with every field"


class _Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    start: str
    end: str | None = None
    model: str
    key: str | None = None
    request_id: str | None = None
    currency: str | None = None
    amount: str | None = None
    kind: str | None = None
    tokens: str | None = None
    price: str | None = None
    hit: str | None = None
    miss: str | None = None
    input: str | None = None
    write_5m: str | None = None
    write_1h: str | None = None
    output: str | None = None
    reasoning: str | None = None
    requests: str | None = None


class ColumnMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kvbench_invoice: Literal[1]
    currency: str | None = None
    window: Literal["hour", "day", "request"] | None = None
    prices_per: Literal["token", "million"] | None = None
    columns: _Columns
    kinds: dict[str, str] = {}


def load_map(path: Path) -> ColumnMap:
    """Raises InputError for what is no map, or one that leaves open what a row is."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), ColumnMap)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"no column map: {error}", path=path, hint=_HINT) from None
    columns = found.columns
    wide = [kind for kind in KINDS if getattr(columns, kind) is not None]
    wrong = sorted(set(found.kinds.values()) - set(KINDS))
    if wrong:
        raise InputError(f"{wrong[0]!r} is none of {', '.join(KINDS)}", path=path, field="kinds")
    money_only = columns.kind is None and columns.tokens is None and not wide and columns.amount is not None
    one_way = (columns.kind is None) == (columns.tokens is None) and (columns.kind is None) == bool(wide)
    if not one_way and not money_only:
        raise InputError(
            "either kind and tokens (a row a kind), or a column for each kind",
            path=path,
            field="columns",
            hint=_HINT,
        )
    if columns.price is not None and (columns.kind is None or found.prices_per is None):
        raise InputError(
            "a price belongs to a row of one kind, and prices_per says whether it is for a token or a million",
            path=path,
            field="price",
            hint=_HINT,
        )
    if columns.end is None and found.window is None and columns.request_id is None:
        raise InputError("what a row is about is open: hour, day or request", path=path, field="window", hint=_HINT)
    if (columns.amount is not None or columns.price is not None) and (found.currency is None) == (
        columns.currency is None
    ):
        raise InputError("money has a currency: one here, or a column of it", path=path, field="currency", hint=_HINT)
    return found


def read(texts: Sequence[tuple[str, str]], path: str, columns: ColumnMap) -> Invoice:
    """Raises InputError where the CSV lacks a column that the map names."""
    reader = _Reader(columns)
    bad: list[BadRow] = []
    currencies: list[tuple[str, str]] = []
    lines: list[InvoiceLine] = []
    charges: list[Charge] = []
    for name, text in texts:
        there = set(header(text))
        for ours, theirs in msgspec.structs.asdict(columns.columns).items():
            if theirs is not None and theirs.strip().lower() not in there:
                raise InputError(
                    f"there is no column {theirs!r}, which the map takes for {ours}; there are: "
                    + ", ".join(sorted(there)),
                    path=name,
                    line=1,
                )
        for some, charge, currency in rows(text, name, reader.row, bad):
            lines += some
            charges += [] if charge is None else [charge]
            currencies += [] if currency is None else [(currency, some[0].place if some else name)]
    per_request = columns.window == "request" or (columns.columns.request_id is not None and columns.window is None)
    return Invoice(
        path=path,
        format="CSV by a column map",
        shape="as the column map says",
        by="requests" if per_request and columns.columns.end is None else "windows",
        kinds=tuple(kind for kind in KINDS if kind in {line.kind for line in lines} | reader.told),
        lines=tuple(lines),
        charges=tuple(charges),
        bad=tuple(bad),
        currency=one_currency(currencies, path) if columns.columns.currency is not None else columns.currency,
        unit=last_decimal([charge.amount for charge in charges]),
    )


class _Reader:
    def __init__(self, columns: ColumnMap) -> None:
        self._map = columns
        self._at: dict[str, str] = {
            ours: theirs.strip().lower()
            for ours, theirs in msgspec.structs.asdict(columns.columns).items()
            if theirs is not None
        }
        self._kinds = {name.strip().lower(): kind for name, kind in columns.kinds.items()} | {
            kind: kind for kind in KINDS
        }
        self.told = set(columns.kinds.values()) | {kind for kind in KINDS if kind in self._at}
        if {"hit", "input"} <= self.told:
            self.told |= {"miss"}
            self.told -= {"input"}

    def row(self, row: Row) -> tuple[list[InvoiceLine], Charge | None, str | None]:
        start, end = self._window(row)
        base: dict[str, Any] = {"start": start, "end": end, "place": row.place}
        base |= {"key": self._text(row, "key"), "request_id": self._text(row, "request_id")}
        model = row.need(self._at["model"])
        lines = [
            InvoiceLine(**base, model=model, kind=kind, tokens=tokens, price=price)
            for kind, tokens, price in self._counts(row)
        ]
        amount = row.money(self._at["amount"]) if "amount" in self._at else None
        charge = None if amount is None else Charge(**base, model=model, amount=amount)
        currency = self._text(row, "currency")
        return lines, charge, None if currency is None else currency.upper()

    def _counts(self, row: Row) -> list[tuple[str, int, Decimal | None]]:
        if "kind" in self._at:
            named = row.need(self._at["kind"])
            kind = self._kinds.get(named.lower())
            if kind is None:
                raise CellError(self._at["kind"], f"{named[:40]!r} is not among [kinds] of the map")
            tokens = row.tokens(self._at["tokens"])
            if tokens is None:
                raise CellError(self._at["tokens"], "empty")
            per = PER_M if self._map.prices_per == "million" else 1
            price = row.price(self._at["price"], per) if "price" in self._at else None
            return [(kind, tokens, price)]
        counts = {kind: row.tokens(self._at[kind]) for kind in KINDS if kind in self._at}
        hit, whole = counts.get("hit"), counts.get("input")
        if hit is not None and whole is not None:
            written = sum(counts.get(name) or 0 for name in ("write_5m", "write_1h"))
            if hit + written > whole:
                raise CellError(self._at["hit"], f"{hit} hit (and {written} written) above the input, {whole}")
            counts["miss"] = whole - hit - written
            del counts["input"]
        return [(kind, tokens, None) for kind, tokens in counts.items() if tokens is not None]

    def _window(self, row: Row) -> tuple[datetime, datetime | None]:
        found = row.moment(self._at["start"])
        if found is None:
            raise CellError(self._at["start"], "empty")
        start, dated = found
        if "end" in self._at:
            end = row.moment(self._at["end"])
            if end is None or end[0] <= start:
                raise CellError(self._at["end"], "not after the start")
            return start, end[0]
        length = _LENGTHS.get(self._map.window or "request")
        if length is None:
            return start, None
        whole = start.replace(minute=0, second=0, microsecond=0)
        if start != (whole.replace(hour=0) if self._map.window == "day" else whole) or (
            dated and length < _LENGTHS["day"]
        ):
            raise CellError(
                self._at["start"], f"{row.need(self._at['start'])!r} is not where its {self._map.window} begins"
            )
        return start, start + length

    def _text(self, row: Row, ours: str) -> str | None:
        return row.text(self._at[ours]) if ours in self._at else None
