"""The verification report: a price report with what the invoice says beside it, and a verdict.

verdict: "confirmed", "disputed" or "cannot tell", of usage against invoice alone, which is arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from kvbench.analysis.billing import by_id, by_window
from kvbench.analysis.billing.cells import Cell, Sides
from kvbench.analysis.billing.displaced import displaced, only_moved
from kvbench.analysis.billing.faults import Fault
from kvbench.analysis.billing.findings import SAYS, SHOWN, BillFinding, Found, find
from kvbench.analysis.billing.power import detectable
from kvbench.analysis.billing.served import served
from kvbench.analysis.billing.sides import Asked, asked, cost, spreads
from kvbench.analysis.billing.unnamed import check_currency
from kvbench.errors import UsageError
from kvbench.prices.invoices.lines import Invoice
from kvbench.prices.listing import utc_text
from kvbench.prices.money import plain, total
from kvbench.prices.priced import Billable
from kvbench.prices.pricing import At, PriceList


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the one who asks knows. key: as the invoice names it. dedicated: nothing but these requests was sent with
    it. unread: records of ours that could not be read, and may have been billed."""

    key: str | None = None
    dedicated: bool = False
    unread: int = 0
    incomplete: str | None = None
    """Why requests may be missing on our side."""


def verify(
    report: dict[str, Any],
    billables: Sequence[Billable],
    prices: PriceList,
    invoice: Invoice,
    *,
    at: At = "start",
    terms: Terms | None = None,
) -> dict[str, Any]:
    """The price report with findings, verdict, detectable, `bill` and `served`.

    Raises UsageError where the invoice is of several keys and none is named, or of another currency.
    """
    terms = terms or Terms()
    currency = report["total"]["currency"]
    if invoice.currency is not None and invoice.currency != currency:
        raise UsageError(
            f"the invoice is in {invoice.currency}, and the requests are priced in {currency}; nothing is converted",
            hint=f"--currency {invoice.currency}, where the price book has such a list",
        )
    check_currency(invoice, prices, currency)
    # Where requests of ours may be missing, an excess may be theirs.
    alone = terms.dedicated and not terms.unread and terms.incomplete is None
    own_sums = _cost_off(invoice)
    invoice = _of_key(invoice, terms.key)
    key = terms.key or next(iter(invoice.keys), None)
    requests = asked(prices, billables, at)
    if by_id.names_any(invoice, requests):
        sides = by_id.join(invoice, requests, prices, dedicated=alone)
    else:
        sides = by_window.join(invoice, requests, prices, key=key, dedicated=alone)
    found = find(sides)
    findings = [*found.findings, *own_sums, *_not_invoiced(sides)]
    findings.sort(key=lambda each: (-each.amount, each.kind))
    found = Found(findings=findings, unattributed=found.unattributed, slack=found.slack)
    inference = served(requests)
    verdict, reasons = _verdict(sides, found, requests, terms)
    power = detectable(sides, found, currency, spreads(prices, requests))
    elsewhere = _elsewhere(sides, found, requests) if findings and sides.how == "by window" else None
    if elsewhere is not None:
        verdict, reasons, findings = "cannot tell", [elsewhere], []
        power |= {"amount": None, "tokens": None, "by_fault": {}, "to_see_less": "an invoice whose times are ours"}
    return report | {
        "doubts": report["findings"],
        "findings": [finding.dict() for finding in findings],
        "verdict": verdict,
        "verdict_reasons": reasons,
        "detectable": power,
        "bill": _bill(sides, found, requests, key, dedicated=terms.dedicated),
        "served": inference,
    }


def _of_key(invoice: Invoice, key: str | None) -> Invoice:
    keys = invoice.keys
    if key is None:
        if len(keys) > 1:
            raise UsageError(
                f"the invoice is of {len(keys)} keys: {', '.join(keys[:10])}",
                hint="--key NAME says which one the requests were sent with",
            )
        return invoice
    if key not in keys:
        raise UsageError(f"--key {key}: not on the invoice; there are: {', '.join(keys) or 'no keys'}")
    return replace(
        invoice,
        lines=tuple(line for line in invoice.lines if line.key == key),
        charges=tuple(charge for charge in invoice.charges if charge.key in (key, None))
        if len(keys) == 1
        else tuple(charge for charge in invoice.charges if charge.key == key),
    )


def _elsewhere(sides: Sides, found: Found, requests: Sequence[Asked]) -> str | None:
    """Why what differs is in which windows tokens stand, and no fault of any."""
    moved = displaced(sides, requests)
    if moved is not None:
        return str(moved)
    by_quantity = any(not cell.tier or any(map(cell.excess, cell.token_kinds)) for cell in sides.cells) or sides.foreign
    if by_quantity and only_moved(sides, requests, found.slack):
        return (
            "it has our tokens of each kind to the last one, and asks no more than they cost, but in other windows "
            "than they were used in: is it by UTC, and by when requests were made?"
        )
    return None


def _cost_off(invoice: Invoice) -> list[BillFinding]:
    """Whether an export's money is the sum of its own tokens at its own prices; of the whole account."""
    itemised: dict[tuple[datetime, datetime | None, str], Decimal] = defaultdict(Decimal)
    taken: dict[tuple[datetime, datetime | None, str], list[Decimal]] = defaultdict(list)
    for line in invoice.lines:
        if line.price is not None:
            itemised[line.start, line.end, line.model] += cost(line.price, line.tokens)
    for charge in invoice.charges:
        if charge.model is not None and charge.request_id is None:
            taken[charge.start, charge.end, charge.model].append(charge.amount)
    if not itemised or not taken:
        return []
    faults = []
    for name, amounts in taken.items():
        slack = (invoice.unit or Decimal(0)) * len(amounts)
        money, right = total(amounts), itemised.get(name, Decimal(0))
        if abs(money - right) > slack:
            cell = Cell(frozenset(invoice.kinds), model=name[2], start=name[0], end=name[1])
            says = f"{plain(money)} charged, its tokens at its prices are {plain(right)}"
            faults.append(Fault(kind="cost_off", cell=cell, amount=money - right, tokens=0, requests=0, says=says))
    return [
        BillFinding(
            kind="cost_off",
            amount=total(fault.amount for fault in some),
            tokens=0,
            requests=0,
            cells=len(some),
            says=SAYS["cost_off"],
            worst=tuple(sorted(some, key=lambda fault: -abs(fault.amount))[:SHOWN]),
            proof=True,
        )
        for some in ([f for f in faults if f.amount > 0], [f for f in faults if f.amount < 0])
        if some
    ]


def _not_invoiced(sides: Sides) -> list[BillFinding]:
    missing = [each for each in sides.not_invoiced if each.priced is not None]
    if not missing:
        return []
    faults = []
    for each in missing:
        assert each.priced is not None
        cell = Cell(frozenset(sides.invoice.kinds), model=each.priced.row.model, start=each.priced.time, end=None)
        cell.request_id = each.billable.request_id
        amount = each.priced.amount.least
        tokens = sum(part.tokens for part in each.priced.parts)
        says = f"{tokens:,} tokens used, no line on the invoice"
        faults.append(Fault(kind="not_invoiced", cell=cell, amount=-amount, tokens=tokens, requests=1, says=says))
    return [
        BillFinding(
            kind="not_invoiced",
            amount=total(fault.amount for fault in faults),
            tokens=sum(fault.tokens for fault in faults),
            requests=len(faults),
            cells=len(faults),
            says=SAYS["not_invoiced"],
            worst=tuple(faults[:SHOWN]),
            proof=True,
        )
    ]


def _verdict(sides: Sides, found: Found, requests: Sequence[Asked], terms: Terms) -> tuple[str, list[str]]:
    over = [each for each in found.findings if each.amount > 0]
    proved = [each for each in over if each.proof]
    amount = total(each.amount for each in proved)
    if proved and amount > 0:
        return "disputed", [f"{each.kind}: {each.says}" for each in proved]
    doubts = [f"{each.kind}: {each.says}, by a price row that is not the provider's own word" for each in over]
    doubts += [f"{each.kind}: {each.says}" for each in found.findings if each.amount <= 0]
    foreign = {id(cell) for cell in sides.foreign}
    inside = [each for each in found.unattributed if id(each.cell) not in foreign or _in_span(each.cell, requests)]
    if inside:
        doubts.append(
            f"{sum(each.tokens for each in inside):,} tokens are billed beyond these requests, in their own time: "
            "traffic of others, or a fault"
        )
    unknown = sum(each.unknown for each in requests)
    if unknown:
        doubts.append(f"of {unknown:,} requests of ours it is not known what they used")
    if terms.unread:
        doubts.append(f"{terms.unread:,} records of ours could not be read")
    if terms.incomplete is not None:
        doubts.append(terms.incomplete)
    if sides.invoice.bad:
        bad = sides.invoice.bad
        doubts.append(f"{len(bad):,} rows of the invoice could not be read, the first: {bad[0]}")
    if not any(cell.requests for cell in sides.cells):
        doubts.append("the invoice has nothing about any of these requests")
    if doubts:
        return "cannot tell", doubts
    if all(cell.billed is None for cell in sides.cells):
        return "confirmed", ["every token is accounted for; the invoice has no money in it to compare"]
    return "confirmed", ["every token is accounted for, at the list's prices"]


def _in_span(cell: Cell, requests: Sequence[Asked]) -> bool:
    """Whether a cell lies in the time in which our requests were sent."""
    starts = [each.billable.start for each in requests if each.billable.start is not None]
    ends = [each.billable.end or each.billable.start for each in requests]
    last = max((end for end in ends if end is not None), default=None)
    if not starts or last is None:
        return True
    return cell.start <= last and (cell.end or cell.start) >= min(starts)


def _bill(sides: Sides, found: Found, requests: Sequence[Asked], key: str | None, *, dedicated: bool) -> dict[str, Any]:
    invoice = sides.invoice
    ours = [cell for cell in sides.cells if cell.requests or cell.unknown]
    asked_for = [money for cell in ours if (money := cell.billed) is not None]
    expected = total(cell.amount for cell in ours)
    return {
        "path": invoice.path,
        "format": invoice.format,
        "shape": invoice.shape,
        "currency": invoice.currency,
        "key": key,
        "dedicated_key": dedicated,
        "joined": sides.how,
        "rows": {"tokens": len(invoice.lines), "charges": len(invoice.charges), "bad": len(invoice.bad)},
        "bad_rows": [str(row) for row in invoice.bad[:20]],
        "expected": plain(expected),
        "invoiced": plain(total(asked_for)) if asked_for else None,
        "tolerance": {
            "amount": plain(found.slack),
            "tokens": sum(_width(cell) for cell in ours),
        },
        "straddling": sides.straddling,
        "not_known": {
            "requests": sum(each.unknown for each in requests),
            "first": [f"{each.billable.request_id}: {each.why}" for each in requests if each.unknown][:SHOWN],
        },
        "unmatched": {
            "requests": {
                "requests": len(sides.not_invoiced),
                "first": [each.billable.request_id for each in sides.not_invoiced[:SHOWN]],
            },
            "invoice": {
                "cells": len(sides.foreign),
                "tokens": sum(line.tokens for cell in sides.foreign for line in cell.lines if line.kind != "requests"),
                "first": [cell.where for cell in sides.foreign[:SHOWN]],
            },
        },
        "unattributed": {
            "tokens": sum(each.tokens for each in found.unattributed),
            "amount": plain(total(each.amount for each in found.unattributed)),
        },
        "notes": [*invoice.notes, *sides.notes],
        "cells": [_cell(cell) for cell in (*ours, *sides.foreign)],
    }


def _width(cell: Cell) -> int:
    spans = [cell.expected(kind) for kind in cell.token_kinds]
    return sum(most - least for least, most in spans if most is not None)


def _cell(cell: Cell) -> dict[str, Any]:
    """One request, or one window, with what was predicted, reported, priced and invoiced."""
    floors = [each.billable.floor for each in cell.requests]
    ceilings = [each.billable.ceiling for each in cell.requests]
    kinds: dict[str, Any] = {}
    for kind in (kind for kind in cell.token_kinds if cell.invoiced(kind) or cell.expected(kind) != (0, 0)):
        least, most = cell.expected(kind)
        kinds[kind] = {
            "reported": least if least == most else [least, most],
            "invoiced": cell.invoiced(kind) + sum(line.tokens for line in cell.copies if line.kind == kind),
        }
    predicted = None
    if floors and None not in floors and None not in ceilings:
        predicted = [sum(each or 0 for each in floors), sum(each or 0 for each in ceilings)]
    billed = cell.billed
    return {
        "request_id": cell.request_id,
        "start": utc_text(cell.start),
        "end": None if cell.end is None else utc_text(cell.end),
        "key": cell.key,
        "model": cell.model,
        "requests": len(cell.requests),
        "predicted_hits": predicted,
        "kinds": kinds,
        "priced": plain(cell.amount),
        "invoiced": None if billed is None else plain(billed),
    }
