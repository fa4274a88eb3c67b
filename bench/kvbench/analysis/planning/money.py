"""What requests, sessions and tasks cost at a price list's rates, and the hit rate that a price needs."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.plan import Rates, hit_rate_for, input_price, task_cost
from kvbench.analysis.planning.fields import Prices
from kvbench.analysis.planning.source import Source
from kvbench.errors import KvbenchError, RefusedError, UsageError
from kvbench.model import Usage
from kvbench.prices.book import PriceRow
from kvbench.prices.load import bundled_books, load_book
from kvbench.prices.money import plain
from kvbench.prices.parts import CannotPrice
from kvbench.prices.pricing import PriceList

_STEP = Decimal("0.000000001")
"""Amounts are given to a billionth: a price list's unit, over a million tokens, has few digits more."""


class PriceAt(msgspec.Struct, frozen=True, kw_only=True):
    """Rates, and when they hold: "always", or "off-peak" and "peak"."""

    when: str
    rates: Rates


class PriceSet(msgspec.Struct, frozen=True, kw_only=True):
    currency: str
    source: str
    at: date | None
    """The day whose row it is; None for the profile's own rates."""
    phases: tuple[PriceAt, ...]


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of something that is paid for. count: over how many of it they are."""

    what: str
    input_tokens: int
    hit_tokens: Decimal
    output_tokens: int
    count: int = 1


def price_set(prices: Prices, source: Source) -> PriceSet:
    """The rates of the profile, or of a book's row. Raises where no row holds, or it has what a plan does not count."""
    if prices.book is None:
        assert prices.miss is not None
        assert prices.hit is not None
        assert prices.output is not None
        assert prices.currency is not None
        rates = Rates(miss=prices.miss, hit=prices.hit, output=prices.output)
        return PriceSet(
            currency=prices.currency,
            source="as given",
            at=None,
            phases=(PriceAt(when="always", rates=_sane(rates, source)),),
        )
    day = prices.at or datetime.now(UTC).date()
    row = _row(prices, day, source)
    phases = [PriceAt(when="always" if row.peak is None else "off-peak", rates=_rates(row, Decimal(1)))]
    if row.peak is not None:
        phases.append(PriceAt(when="peak", rates=_rates(row, row.peak_factor)))
    book = Path(prices.book).stem
    told = f"{row.model} in {book} on {day}, by the row from {row.start:%Y-%m-%d}, {row.status}: {row.source}"
    return PriceSet(currency=row.currency, source=told, at=day, phases=tuple(phases))


def _sane(rates: Rates, source: Source) -> Rates:
    if rates.hit > rates.miss:
        raise source.wrong(
            "prices.hit", f"a hit at {rates.hit} costs more than a miss at {rates.miss}: not planned with"
        )
    return rates


def _row(prices: Prices, day: date, source: Source) -> PriceRow:
    """A plan has no clock: the row is the one that holds when the day begins, in UTC."""
    assert prices.book is not None
    try:
        name = prices.book
        book = load_book(name if name in bundled_books() else source.beside("prices.book", name))
    except UsageError as error:
        raise source.wrong("prices.book", error.message, error.hint) from None
    try:
        listed = PriceList([book], prices.currency)
    except UsageError as error:
        raise source.wrong("prices.currency", error.message.removeprefix("--currency "), error.hint) from None
    try:
        found = listed.find(prices.model, datetime.combine(day, time(0), UTC), Usage())
    except CannotPrice as error:
        raise source.wrong("prices.model" if prices.at is None else "prices.at", error.why) from None
    row = found.row
    if row.input_from or row.input_below is not None:
        raise RefusedError(
            f"{row.model} in {book.name} has a price for each length of prompt: a plan has one rate each"
        )
    if not row.write_as_miss and (row.write_5m is not None or row.write_1h is not None):
        raise RefusedError(f"{row.model} in {book.name} charges for writing to the cache: a plan does not count writes")
    return row


def _rates(row: PriceRow, factor: Decimal) -> Rates:
    hit = row.miss if row.hit is None else row.hit
    return Rates(miss=row.miss * factor, hit=hit * factor, output=row.output * factor)


def costs(prices: PriceSet, spent: list[Spent]) -> list[dict[str, Any]]:
    """Of each: the cost of one, at its hits and with none, for each phase of the list."""
    out = []
    for each in spent:
        rate = each.hit_tokens / each.input_tokens if each.input_tokens else Decimal(0)
        out.append(
            {
                "what": each.what,
                "count": each.count,
                "input_tokens": each.input_tokens / each.count,
                "output_tokens": each.output_tokens / each.count,
                "hit_rate": float(rate),
                "phases": [
                    {
                        "when": phase.when,
                        "cost": _one(task_cost(phase.rates, each.input_tokens, each.output_tokens, rate), each.count),
                        "cost_uncached": _one(
                            task_cost(phase.rates, each.input_tokens, each.output_tokens, Decimal(0)), each.count
                        ),
                        "input_price_per_million": text(input_price(phase.rates, rate)),
                    }
                    for phase in prices.phases
                ],
            }
        )
    return out


def session_spent(prompt: int, new: int, output: int, turns: int, shared: int) -> Spent | None:
    """A session whose prompts grow by `new` tokens a turn up to `prompt`; the first finds what sessions share, no more.
    None where they would have to begin with less.

    >>> spent = session_spent(1_000, 200, 50, 3, 100)  # prompts of 600, 800 and 1,000 tokens; 100, 600 and 800 are hit
    >>> spent.input_tokens, spent.hit_tokens, spent.output_tokens
    (2400, Decimal('1500'), 150)
    """
    first = prompt - new * (turns - 1)
    if first < max(shared, 1):
        return None
    tokens = turns * first + new * turns * (turns - 1) // 2
    hits = shared + tokens - first - new * (turns - 1)
    what = f"session of {turns:,} requests"
    return Spent(what=what, input_tokens=tokens, hit_tokens=Decimal(hits), output_tokens=output * turns)


def needed_hit_rate(prices: PriceSet, wanted: Decimal, source: Source) -> dict[str, Any]:
    """The share of input that has to hit for a million input tokens to cost `wanted`, by the first phase's rates."""
    phase = prices.phases[0]
    try:
        rate = hit_rate_for(wanted, phase.rates)
    except KvbenchError as error:
        raise source.wrong("prices.wanted", error.message) from None
    return {"price_per_million": text(wanted), "when": phase.when, "hit_rate": float(rate)}


def input_price_at(prices: PriceSet, hit_rate: float) -> list[dict[str, str]]:
    """What a million input tokens cost at a hit rate, for each phase of the list."""
    rate = Decimal(hit_rate)
    return [{"when": phase.when, "price": text(input_price(phase.rates, rate))} for phase in prices.phases]


def listed(prices: PriceSet) -> dict[str, Any]:
    return {
        "currency": prices.currency,
        "source": prices.source,
        "at": None if prices.at is None else prices.at.isoformat(),
        "phases": [
            {"when": phase.when} | {name: plain(getattr(phase.rates, name)) for name in ("miss", "hit", "output")}
            for phase in prices.phases
        ],
    }


def text(value: Decimal) -> str:
    return plain(value.quantize(_STEP))


def _one(total: Decimal, count: int) -> str:
    return text(total / count)
