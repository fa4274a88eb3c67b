"""A request on its way to its price, and what came of it: the records that a bill is joined on."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from kvbench.model import Usage
from kvbench.prices.book import PriceRow
from kvbench.prices.money import Money

Kind = str
"""hit, miss, write_5m, write_1h, output, reasoning, image, tool:NAME; `input` where hit and miss, `write` where the
lifetimes cannot be told apart."""

Reason = Literal[
    "unknown_model",
    "ambiguous_model",
    "no_row",
    "no_price",
    "holidays_unknown",
    "no_time",
    "no_usage",
    "bad_usage",
    "unreadable",
]


class Billable(msgspec.Struct, frozen=True, kw_only=True):
    """One request that a provider may bill. start and end are UTC; None = not known.

    request_id: unique in its source. failed: it got no answer that tokens would be billed for. output_most: the most
    output tokens it can have had where the reported count is only the least (`output_open`); None then: no bound.
    floor, ceiling: the hits that `rule` expected. turn: in its session; pause_s: since the session's turn before ended;
    sub_agent: whether another session started its own. place: where its source has it ("file:12").
    """

    request_id: str
    model: str | None
    usage: Usage
    start: datetime | None = None
    end: datetime | None = None
    batch: bool = False
    failed: bool = False
    output_open: bool = False
    output_most: int | None = None
    floor: int | None = None
    ceiling: int | None = None
    rule: str | None = None
    turn: int | None = None
    pause_s: float | None = None
    sub_agent: bool | None = None
    response_model: str | None = None
    response_id: str | None = None
    """The provider's own id of it."""
    place: str = ""

    @property
    def unused(self) -> bool:
        """It failed without using anything, as far as is known: nobody bills it."""
        return self.failed and self.usage.input_tokens is None and self.usage.problem is None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a request costs under one kind. most_tokens None: no bound is known. Tools are counted in calls."""

    kind: Kind
    tokens: int
    most_tokens: int | None
    amount: Money


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """One request with its price. time: the moment that decided the row. model: as the request named it."""

    request_id: str
    response_id: str | None
    time: datetime
    model: str
    book: str
    row: PriceRow
    peak: bool
    currency: str
    usage: Usage
    parts: tuple[Part, ...]
    amount: Money


class Unpriced(msgspec.Struct, frozen=True, kw_only=True):
    """A request without a price, and why. `why` names what is known instead."""

    request_id: str
    model: str | None
    reason: Reason
    why: str
    place: str = ""
