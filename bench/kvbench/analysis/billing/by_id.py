"""Request by request: an invoice whose lines name the requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal

from kvbench.analysis.billing.cells import Cell, Sides, asked_money
from kvbench.analysis.billing.sides import Asked, at_moment, cost, find_tier, moments, tier_of
from kvbench.prices.invoices.lines import Charge, Invoice, InvoiceLine
from kvbench.prices.money import total
from kvbench.prices.priced import Priced
from kvbench.prices.pricing import PriceList


def names_any(invoice: Invoice, requests: Sequence[Asked]) -> bool:
    """Whether a line names one of the requests."""
    ours = {name for request in requests for name in request.ids}
    return any(line.request_id in ours for line in invoice.lines) or any(
        charge.request_id in ours for charge in invoice.charges
    )


def join(invoice: Invoice, requests: Sequence[Asked], prices: PriceList, *, dedicated: bool) -> Sides:
    """A cell for each of our requests on the invoice, and one for each of the invoice's that is not ours.

    A second set of lines under one id is a copy of the first.
    """
    lines: dict[str, list[InvoiceLine]] = defaultdict(list)
    charges: dict[str, list[Charge]] = defaultdict(list)
    for line in invoice.lines:
        lines[line.request_id or line.place].append(line)
    for charge in invoice.charges:
        charges[charge.request_id or charge.place].append(charge)
    names = dict.fromkeys([*lines, *charges])
    kinds = frozenset(invoice.kinds)
    cells: list[Cell] = []
    missing: list[Asked] = []
    taken: set[str] = set()
    for request in requests:
        name = next((each for each in request.ids if each in names and each not in taken), None)
        if name is None:
            if request.priced is not None:
                missing.append(request)
            continue
        taken.add(name)
        cell = _cell(name, lines[name], charges[name], kinds)
        cell.closed = True
        if request.priced is not None:
            priced = _agreeing(cell, request, request.priced, prices)
            cell.tier = tier_of(priced)
            cell.add(request, priced.amount.least)
        elif request.unknown:
            cell.unknown = 1
            cell.closed = False
        else:
            cell.requests.append(request)
        cells.append(cell)
    # A request that broke off before its id was known may be any of the others.
    lost = sum(request.unknown for request in requests) > sum(cell.unknown for cell in cells)
    foreign = []
    for name in names:
        if name not in taken:
            cell = _cell(name, lines[name], charges[name], kinds)
            cell.tier = find_tier(prices, cell.model, cell.start)
            cell.closed = dedicated and not lost
            foreign.append(cell)
    return Sides(how="request by request", invoice=invoice, cells=cells, not_invoiced=missing, foreign=foreign)


def _agreeing(cell: Cell, request: Asked, priced: Priced, prices: PriceList) -> Priced:
    """The request's price at the moment, among those that may decide, at which the invoice agrees best."""
    billed = asked_money(cell.lines, cell.charges)
    used = [line for line in cell.lines if line.kind != "requests"]

    def off(each: Priced) -> Decimal:
        tier = tier_of(each)
        by_lines = total(cost(tier.least(line.kind), line.tokens) for line in used)
        return abs((billed or Decimal(0)) - (by_lines if used else each.amount.least))

    if billed is None or not off(priced):
        return priced
    others = (at_moment(prices, request, moment) for moment in moments(request, priced))
    return min([priced, *(each for each in others if each is not None)], key=off)


def _cell(name: str, lines: list[InvoiceLine], charges: list[Charge], kinds: frozenset[str]) -> Cell:
    first = lines[0] if lines else charges[0]
    cell = Cell(kinds, model=first.model or "", start=first.start, end=first.end)
    cell.request_id, cell.key = name, first.key
    seen: set[str] = set()
    for line in lines:
        (cell.copies if line.kind in seen else cell.lines).append(line)
        seen.add(line.kind)
    # Each set of lines has its charge, where there are any.
    own = len(charges) if not cell.copies or not charges else max(1, len(charges) // _sets(lines))
    cell.charges, cell.copied_charges = charges[:own], charges[own:]
    return cell


def _sets(lines: list[InvoiceLine]) -> int:
    """How often a request is billed."""
    return max(Counter(line.kind for line in lines).values(), default=1)
