"""What was asked for, as a bill must show it: each request's tokens by the invoice's kinds, and the tier they cost."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from kvbench.model import Usage
from kvbench.prices.book import PriceRow
from kvbench.prices.invoices.lines import TOKEN_KINDS
from kvbench.prices.money import product
from kvbench.prices.parts import CannotPrice
from kvbench.prices.priced import Billable, Priced
from kvbench.prices.pricing import At, Found, PriceList

Range = tuple[int, int | None]
"""At least, at most; None: no bound is known."""

CLOCK = timedelta(seconds=2)
"""What our clock and the provider's, and the way between, may differ by."""

INPUT = ("hit", "miss", "write_5m", "write_1h", "input")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent. priced None: `why` says what is not known of it, or, where that is None too, it was
    refused and reported nothing."""

    billable: Billable
    priced: Priced | None = None
    why: str | None = None

    @property
    def unknown(self) -> bool:
        """Whether it may be billed, for nobody knows how many tokens."""
        return self.priced is None and self.why is not None

    @property
    def ids(self) -> tuple[str, ...]:
        names = (self.billable.response_id, self.billable.request_id)
        return tuple(name for name in names if name is not None)


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """One price for each kind: a row of a book, at peak or not."""

    book: str
    row: PriceRow
    peak: bool

    def price(self, kind: str) -> Decimal | None:
        """For one token as a bill has it; None where the row does not say, or says more than one (input)."""
        row = self.row
        if kind == "output" and row.reasoning is not None:
            return None
        if kind in ("write_5m", "write_1h") and row.write_as_miss:
            kind = "miss"
        if kind == "hit" and row.hit is None:
            kind = "miss"
        if kind == "reasoning" and row.reasoning is None:
            kind = "output"
        if kind not in TOKEN_KINDS or kind == "input":
            return None
        return row.per_token(kind, peak=self.peak)

    def least(self, kind: str) -> Decimal:
        """What one token of a kind costs at least."""
        price = self.price(kind)
        if price is None:
            among = ("output", "reasoning") if kind in ("output", "reasoning") else ("hit", "miss")
            known = [self.row.per_token(each, peak=self.peak) for each in among]
            price = min((each for each in known if each is not None), default=Decimal(0))
        return price

    def other_peak(self) -> Tier | None:
        """The same row's other tier, where it has two."""
        if self.row.peak is None or self.row.peak_factor == 1:
            return None
        return Tier(book=self.book, row=self.row, peak=not self.peak)

    @property
    def key(self) -> tuple[str, int, bool]:
        return self.book, id(self.row), self.peak


def tier_of(found: Found | Priced) -> Tier:
    book = found.book if isinstance(found.book, str) else found.book.name
    return Tier(book=book, row=found.row, peak=found.peak)


def asked(prices: PriceList, billables: Iterable[Billable], at: At) -> list[Asked]:
    """Every request with its price, in the order given."""
    found = []
    for billable in billables:
        if billable.failed and billable.usage.input_tokens is None and billable.usage.problem is None:
            found.append(Asked(billable=billable))
            continue
        got = prices.price(billable, at)
        if isinstance(got, Priced):
            found.append(Asked(billable=billable, priced=got))
        else:
            found.append(Asked(billable=billable, why=got.why))
    return found


def at_moment(prices: PriceList, request: Asked, moment: datetime) -> Priced | None:
    """The request's price if `moment` had decided; None where there is none."""
    got = prices.price(replace(request.billable, start=moment, end=None))
    return got if isinstance(got, Priced) else None


def moments(request: Asked, priced: Priced) -> tuple[datetime, ...]:
    """Those that may decide on its price: its start or its end, by either clock."""
    start = request.billable.start or priced.time
    end = request.billable.end or start
    return start, end, start - CLOCK, end + CLOCK


def spreads(prices: PriceList, requests: Iterable[Asked]) -> list[Decimal]:
    """Of each request that lies on a change of price, what it may honestly cost more or less."""
    found = []
    for request in requests:
        priced = request.priced
        if priced is None:
            continue
        among = moments(request, priced)
        tiers = [find_tier(prices, priced.model, moment, priced.usage) for moment in among]
        if len({None if tier is None else tier.key for tier in tiers}) == 1:
            continue
        others = (at_moment(prices, request, moment) for moment in among)
        amounts = [priced.amount.least, *(each.amount.least for each in others if each is not None)]
        found.append(max(amounts) - min(amounts))
    return [spread for spread in found if spread]


def find_tier(prices: PriceList, model: str, moment: datetime, usage: Usage | None = None) -> Tier | None:
    try:
        return tier_of(prices.find(model, moment, usage or Usage()))
    except CannotPrice:
        return None


def quantities(priced: Priced, kinds: frozenset[str]) -> dict[str, Range]:
    """Tokens by the kinds that an invoice tells apart. Calls of server tools are no tokens."""
    found: dict[str, Range] = {}

    def add(kind: str, least: int, most: int | None) -> None:
        low, high = found.get(kind, (0, 0))
        found[kind] = low + least, None if high is None or most is None else high + most

    for part in priced.parts:
        if part.kind in ("output", "reasoning"):
            kind = "reasoning" if part.kind == "reasoning" and "reasoning" in kinds else "output"
            add(kind, part.tokens, part.most_tokens)
        elif part.kind.startswith("tool:"):
            continue
        elif "hit" not in kinds:
            add("input", part.tokens, part.tokens)
        elif part.kind == "input":
            add("hit", 0, part.tokens)
            add("miss", 0, part.tokens)
        elif part.kind == "write" and "write_5m" in kinds:
            add("write_5m", 0, part.tokens)
            add("write_1h", 0, part.tokens)
        else:
            add(part.kind if part.kind in kinds else "miss", part.tokens, part.tokens)
    return found


def cost(price: Decimal, tokens: int) -> Decimal:
    return product(price, tokens)
