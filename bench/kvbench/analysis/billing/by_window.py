"""By hour (or day), key, model and kind: an invoice of sums, and the requests that fall into each.

Which moment of a request decides on its window is often not documented, and clocks differ. A request whose time spans
two windows (or two prices in one) is counted where it agrees best with the invoice: sums over windows are exact
either way, and no fault is made of where a request was counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from kvbench.analysis.billing.cells import Cell, Sides
from kvbench.analysis.billing.edges import Movable, Place, settle
from kvbench.analysis.billing.sides import CLOCK, Asked, Tier, at_moment, find_tier, tier_of
from kvbench.errors import InputError
from kvbench.prices.book import Book
from kvbench.prices.invoices.lines import Charge, Invoice, InvoiceLine
from kvbench.prices.priced import Priced
from kvbench.prices.pricing import PriceList

Window = tuple[datetime, datetime]
_Counts = dict[tuple[Window, str | None], int]
_T = TypeVar("_T", InvoiceLine, Charge)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


class _Join:
    def __init__(self, invoice: Invoice, prices: PriceList, key: str | None) -> None:
        self.prices = prices
        self.key = key
        self.kinds = frozenset(invoice.kinds)
        self.by_tier = any(line.price is not None for line in invoice.lines)
        self.lines = [_windowed(line) for line in invoice.lines]
        self.charges = [_windowed(charge) for charge in invoice.charges]
        self.windows = _windows([*self.lines, *self.charges], invoice.path)
        self._starts = [start for start, _ in self.windows]
        self._names: dict[tuple[str, datetime], str] = {}
        self._tiers: dict[tuple[Window, str], list[Tier]] = {}
        self.cells: dict[tuple[Window, str, object], Cell] = {}

    def window_at(self, moment: datetime) -> Window | None:
        at = bisect_right(self._starts, moment) - 1
        return self.windows[at] if at >= 0 and moment < self.windows[at][1] else None

    def model(self, name: str, moment: datetime) -> str:
        """The book's name of a model, whatever the invoice calls it."""
        if (name, moment) not in self._names:
            found = sorted({each for book in self.prices.books for each in book.models_named(name, moment)})
            self._names[name, moment] = found[0] if len(found) == 1 else name
        return self._names[name, moment]

    def tiers(self, window: Window, model: str) -> list[Tier]:
        """Every price that holds at some moment of the window."""
        if (window, model) not in self._tiers:
            found = (find_tier(self.prices, model, moment) for moment in _edges(self.prices.books, window))
            self._tiers[window, model] = list({tier.key: tier for tier in found if tier is not None}.values())
        return self._tiers[window, model]

    def cell(self, window: Window, model: str, tier: Tier | None) -> Cell:
        name = (window, model, tier.key if tier is not None and self.by_tier else None)
        if name not in self.cells:
            cell = Cell(self.kinds, model=model, start=window[0], end=window[1])
            cell.tier, cell.key = tier, self.key
            self.cells[name] = cell
        return self.cells[name]

    def place_line(self, line: InvoiceLine) -> None:
        assert line.end is not None
        window = (line.start, line.end)
        model = self.model(line.model, line.start)
        tiers = self.tiers(window, model)
        tiers = tiers + [
            cell.tier
            for (at, of, _), cell in self.cells.items()
            if at == window and of == model and cell.tier is not None and cell.tier.key not in {t.key for t in tiers}
        ]
        price = line.price
        tier = tiers[0] if tiers else None
        if price is not None and len(tiers) > 1:
            tier = min(tiers, key=lambda each: abs((each.price(line.kind) or Decimal(0)) - price))
        self.cell(window, model, tier).lines.append(line)

    def places(self, request: Asked) -> list[Place]:
        """Where it may be counted, the moment that decides first."""
        priced = request.priced
        assert priced is not None
        billable = request.billable
        start = billable.start or priced.time
        end = billable.end or start
        moments = (priced.time, start, end, start - CLOCK, end + CLOCK)
        windows = {self.window_at(moment) for moment in moments}
        (only,) = windows if len(windows) == 1 else (None,)
        if only is not None and len(self.tiers(only, priced.row.model)) == 1:
            return [Place(self.cell(only, priced.row.model, tier_of(priced)), priced.amount.least)]
        found: dict[int, Place] = {}
        for moment in moments:
            window = self.window_at(moment)
            if window is None:
                continue
            there: Priced | None = priced if moment == priced.time else at_moment(self.prices, request, moment)
            if there is None:
                continue
            cell = self.cell(window, priced.row.model, tier_of(there))
            found.setdefault(id(cell), Place(cell, there.amount.least))
        return list(found.values())


def join(invoice: Invoice, requests: Sequence[Asked], prices: PriceList, *, key: str | None, dedicated: bool) -> Sides:
    """Cells by window, model and tier. Raises InputError where the invoice's windows overlap."""
    work = _Join(invoice, prices, key)
    missing: list[Asked] = []
    movable: list[Movable] = []
    unknown: _Counts = defaultdict(int)
    refused: _Counts = defaultdict(int)
    for request in requests:
        if request.priced is None:
            name = request.billable.model
            for window in _spanned(work, request):
                model = None if name is None else work.model(name, window[0])
                (unknown if request.unknown else refused)[window, model] += 1
            continue
        places = work.places(request)
        if not places:
            missing.append(request)
            continue
        places[0].cell.add(request, places[0].amount)
        if len(places) > 1:
            movable.append(Movable(request, places, _at_end(request, places)))
    for line in work.lines:
        if line.kind != "requests":
            work.place_line(line)
    for charge in work.charges:
        if charge.end is not None and charge.model is not None and not work.by_tier:
            window = (charge.start, charge.end)
            model = work.model(charge.model, charge.start)
            work.cell(window, model, next(iter(work.tiers(window, model)), None)).charges.append(charge)
    settle(list(work.cells.values()), movable)
    _close(work, unknown, refused, dedicated)
    cells = list(work.cells.values())
    used = [cell for cell in cells if cell.requests or cell.unknown or cell.lines or cell.charges]
    ours = {(cell.start, cell.model) for cell in used if cell.requests or cell.unknown}
    return Sides(
        how="by window",
        invoice=invoice,
        cells=[cell for cell in used if (cell.start, cell.model) in ours],
        foreign=[cell for cell in used if (cell.start, cell.model) not in ours],
        not_invoiced=missing,
        straddling=len(movable),
    )


def _at_end(request: Asked, places: list[Place]) -> Place:
    """Of its places, the one whose window it ended in."""
    end = request.billable.end
    for place in places:
        if end is not None and place.cell.end is not None and place.cell.start <= end < place.cell.end:
            return place
    return places[0]


def _close(work: _Join, unknown: _Counts, refused: _Counts, dedicated: bool) -> None:
    """Say of each cell whether anything but our requests can be billed in it."""
    counted: dict[tuple[Window, str], int] = defaultdict(int)
    for line in work.lines:
        if line.kind == "requests" and line.end is not None:
            counted[(line.start, line.end), work.model(line.model, line.start)] += line.tokens
    groups: dict[tuple[Window, str], list[Cell]] = defaultdict(list)
    for (window, model, _), cell in work.cells.items():
        groups[window, model].append(cell)
    for (window, model), cells in groups.items():
        sent = sum(len(cell.requests) for cell in cells)
        told = counted.get((window, model))
        open_here = unknown[window, model] + unknown[window, None]
        may_count = open_here + refused[window, model] + refused[window, None]
        extra = 0 if told is None else max(0, told - sent - may_count)
        for cell in cells:
            cell.unknown = open_here
            # A count that fits leaves no room for requests of others.
            cell.closed = not open_here and (dedicated or (told is not None and sent > 0 and extra == 0))
            cell.extra_requests = extra


def _spanned(work: _Join, request: Asked) -> set[Window]:
    start = request.billable.start
    if start is None:
        return set(work.windows)
    end = request.billable.end or start
    found = (work.window_at(moment) for moment in (start, end, start - CLOCK, end + CLOCK))
    return {window for window in found if window is not None}


def _windowed(each: _T) -> _T:
    """A line of one moment, by its hour."""
    if each.end is not None:
        return each
    start = each.start.replace(minute=0, second=0, microsecond=0)
    return replace(each, start=start, end=start + _HOUR)


def _windows(lines: Iterable[InvoiceLine | Charge], path: str) -> list[Window]:
    found = sorted({(line.start, line.end) for line in lines if line.end is not None})
    for (start, end), (following, _) in pairwise(found):
        if following < end:
            raise InputError(
                f"its windows overlap: one from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, another from "
                f"{following:%Y-%m-%d %H:%M} (UTC)",
                path=path,
                hint="one export at a time, all by hour or all by day",
            )
    return found


def _edges(books: Sequence[Book], window: Window) -> list[datetime]:
    """The window's start, and each moment in it at which a price may change."""
    start, end = window
    found = {start}
    for book in books:
        found |= {row.start for row in book.rows} | {row.end for row in book.rows if row.end is not None}
        found |= {phase.start for phase in book.peaks}
        hours = {each for phase in book.peaks for pair in phase.hours for each in pair if each is not None}
        day = start.replace(hour=0, minute=0, second=0, microsecond=0)
        while day < end:
            found |= {day} | {datetime.combine(day.date(), hour, tzinfo=day.tzinfo) for hour in hours}
            day += _DAY
    return sorted(moment for moment in found if start <= moment < end)
