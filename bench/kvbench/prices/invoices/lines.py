"""What an invoice says, whoever wrote it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

TOKEN_KINDS = ("hit", "miss", "write_5m", "write_1h", "input", "output", "reasoning")
KINDS = (*TOKEN_KINDS, "requests")
"""input: hits, misses and writes that are not told apart. output holds reasoning, unless that is a kind of its own."""


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """So many tokens (or requests) of one kind, during [start, end), or at the moment `start` (end None).

    price: for one token, as printed; None: not printed.
    """

    start: datetime
    end: datetime | None
    model: str
    kind: str
    tokens: int
    price: Decimal | None = None
    key: str | None = None
    request_id: str | None = None
    place: str


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Money taken during [start, end), or for one request. model, key None: of all. Negative: given back."""

    start: datetime
    end: datetime | None
    amount: Decimal
    model: str | None = None
    key: str | None = None
    request_id: str | None = None
    wallet: str | None = None
    place: str


class BadRow(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    field: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field}: {self.why}" if self.field else f"{self.place}: {self.why}"


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """currency None: the file names none. unit: the last decimal that its charges are printed to. kinds: those it tells
    apart. by: whether a line is one request or what was used in a window. shape: how far its shape is known."""

    path: str
    format: str
    shape: str
    by: Literal["requests", "windows"]
    kinds: tuple[str, ...]
    lines: tuple[InvoiceLine, ...]
    charges: tuple[Charge, ...] = ()
    bad: tuple[BadRow, ...] = ()
    currency: str | None = None
    unit: Decimal | None = None
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Keys it has lines or charges of; a line without one is of none of them."""
        named = {line.key for line in self.lines} | {charge.key for charge in self.charges}
        return sorted(key for key in named if key is not None)
