"""A price book as plain values, for `kvbench prices --json` and for showing it."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from kvbench.prices.book import PRICES, Book, PriceRow, ToolPrice
from kvbench.prices.money import plain
from kvbench.prices.peak import PeakPhase

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def utc_text(moment: datetime) -> str:
    """2026-08-16T16:00:00Z; fractions of a second only where there are any."""
    return moment.isoformat().replace("+00:00", "Z")


def age_days(checked: date, now: datetime) -> int:
    return (now.date() - checked).days


def row_dict(row: PriceRow, now: datetime) -> dict[str, Any]:
    """Prices are texts, for a million tokens; age_days: since the source was last looked at."""
    return {
        "model": row.model,
        "currency": row.currency,
        "from": utc_text(row.start),
        "until": None if row.end is None else utc_text(row.end),
        **{name: _price(getattr(row, name)) for name in PRICES},
        "writes_as_miss": row.write_as_miss,
        "peak": row.peak,
        "peak_factor": plain(row.peak_factor),
        "service_tier": row.service_tier,
        "batch": row.batch,
        "input_from": row.input_from,
        "input_below": row.input_below,
        "minimum_cacheable_tokens": row.minimum_cacheable_tokens,
        "status": row.status,
        "source": row.source,
        "checked": row.checked.isoformat(),
        "age_days": age_days(row.checked, now),
        "note": row.note,
    }


def book_dict(book: Book, now: datetime) -> dict[str, Any]:
    return {
        "name": book.name,
        "provider": book.provider,
        "path": book.path,
        "currency": book.currency,
        "currencies": list(book.currencies),
        "checked": book.checked.isoformat(),
        "age_days": age_days(book.checked, now),
        "hosts": list(book.hosts),
        "note": book.note,
        "models": [
            {
                "id": model.id,
                "title": model.title,
                "aliases": book.names()[model.id],
                "hit_rule": model.hit_rule,
                "tokenizer": model.tokenizer,
                "unpriced": model.unpriced,
            }
            for model in book.models.values()
        ],
        "rows": [row_dict(row, now) for row in sorted(book.rows, key=lambda row: (row.model, row.currency, row.start))],
        "tools": [_tool(tool) for tool in book.tools],
        "peaks": [_phase(phase) for phase in book.peaks],
    }


def _tool(tool: ToolPrice) -> dict[str, Any]:
    return {
        "name": tool.name,
        "names": list(tool.names),
        "currency": tool.currency,
        "from": utc_text(tool.start),
        "until": None if tool.end is None else utc_text(tool.end),
        "per_1000": plain(tool.per_1000),
        "status": tool.status,
        "source": tool.source,
    }


def _phase(phase: PeakPhase) -> dict[str, Any]:
    holidays = phase.holidays
    return {
        "name": phase.name,
        "from": utc_text(phase.start),
        "until": None if phase.end is None else utc_text(phase.end),
        "hours": [f"{_clock(begin)}-{_clock(end)}" for begin, end in phase.hours],
        "weekdays": [_WEEKDAYS[day] for day in sorted(phase.weekdays)],
        "holidays": None
        if holidays is None
        else {
            "name": holidays.name,
            "known_from": holidays.known_from.isoformat(),
            "known_until": holidays.known_until.isoformat(),
            "days": [day.isoformat() for day in sorted(holidays.days)],
            "source": holidays.source,
        },
        "status": phase.status,
        "source": phase.source,
    }


def _clock(moment: time | None) -> str:
    return "24:00" if moment is None else f"{moment:%H:%M}"


def _price(value: Decimal | None) -> str | None:
    return None if value is None else plain(value)
