"""A cell: what was used and what was billed for it, side by side. A request where ids join, else a window's tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import msgspec

from kvbench.analysis.billing.sides import Asked, Range, Tier, cost, quantities
from kvbench.prices.invoices.lines import TOKEN_KINDS, Charge, Invoice, InvoiceLine
from kvbench.prices.listing import utc_text
from kvbench.prices.money import total


class Cell:
    """requests are ours, lines and charges the invoice's; `copies` are lines that bill a request once more.

    closed: nothing but our requests can be billed here, so that an excess is a fault. extra_requests: how many more
    are counted on the invoice than we sent.
    """

    def __init__(self, kinds: frozenset[str], *, model: str, start: datetime, end: datetime | None) -> None:
        self.kinds = kinds
        self.model = model
        self.start = start
        self.end = end
        self.key: str | None = None
        self.request_id: str | None = None
        self.tier: Tier | None = None
        self.requests: list[Asked] = []
        self.lines: list[InvoiceLine] = []
        self.copies: list[InvoiceLine] = []
        self.charges: list[Charge] = []
        self.copied_charges: list[Charge] = []
        self.unknown = 0
        self.closed = False
        self.extra_requests = 0
        self.explained: Counter[str] = Counter()
        """Billed tokens that a fault beyond this cell accounts for."""
        self._expected: dict[str, Range] = {}
        self.amount = Decimal(0)
        """What the requests cost here, at least."""

    @property
    def where(self) -> str:
        if self.request_id is not None:
            return f"request {self.request_id} of {utc_text(self.start)}"
        last = "" if self.end is None else f" to {utc_text(self.end)}"
        key = f", key {self.key}" if self.key else ""
        return f"{utc_text(self.start)}{last}{key}, {self.model}"

    def add(self, request: Asked, amount: Decimal) -> None:
        self.requests.append(request)
        self.amount += amount
        self._count(request, 1)

    def remove(self, request: Asked, amount: Decimal) -> None:
        self.requests.remove(request)
        self.amount -= amount
        self._count(request, -1)

    def _count(self, request: Asked, sign: int) -> None:
        assert request.priced is not None
        for kind, (least, most) in quantities(request.priced, self.kinds).items():
            low, high = self._expected.get(kind, (0, 0))
            self._expected[kind] = low + sign * least, None if most is None or high is None else high + sign * most

    def expected(self, kind: str) -> Range:
        return self._expected.get(kind, (0, 0))

    def invoiced(self, kind: str) -> int:
        return sum(line.tokens for line in self.lines if line.kind == kind)

    def left(self, kind: str) -> int:
        """Billed tokens that are not explained yet."""
        return self.invoiced(kind) - self.explained[kind]

    def excess(self, kind: str) -> int:
        """Tokens billed beyond the most there can be; below the least: negative."""
        least, most = self.expected(kind)
        billed = self.left(kind)
        if billed < least:
            return billed - least
        return billed - most if most is not None and billed > most else 0

    @property
    def token_kinds(self) -> list[str]:
        return [kind for kind in TOKEN_KINDS if kind in self.kinds]

    @property
    def billed(self) -> Decimal | None:
        """Money asked here: price x tokens where lines have prices, else charges; None where there is neither."""
        return asked_money((*self.lines, *self.copies), (*self.charges, *self.copied_charges))


def asked_money(lines: Iterable[InvoiceLine], charges: Iterable[Charge]) -> Decimal | None:
    priced = [cost(line.price, line.tokens) for line in lines if line.price is not None]
    taken = [charge.amount for charge in charges]
    return total(priced) if priced else total(taken) if taken else None


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """A bill and our requests, joined. not_invoiced: requests that the invoice has nothing about. foreign: cells that
    hold none of our requests. straddling: requests that may belong to either of two windows."""

    how: str
    invoice: Invoice
    cells: list[Cell]
    not_invoiced: list[Asked]
    foreign: list[Cell]
    straddling: int = 0
    notes: tuple[str, ...] = ()
