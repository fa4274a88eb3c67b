"""A price book: what a provider's models cost, when, and who says so."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Literal

import msgspec

from kvbench.prices.money import PER_M, product
from kvbench.prices.peak import PeakPhase

Status = Literal["official", "secondary", "unverified"]
STANDARD = "standard"
PRICES = ("hit", "miss", "write_5m", "write_1h", "output", "reasoning", "image")


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs during [start, end), for a million tokens each, in `currency`; end None: still valid.

    A price of None is not known, but for these: without `hit` no discount is listed, without `reasoning` it is billed
    as the output it is part of, without `image` as the input it is part of. write_as_miss: tokens written to the cache
    cost what any uncached input does. peak: the windows in which every price is times `peak_factor`. It holds for
    prompts of input_from <= tokens < input_below (None: no limit) of one service tier, batched or not.
    """

    model: str
    currency: str
    start: datetime
    end: datetime | None = None
    miss: Decimal
    output: Decimal
    hit: Decimal | None = None
    write_5m: Decimal | None = None
    write_1h: Decimal | None = None
    write_as_miss: bool = False
    reasoning: Decimal | None = None
    image: Decimal | None = None
    peak: str | None = None
    peak_factor: Decimal = Decimal(1)
    service_tier: str = STANDARD
    batch: bool = False
    input_from: int = 0
    input_below: int | None = None
    minimum_cacheable_tokens: int | None = None
    status: Status
    source: str
    checked: date
    note: str = ""
    line: int = 0

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment and (self.end is None or moment < self.end)

    def per_token(self, kind: str, *, peak: bool = False) -> Decimal | None:
        """Exact price of one token of a kind; None where the row has none."""
        price: Decimal | None = getattr(self, kind)
        return None if price is None else product(price, self.peak_factor if peak else 1, PER_M)


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """Another name that a model is billed under, during [start, end); None: no bound is known."""

    name: str
    model: str
    start: datetime | None = None
    end: datetime | None = None

    def holds(self, moment: datetime) -> bool:
        return (self.start is None or self.start <= moment) and (self.end is None or moment < self.end)


class ToolPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A server tool's price for 1,000 calls during [start, end). names: as usage reports count it."""

    name: str
    names: tuple[str, ...]
    currency: str
    start: datetime
    end: datetime | None
    per_1000: Decimal
    status: Status
    source: str

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment and (self.end is None or moment < self.end)


class BookModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the book. unpriced: why there is no row for it, where there is none. hit_rule: how its hits are
    expected before anything is sent (none: nothing is published). tokenizer: what counts its texts, as endpoint
    profiles name it."""

    id: str
    title: str = ""
    hit_rule: Literal["units", "steps", "breakpoints", "none"] = "none"
    tokenizer: str | None = None
    unpriced: str | None = None


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's prices. currency: the list that is used where none is asked for. hosts: its endpoints."""

    name: str
    provider: str
    currency: str
    checked: date
    path: str
    hosts: tuple[str, ...] = ()
    note: str = ""
    models: dict[str, BookModel]
    aliases: tuple[Alias, ...] = ()
    rows: tuple[PriceRow, ...]
    tools: tuple[ToolPrice, ...] = ()
    peaks: tuple[PeakPhase, ...] = ()

    @property
    def currencies(self) -> tuple[str, ...]:
        return tuple(sorted({row.currency for row in self.rows}))

    def models_named(self, name: str, moment: datetime) -> set[str]:
        """Ids of the models billed under `name` at `moment`: none, one, or several (an ambiguous alias)."""
        found = {alias.model for alias in self.aliases if alias.name == name and alias.holds(moment)}
        return found | ({name} if name in self.models else set())

    def names(self) -> dict[str, list[str]]:
        """Model ids, each with its aliases."""
        return {model: sorted({alias.name for alias in self.aliases if alias.model == model}) for model in self.models}

    def peak_phase(self, name: str, moment: datetime) -> PeakPhase | None:
        return next((phase for phase in self.peaks if phase.name == name and phase.holds(moment)), None)
