"""Faults of all cells together: the same fault is one finding, with its money, its tokens and the worst cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from kvbench.analysis.billing.cells import Cell, Sides
from kvbench.analysis.billing.faults import CellFaults, Fault, Unattributed, cell_faults, hit_counts, row_text, shifts
from kvbench.analysis.billing.sides import cost
from kvbench.prices.money import plain, total

SHOWN = 5
_MANY = 10_000
GRANULES = (16, 32, 64, 128, 256, 512, 1024, 2048)

SAYS = {
    "hits_as_misses": "tokens that the usage reports call cached are billed as uncached",
    "hits_short_by_granule": "of each request's hits, {granule} tokens are billed as uncached",
    "hits_as_writes": "tokens that the usage reports call cached are billed as written to the cache",
    "misses_as_writes": "uncached tokens are billed as written to the cache",
    "writes_as_longer": "tokens written for 5 minutes are billed as written for an hour",
    "input_inflated": "more input tokens are billed than the usage reports have",
    "output_inflated": "more output tokens are billed than the usage reports have",
    "price_off": "the price is not the list's",
    "wrong_peak_hour": "the peak price is asked off-peak",
    "duplicates": "requests are billed again",
    "doubled_bill": "the whole bill is billed {factor} times",
    "charged_twice": "twice the price is charged",
    "charged_too_much": "more is charged than the reported tokens cost",
    "billed_without_request": "billed where no request was sent, on a key that nobody else uses",
    "cost_off": "the money of the export is not the sum of its own tokens at its own prices",
    "billed_less": "fewer tokens are billed than the usage reports have",
    "price_below_list": "the price is below the list's",
    "off_peak_at_peak": "the off-peak price is asked at peak",
    "not_invoiced": "requests of ours are not on the invoice",
}


class BillFinding(msgspec.Struct, frozen=True, kw_only=True):
    """amount above 0: billed too much; below: too little. worst: its largest faults. proof: as of Fault."""

    kind: str
    amount: Decimal
    tokens: int
    requests: int
    cells: int
    says: str
    worst: tuple[Fault, ...]
    proof: bool

    def dict(self) -> dict[str, Any]:
        first = "; ".join(f"{fault.cell.where}: {fault.says}" for fault in self.worst[:2])
        more = f"; and {self.cells - 2:,} more" if self.cells > 2 else ""
        return {
            "kind": self.kind,
            "amount": plain(self.amount),
            "at_least": plain(self.amount),
            "at_most": plain(self.amount),
            "tokens": self.tokens,
            "requests": self.requests,
            "evidence": f"{self.says}: {first}{more}",
            "proof": self.proof,
            "cells": self.cells,
            "where": [
                {
                    "cell": fault.cell.where,
                    "amount": plain(fault.amount),
                    "tokens": fault.tokens,
                    "says": fault.says,
                    "row": fault.official,
                }
                for fault in self.worst
            ],
        }


class Found(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[BillFinding]
    unattributed: list[Unattributed]
    slack: Decimal


def find(sides: Sides) -> Found:
    """All findings, the dearest first."""
    faults: list[Fault] = []
    unattributed: list[Unattributed] = []
    slack = Decimal(0)
    whole = _whole_again(sides)
    if whole is None:
        faults += _shifted(sides.cells)
    else:
        faults.append(whole)
    for cell in (*sides.cells, *sides.foreign):
        got: CellFaults = cell_faults(cell, sides.invoice.unit)
        faults += got.faults
        unattributed += got.unattributed
        slack += got.slack
    groups = _by_kind(faults, sides)
    granule = _granule(groups.get("hits_as_misses", []), sides)
    if granule is not None:
        groups["hits_short_by_granule"] = groups.pop("hits_as_misses")
    findings = [_finding(kind, some, granule) for kind, some in groups.items()]
    findings.sort(key=lambda each: (-each.amount, each.kind))
    return Found(findings=findings, unattributed=unattributed, slack=slack)


def _whole_again(sides: Sides) -> Fault | None:
    """The fault of a bill by window that has every kind the same whole number of times; all but one are then taken out
    of the cells. In all, so that it does not matter where a request on an edge was counted."""
    cells = [cell for cell in sides.cells if cell.requests]
    if sides.how != "by window" or not cells or any(cell.tier is None for cell in cells):
        return None
    billed: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for cell in cells:
        for kind in cell.token_kinds:
            least, most = cell.expected(kind)
            if least != most:
                return None
            used[kind] += least
            billed[kind] += cell.invoiced(kind)
    factors = {billed[kind] / used[kind] if used[kind] else 0.0 for kind in used if used[kind] or billed[kind]}
    factor = int(next(iter(factors), 0))
    if len(factors) != 1 or factor < 2 or any(billed[kind] != factor * used[kind] for kind in used):
        return None
    # Traffic of others is not exactly ours over again, in every kind.
    if not all(cell.closed for cell in cells) and (len(billed) < 2 or used.total() < _MANY):
        return None
    amount, tokens = Decimal(0), 0
    for cell in cells:
        assert cell.tier is not None
        for line in cell.lines:
            if line.kind != "requests":
                price = cell.tier.least(line.kind) if line.price is None else line.price
                amount += cost(price, line.tokens)
                tokens += line.tokens
        for kind in cell.token_kinds:
            cell.explained[kind] += cell.invoiced(kind) * (factor - 1) // factor
    whole = Cell(
        frozenset(sides.invoice.kinds), model=cells[0].model, start=min(cell.start for cell in cells), end=None
    )
    whole.end = max((cell.end for cell in cells if cell.end is not None), default=None)
    whole.key, whole.tier = cells[0].key, cells[0].tier
    return Fault(
        kind="billed_again",
        cell=whole,
        amount=amount * (factor - 1) / factor,
        tokens=tokens - tokens // factor,
        requests=sum(len(cell.requests) for cell in cells),
        says=f"{tokens // factor:,} tokens used, {tokens:,} billed",
        official=row_text(cells[0].tier) if cells[0].tier is not None else "",
        proof=all(cell.tier is not None and cell.tier.row.status == "official" for cell in cells),
        factor=factor,
        whole=True,
    )


def _shifted(cells: Sequence[Cell]) -> list[Fault]:
    """Faults between the tiers of one window; what they explain is taken out of both cells."""
    groups: dict[tuple[Any, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.request_id is None:
            groups[cell.start, cell.model].append(cell)
    found = []
    for group in groups.values():
        if len(group) > 1:
            for fault, dear, cheap, kind, moved in shifts(group):
                found.append(fault)
                dear.explained[kind] += moved
                cheap.explained[kind] -= moved
    return found


def _by_kind(faults: list[Fault], sides: Sides) -> dict[str, list[Fault]]:
    groups: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        groups[fault.kind].append(fault)
    again = groups.pop("billed_again", [])
    if again:
        ours = sum(1 for cell in sides.cells if cell.requests)
        same = len({fault.factor for fault in again}) == 1
        whole = same and (len(again) == ours or again[0].whole)
        groups["doubled_bill" if whole else "duplicates"] += again
    if "wrong_peak_hour" in groups and ("charged_twice" in groups or _scattered(groups["wrong_peak_hour"], sides)):
        groups["charged_twice"] += groups.pop("wrong_peak_hour")
    return groups


def _scattered(faults: list[Fault], sides: Sides) -> bool:
    """Whether requests that cost what they would at peak stand in one hour with others that do not."""
    wrong = {id(fault.cell) for fault in faults}
    hours = {_hour(fault.cell) for fault in faults if fault.cell.request_id is not None}
    return any(
        _hour(cell) in hours and id(cell) not in wrong and cell.tier is not None and not cell.tier.peak
        for cell in sides.cells
    )


def _hour(cell: Cell) -> datetime:
    return cell.start.replace(minute=0, second=0, microsecond=0)


def _granule(faults: list[Fault], sides: Sides) -> int | None:
    """The tokens that each request's hits are short by, where it is the same for all of a bill."""
    moved = sum(fault.tokens for fault in faults)
    if not moved:
        return None
    hits = [count for cell in sides.cells for count in hit_counts(cell.requests)]
    for granule in GRANULES:
        if sum(min(granule, count) for count in hits) == moved:
            return granule
    return None


def _finding(kind: str, faults: list[Fault], granule: int | None) -> BillFinding:
    ranked = sorted(faults, key=lambda fault: -abs(fault.amount))
    says = SAYS[kind]
    if kind == "hits_short_by_granule":
        says = says.format(granule=granule)
    elif kind == "doubled_bill":
        says = says.format(factor=faults[0].factor)
    return BillFinding(
        kind=kind,
        amount=total(fault.amount for fault in faults),
        tokens=sum(fault.tokens for fault in faults),
        requests=sum({id(fault.cell): fault.requests for fault in faults}.values()),
        cells=len({id(fault.cell) for fault in faults}),
        says=says,
        worst=tuple(ranked[:SHOWN]),
        proof=all(fault.proof for fault in faults),
    )
