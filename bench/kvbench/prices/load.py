"""Price books from TOML: bundled ones by name, others by path; checked as a whole, with the line of what is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kvbench.errors import InputError, UsageError
from kvbench.prices.book import STANDARD, Alias, Book, BookModel, PriceRow, Status, ToolPrice
from kvbench.prices.checks import check_book
from kvbench.prices.peak import Holidays, PeakPhase
from kvbench.prices.pricing import PriceList

BOOKS = Path(__file__).parent / "books"
TEMPLATE = "template"
VERSION = 1
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HINT = "kvbench prices template   is a book with every field explained"

_T = TypeVar("_T")


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Row(_Table, frozen=True, kw_only=True):
    model: str
    currency: str
    start: datetime = msgspec.field(name="from")
    end: datetime | None = msgspec.field(name="until", default=None)
    miss: Decimal
    output: Decimal
    hit: Decimal | None = None
    write: Literal["miss"] | None = None
    write_5m: Decimal | None = None
    write_1h: Decimal | None = None
    reasoning: Decimal | None = None
    image: Decimal | None = None
    peak: str | None = None
    peak_factor: Decimal | None = None
    service_tier: str = STANDARD
    batch: bool = False
    input_from: int = 0
    input_below: int | None = None
    minimum_cacheable_tokens: int | None = None
    status: Status
    source: str
    checked: date | None = None
    note: str = ""


class _Alias(_Table, frozen=True, kw_only=True):
    name: str
    model: str
    start: datetime | None = msgspec.field(name="from", default=None)
    end: datetime | None = msgspec.field(name="until", default=None)
    source: str = ""


class _Tool(_Table, frozen=True, kw_only=True):
    name: str
    names: tuple[str, ...] = ()
    currency: str
    start: datetime = msgspec.field(name="from")
    end: datetime | None = msgspec.field(name="until", default=None)
    per_1000: Decimal
    status: Status
    source: str


class _Peak(_Table, frozen=True, kw_only=True):
    name: str
    start: datetime = msgspec.field(name="from")
    end: datetime | None = msgspec.field(name="until", default=None)
    hours: tuple[str, ...]
    weekdays: tuple[str, ...] = _WEEKDAYS
    holidays: str | None = None
    status: Status
    source: str


class _Holidays(_Table, frozen=True, kw_only=True):
    name: str
    known_from: date
    known_until: date
    days: tuple[date, ...]
    source: str


class _Model(_Table, frozen=True, kw_only=True):
    id: str
    title: str = ""
    hit_rule: Literal["units", "steps", "breakpoints", "none"] = "none"
    tokenizer: str | None = None
    unpriced: str | None = None


class _Head(_Table, frozen=True, kw_only=True):
    kvbench_prices: int
    name: str
    provider: str
    currency: str
    checked: date
    hosts: tuple[str, ...] = ()
    note: str = ""
    model: tuple[dict[str, Any], ...] = ()
    alias: tuple[dict[str, Any], ...] = ()
    row: tuple[dict[str, Any], ...] = ()
    tool: tuple[dict[str, Any], ...] = ()
    peak: tuple[dict[str, Any], ...] = ()
    holidays: tuple[dict[str, Any], ...] = ()


def bundled_books() -> list[str]:
    """Names of the books that ship with kvbench; the template, whose prices are made up, is none of them."""
    return sorted(path.stem for path in BOOKS.glob("*.toml") if path.stem != TEMPLATE)


def load_prices(given: Sequence[str] | None = None) -> PriceList:
    """The books given, or all bundled ones; each in its own currency. Raises what `load_book` and `PriceList` raise."""
    return PriceList([load_book(name) for name in given or bundled_books()])


def load_book(spec: str) -> Book:
    """A bundled book by its name, else the TOML at a path. Raises UsageError for neither, InputError for a bad book."""
    bundled = BOOKS / f"{spec}.toml"
    path = bundled if "/" not in spec and bundled.is_file() else Path(spec)
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"no price book {spec!r}: neither a bundled one nor a file",
            hint=f"bundled: {', '.join(bundled_books())}; or name a TOML file (kvbench prices template shows one)",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from None
    return parse_book(text, spec if path is bundled else str(path))


def parse_book(text: str, path: str) -> Book:
    """The book in a TOML text; `path` names it in errors. Raises InputError."""
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise InputError(f"not TOML: {error}", path=path) from None
    if raw.get("kvbench_prices") != VERSION:
        raise InputError(
            f"expected {VERSION}, the version of price books that this kvbench reads",
            path=path,
            field="kvbench_prices",
            hint=_HINT,
        )
    return _Parser(text, path).book(raw)


class _Parser:
    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path

    def book(self, raw: dict[str, Any]) -> Book:
        head = self._convert(raw, _Head, "book", None)
        listed = [_holidays(each) for each in self._tables(head.holidays, _Holidays, "holidays")]
        holidays = {each.name: each for each in listed}
        if len(holidays) < len(listed):
            raise self._error("two lists have one name: put their days into one", "holidays", None)
        for each in listed:
            outside = sorted(day for day in each.days if not each.known_from <= day < each.known_until)
            if outside:
                raise self._error(
                    f"{outside[0]} is outside of what the list covers, {each.known_from} up to {each.known_until}",
                    f"holidays {each.name}",
                    None,
                )
        book = Book(
            name=head.name,
            provider=head.provider,
            currency=head.currency,
            checked=head.checked,
            path=self._path,
            hosts=head.hosts,
            note=head.note,
            models={
                each.id: BookModel(
                    id=each.id,
                    title=each.title,
                    hit_rule=each.hit_rule,
                    tokenizer=each.tokenizer,
                    unpriced=each.unpriced,
                )
                for each in self._tables(head.model, _Model, "model")
            },
            aliases=tuple(
                Alias(name=each.name, model=each.model, start=_utc(each.start), end=_utc(each.end))
                for each in self._tables(head.alias, _Alias, "alias")
            ),
            rows=tuple(
                self._row(each, head, line)
                for each, line in zip(self._tables(head.row, _Row, "row"), self._lines("row"), strict=False)
            ),
            tools=tuple(map(_tool, self._tables(head.tool, _Tool, "tool"))),
            peaks=tuple(
                self._phase(each, holidays, line)
                for each, line in zip(self._tables(head.peak, _Peak, "peak"), self._lines("peak"), strict=False)
            ),
        )
        check_book(book, self._path, len(head.model))
        return book

    # ------------------------------------------------------------------------------------------------ tables

    def _tables(self, raws: tuple[dict[str, Any], ...], type: type[_T], name: str) -> Iterator[_T]:
        lines = self._lines(name)
        for number, raw in enumerate(raws):
            yield self._convert(raw, type, f"{name} {number + 1}", lines[number] if number < len(lines) else None)

    def _lines(self, name: str) -> list[int | None]:
        """Where each [[name]] begins; more than enough entries, for books that write their tables inline."""
        heads = re.compile(rf"^\s*\[\[\s*{name}\s*\]\]")
        found = [number for number, line in enumerate(self._text.splitlines(), 1) if heads.match(line)]
        return [*found, *[None] * 10_000]

    def _convert(self, raw: dict[str, Any], type: type[_T], what: str, line: int | None) -> _T:
        for name, value in raw.items():
            if isinstance(value, (Decimal, int)) and not (Decimal(value).is_finite() and value >= 0):
                raise self._error(f"{value} is no price: 0 or more", what, line, name)
            if isinstance(value, datetime) and value.tzinfo is None:
                raise self._error(f"{value} has no time zone: write UTC, with a Z at its end", what, line, name)
            if isinstance(value, datetime) and not 1970 < value.year < 9999:
                raise self._error(f"{value} is no date of a price", what, line, name)
        try:
            return msgspec.convert(raw, type)
        except msgspec.ValidationError as error:
            raise self._error(str(error), what, line) from None

    def _error(self, message: str, what: str, line: int | None, field: str | None = None) -> InputError:
        where = what if field is None else f"{what}, {field}"
        return InputError(message, path=self._path, line=line, field=where, hint=_HINT)

    def _row(self, raw: _Row, head: _Head, line: int | None) -> PriceRow:
        what = f"row of {raw.model}"
        if raw.write is not None and (raw.write_5m, raw.write_1h) != (None, None):
            raise self._error('write = "miss" says that writes have no price of their own; leave one out', what, line)
        if (raw.peak is None) != (raw.peak_factor is None):
            raise self._error("peak names windows and peak_factor what they cost: both or none", what, line)
        fields = {name: getattr(raw, name) for name in _Row.__struct_fields__ if name != "write"}
        fields |= {
            "start": _utc(raw.start),
            "end": _utc(raw.end),
            "peak_factor": Decimal(1) if raw.peak_factor is None else raw.peak_factor,
            "checked": raw.checked or head.checked,
        }
        return PriceRow(**fields, write_as_miss=raw.write is not None, line=line or 0)

    def _phase(self, raw: _Peak, holidays: dict[str, Holidays], line: int | None) -> PeakPhase:
        what = f"peak {raw.name}"
        if raw.holidays is not None and raw.holidays not in holidays:
            raise self._error(f'no [[holidays]] is named "{raw.holidays}"', what, line, "holidays")
        unknown = [name for name in raw.weekdays if name not in _WEEKDAYS]
        if unknown:
            raise self._error(f"{unknown[0]!r} is no weekday: {', '.join(_WEEKDAYS)}", what, line, "weekdays")
        return PeakPhase(
            name=raw.name,
            start=_aware(raw.start),
            end=_utc(raw.end),
            hours=tuple(self._window(text, what, line) for text in raw.hours),
            weekdays=frozenset(map(_WEEKDAYS.index, raw.weekdays)),
            holidays=None if raw.holidays is None else holidays[raw.holidays],
            status=raw.status,
            source=raw.source,
        )

    def _window(self, text: str, what: str, line: int | None) -> tuple[time, time | None]:
        found = re.fullmatch(r"(\d\d):(\d\d)-(\d\d):(\d\d)", text)
        numbers = [int(part) for part in found.groups()] if found else [99]
        begin = numbers[0] * 60 + numbers[1] if found else 0
        end = numbers[2] * 60 + numbers[3] if found else 0
        if not found or numbers[1] > 59 or numbers[3] > 59 or not begin < end <= 1440:
            raise self._error(
                f'{text!r} is no window of a day: write "01:00-04:00", to "24:00" at most', what, line, "hours"
            )
        return time(begin // 60, begin % 60), None if end == 1440 else time(end // 60, end % 60)


def _holidays(raw: _Holidays) -> Holidays:
    return Holidays(
        name=raw.name,
        known_from=raw.known_from,
        known_until=raw.known_until,
        days=frozenset(raw.days),
        source=raw.source,
    )


def _tool(raw: _Tool) -> ToolPrice:
    return ToolPrice(
        name=raw.name,
        names=raw.names or (raw.name,),
        currency=raw.currency,
        start=_aware(raw.start),
        end=_utc(raw.end),
        per_1000=raw.per_1000,
        status=raw.status,
        source=raw.source,
    )


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
