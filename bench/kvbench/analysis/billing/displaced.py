"""Whether a bill's windows are of another clock than ours: of a local time without its offset, mostly.

An hour that is named wrongly looks like a fault in every window, so that it has to be ruled out before one is stated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from kvbench.analysis.billing.cells import Cell, Sides
from kvbench.analysis.billing.sides import Asked, quantities
from kvbench.prices.money import total

_STEP = timedelta(minutes=15)
"""All offsets from UTC are multiples of it ..."""
_WEST, _EAST = -48, 56
"""... from -12 to +14 hours."""
_SHARE = 0.5
_TIMES = 2
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

_Count = tuple[datetime, datetime, str, str]


class Displaced(NamedTuple):
    """By how much the invoice's times are ahead of ours; how many of its counts (of one window, model and kind) equal
    ours to the token with that taken off, as they are, and in all."""

    ahead: timedelta
    agree: int
    agree_as_they_are: int
    counts: int

    def __str__(self) -> str:
        hours = f"{abs(self.ahead) / timedelta(hours=1):g} h {'taken off' if self.ahead > timedelta() else 'added'}"
        return (
            f"its times are by another clock: with {hours}, {self.agree:,} of {self.counts:,} counts of its windows "
            f"are ours to the token, as they are {self.agree_as_they_are:,}; give its times in UTC, or with "
            "their offset"
        )


def displaced(sides: Sides, requests: Sequence[Asked]) -> Displaced | None:
    """The shift at which far more of a bill's windows agree with ours than as it is; None where none is better."""
    billed: dict[_Count, int] = defaultdict(int)
    for cell in (*sides.cells, *sides.foreign):
        for line in cell.lines:
            if line.kind != "requests" and line.tokens and cell.end is not None:
                billed[cell.start, cell.end, cell.model, line.kind] += line.tokens
    if not billed or any((each - _EPOCH) % _STEP for start, end, *_ in billed for each in (start, end)):
        return None
    # As they are, requests on an edge stand where it agrees best: what a shift does to those alone is no clock.
    as_they_are = _as_they_are(sides, billed)
    best = None
    for at_end in (False, True):
        used = _used(requests, frozenset(sides.invoice.kinds), at_end=at_end)
        agree = {steps: _agreeing(billed, used, steps) for steps in range(_WEST, _EAST + 1)}
        steps = max(agree, key=lambda each: (agree[each], each % 4 == 0, each % 2 == 0, -abs(each)))
        if best is None or agree[steps] > best.agree:
            best = Displaced(steps * _STEP, agree[steps], as_they_are, len(billed))
    if best is None or best.agree < max(2, _SHARE * best.counts) or best.agree <= _TIMES * best.agree_as_they_are:
        return None
    return best


def only_moved(sides: Sides, requests: Sequence[Asked], slack: Decimal) -> bool:
    """Whether a bill has our tokens of each model and kind to the last one, and asks no more than they cost: what
    differs is in which windows they stand."""
    kinds = frozenset(sides.invoice.kinds)
    billed: dict[tuple[str, str], int] = defaultdict(int)
    used: dict[tuple[str, str], int] = defaultdict(int)
    cells = [*sides.cells, *sides.foreign]
    for cell in cells:
        for line in cell.lines:
            if line.kind != "requests":
                billed[cell.model, line.kind] += line.tokens
    for model, kind, _, tokens in _quantities(requests, kinds, at_end=False):
        if tokens is None:
            return False
        used[model, kind] += tokens
    if {name: count for name, count in billed.items() if count} != {
        name: count for name, count in used.items() if count
    }:
        return False
    asked = total(_money(cells))
    return asked <= total(each.priced.amount.least for each in requests if each.priced is not None) + slack


def _money(cells: Iterable[Cell]) -> Iterable[Decimal]:
    return (money for cell in cells if (money := cell.billed) is not None)


def _as_they_are(sides: Sides, billed: dict[_Count, int]) -> int:
    used: dict[_Count, int] = defaultdict(int)
    for cell in sides.cells:
        for kind in cell.token_kinds:
            least, most = cell.expected(kind)
            if cell.end is not None:
                used[cell.start, cell.end, cell.model, kind] += least if least == most else 0
    return sum(used.get(name) == tokens for name, tokens in billed.items())


def _agreeing(billed: dict[_Count, int], used: dict[tuple[str, str], dict[int, int]], steps: int) -> int:
    found = 0
    for (start, end, model, kind), tokens in billed.items():
        of = used.get((model, kind))
        if of is not None:
            first, last = ((each - _EPOCH) // _STEP - steps for each in (start, end))
            found += sum(of.get(at, 0) for at in range(first, last)) == tokens
    return found


def _used(requests: Sequence[Asked], kinds: frozenset[str], *, at_end: bool) -> dict[tuple[str, str], dict[int, int]]:
    """Tokens by (model, kind) and quarter of an hour."""
    found: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for model, kind, moment, tokens in _quantities(requests, kinds, at_end=at_end):
        found[model, kind][(moment - _EPOCH) // _STEP] += tokens or 0
    return found


def _quantities(
    requests: Sequence[Asked], kinds: frozenset[str], *, at_end: bool
) -> Iterable[tuple[str, str, datetime, int | None]]:
    """(model, kind, when, tokens) of each request; tokens None: not known to the token."""
    for each in requests:
        if each.priced is None:
            continue
        moment = each.billable.end if at_end and each.billable.end is not None else each.billable.start
        for kind, (least, most) in quantities(each.priced, kinds).items():
            yield each.priced.row.model, kind, moment or each.priced.time, least if least == most else None
