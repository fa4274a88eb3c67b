"""Requests on the edge of two windows, or of two prices: where each is counted.

What decides is often not documented, so each is counted where the invoice agrees best. Sums over windows do not depend
on it; what does is which window a fault is found in, and what a request cost at a change of price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import combinations, product
from statistics import median

from kvbench.analysis.billing.cells import Cell
from kvbench.analysis.billing.sides import Asked, quantities

_PASSES = 3
_NOISE = 1e-6
_PAIRED = 40
"""Requests on one edge up to which pairs of them are moved together too."""


class Place:
    """Where a request may be counted: the cell, and its price there."""

    def __init__(self, cell: Cell, amount: Decimal) -> None:
        self.cell = cell
        self.amount = amount


class Movable:
    """A request that is counted at the first of its places, to begin with. at_end: the place where it ended."""

    def __init__(self, request: Asked, places: list[Place], at_end: Place) -> None:
        self.request = request
        self.places = places
        self.at_end = at_end
        self.now = places[0]

    def move(self, to: Place) -> None:
        if to is not self.now:
            self.now.cell.remove(self.request, self.now.amount)
            to.cell.add(self.request, to.amount)
            self.now = to


def settle(cells: Sequence[Cell], movable: Sequence[Movable]) -> None:
    """Move requests as long as the invoice agrees better: from where all starts, or all ends, decide; one by one, and
    in pairs. What then is still too much on one side of an edge and too little on the other, and may be of the requests
    on it, is no fault of either."""
    ratios = _ratios(cells, movable)
    edges = list({id(place.cell): place.cell for each in movable for place in each.places}.values())
    by_start = sum(_disagreement(cell, ratios) for cell in edges)
    for each in movable:
        each.move(each.at_end)
    if sum(_disagreement(cell, ratios) for cell in edges) >= by_start:
        for each in movable:
            each.move(each.places[0])
    _improve(movable, ratios)
    _even_out(movable)


def _improve(movable: Sequence[Movable], ratios: dict[str, float]) -> None:
    for _ in range(_PASSES):
        moved = False
        for group in ([each] for each in movable):
            moved = _best(group, ratios) or moved
        for pair in _pairs(movable):
            moved = _best(pair, ratios) or moved
        if not moved:
            return


def _even_out(movable: Sequence[Movable]) -> None:
    room: dict[tuple[int, int, str], int] = defaultdict(int)
    cells: dict[int, Cell] = {}
    for each in movable:
        assert each.request.priced is not None
        for one, two in combinations(each.places, 2):
            cells |= {id(one.cell): one.cell, id(two.cell): two.cell}
            for kind, (_, most) in quantities(each.request.priced, one.cell.kinds).items():
                room[id(one.cell), id(two.cell), kind] += most or 0
                room[id(two.cell), id(one.cell), kind] += most or 0
    for (over, under, kind), most in room.items():
        moved = min(most, cells[over].excess(kind), -cells[under].excess(kind))
        if moved > 0:
            cells[over].explained[kind] += moved
            cells[under].explained[kind] -= moved


def _pairs(movable: Sequence[Movable]) -> Iterator[list[Movable]]:
    """Two that may be in one cell."""
    sharing: dict[int, list[Movable]] = defaultdict(list)
    for each in movable:
        for place in each.places:
            sharing[id(place.cell)].append(each)
    seen: set[tuple[int, int]] = set()
    for group in sharing.values():
        for one, two in combinations(group[:_PAIRED], 2):
            if (id(one), id(two)) not in seen:
                seen.add((id(one), id(two)))
                yield [one, two]


def _best(group: list[Movable], ratios: dict[str, float]) -> bool:
    """Put some requests where they agree best; whether that is elsewhere."""
    cells = list({id(place.cell): place.cell for each in group for place in each.places}.values())
    first = [each.now for each in group]
    best, least = first, sum(_disagreement(cell, ratios) for cell in cells)
    for places in product(*(each.places for each in group)):
        for each, place in zip(group, places, strict=True):
            each.move(place)
        off = sum(_disagreement(cell, ratios) for cell in cells)
        if off < least - _NOISE:
            best, least = list(places), off
    for each, place in zip(group, best, strict=True):
        each.move(place)
    return best is not first


def _ratios(cells: Sequence[Cell], movable: Sequence[Movable]) -> dict[str, float]:
    """Billed to used by kind: the median of the cells whose requests are certain, so that a fault of the whole bill
    does not decide where a request is counted."""
    uncertain = {id(place.cell) for each in movable for place in each.places}
    found: dict[str, float] = {}
    for kind in {kind for cell in cells for kind in cell.token_kinds}:
        pairs = [(cell.invoiced(kind), cell.expected(kind)[0], id(cell) in uncertain) for cell in cells]
        certain = [billed / used for billed, used, open in pairs if used and not open]
        ratios = certain or [billed / used for billed, used, _ in pairs if used]
        found[kind] = median(ratios) if ratios else 1.0
    return found


def _disagreement(cell: Cell, ratios: dict[str, float]) -> float:
    """In tokens."""
    off = 0.0
    for kind in cell.token_kinds:
        least, most = cell.expected(kind)
        billed, ratio = cell.invoiced(kind), ratios[kind]
        off += max(0.0, least * ratio - billed, 0.0 if most is None else billed - most * ratio)
    return off
