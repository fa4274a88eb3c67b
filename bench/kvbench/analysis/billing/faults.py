"""What one cell's bill has that its requests do not account for: each difference under the least fault that makes it.

Input tokens that are missing under a cheap kind and in excess under a dearer one were billed under the wrong kind; what
is in excess then is inflated; what is missing then is not billed. Amounts are tokens x the official price of the
cell's tier, so that faults of quantity and of price add up to what the bill differs by.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

import msgspec

from kvbench.analysis.billing.cells import Cell, asked_money
from kvbench.analysis.billing.sides import INPUT, Asked, Tier, cost, quantities
from kvbench.prices.invoices.lines import InvoiceLine
from kvbench.prices.money import plain, total

_MOVES = (
    ("hit", "miss", "hits_as_misses"),
    ("hit", "write_5m", "hits_as_writes"),
    ("hit", "write_1h", "hits_as_writes"),
    ("miss", "write_5m", "misses_as_writes"),
    ("miss", "write_1h", "misses_as_writes"),
    ("write_5m", "write_1h", "writes_as_longer"),
)
_MOST_COPIES, _MOST_EXTRA = 2000, 20


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One difference in one cell. amount above 0: billed too much. says: in words, with the numbers. proof: whether
    it holds by the provider's own price list and needs no other explanation ruled out."""

    kind: str
    cell: Cell
    amount: Decimal
    tokens: int
    requests: int
    says: str
    official: str = ""
    proof: bool = True
    factor: int = 1
    whole: bool = False


class Unattributed(msgspec.Struct, frozen=True, kw_only=True):
    """Billed, and maybe for requests of others, or for ours of which no usage is known."""

    cell: Cell
    tokens: int
    amount: Decimal


class CellFaults:
    """What `cell_faults` found."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.unattributed: list[Unattributed] = []
        self.slack = Decimal(0)
        """Money by which prices and charges may be off unseen, for being printed rounded."""


def cell_faults(cell: Cell, unit: Decimal | None) -> CellFaults:
    """unit: the last decimal that charges are printed to."""
    found = CellFaults()
    _Checker(cell, unit, found).run()
    return found


class _Checker:
    def __init__(self, cell: Cell, unit: Decimal | None, found: CellFaults) -> None:
        self.cell = cell
        self.unit = unit
        self.found = found
        self.left = {kind: cell.excess(kind) for kind in cell.token_kinds}

    def run(self) -> None:
        cell = self.cell
        self._copies()
        if cell.unknown and not cell.requests:
            tokens = sum(line.tokens for line in cell.lines if line.kind != "requests")
            self.found.unattributed.append(Unattributed(cell=cell, tokens=tokens, amount=cell.billed or Decimal(0)))
            return
        if not cell.requests:
            self._foreign()
            return
        if not self._multiple():
            self._moves()
            if cell.closed and cell.extra_requests:
                self._repeated()
            self._rest()
        self._prices()
        if cell.charges and not any(line.price is not None for line in cell.lines):
            self._charges()

    # -------------------------------------------------------------------------------------------------- quantities

    def _copies(self) -> None:
        """Lines under a request's id that bill it once more."""
        copies = self.cell.copies
        if copies:
            tokens = sum(line.tokens for line in copies if line.kind != "requests")
            amount = asked_money(copies, self.cell.copied_charges)
            sets = max(sum(1 for line in copies if line.kind == kind) for kind in {line.kind for line in copies})
            self._add(
                "billed_again",
                self._asked(copies) if amount is None else amount,
                tokens,
                f"billed again at {_places(copies)}",
                factor=sets + 1,
            )

    def _foreign(self) -> None:
        cell = self.cell
        tokens = sum(line.tokens for line in cell.lines if line.kind != "requests")
        amount = cell.billed
        if amount is None:
            amount = self._asked(cell.lines)
        if not tokens - sum(cell.explained.values()):
            return
        if cell.closed:
            counted = sum(line.tokens for line in cell.lines if line.kind == "requests")
            requests = max(counted, 1 if cell.request_id is not None else 0)
            says = f"{tokens:,} tokens billed at {_places(cell.lines)}, and no request of ours accounts for it"
            self._add("billed_without_request", amount, tokens, says, requests=requests)
        else:
            self.found.unattributed.append(Unattributed(cell=cell, tokens=tokens, amount=amount))

    def _multiple(self) -> bool:
        """Whether every kind is billed the same whole number of times; then that is the fault."""
        cell = self.cell
        pairs = [(cell.left(kind), cell.expected(kind)) for kind in cell.token_kinds]
        if not cell.closed or any(least != most for _, (least, most) in pairs):
            return False
        base = [(billed, least) for billed, (least, _) in pairs if least or billed]
        if not base or any(not least for _, least in base):
            return False
        factor, rest = divmod(base[0][0], base[0][1])
        if rest or factor < 2 or any(billed != factor * least for billed, least in base):
            return False
        over = {kind: (factor - 1) * cell.expected(kind)[0] for kind in cell.token_kinds}
        amount = total(self._value(kind, tokens) for kind, tokens in over.items())
        self._add("billed_again", amount, sum(over.values()), f"every token {factor} times", factor=factor)
        self.left = dict.fromkeys(self.left, 0)
        return True

    def _moves(self) -> None:
        for source, target, kind in _MOVES:
            short, over = -self.left.get(source, 0), self.left.get(target, 0)
            if short > 0 and over > 0:
                moved = min(short, over)
                amount = self._value(target, moved) - self._value(source, moved)
                says = f"{self._against(source)}; {self._against(target)}"
                self._add(kind, amount, moved, says)
                self.left[source] += moved
                self.left[target] -= moved

    def _repeated(self) -> None:
        """Requests counted once too often, whose tokens are just what is in excess."""
        cell = self.cell
        wanted = {kind: excess for kind, excess in self.left.items() if excess}
        if not wanted or min(wanted.values()) < 0 or len(cell.requests) > _MOST_COPIES:
            return
        for extra in range(1, min(cell.extra_requests, _MOST_EXTRA) + 1):
            one = {kind: divmod(excess, extra) for kind, excess in wanted.items()}
            if any(rest for _, rest in one.values()):
                continue
            for request in cell.requests:
                if request.priced is None:
                    continue
                used = {kind: span for kind, span in quantities(request.priced, cell.kinds).items() if span[1]}
                if used == {kind: (tokens, tokens) for kind, (tokens, _) in one.items()}:
                    amount = total(self._value(kind, tokens) for kind, tokens in wanted.items())
                    times = "twice" if extra == 1 else f"{extra + 1} times"
                    says = f"the excess is that of {request.billable.request_id}, billed {times}"
                    self._add("duplicates", amount, sum(wanted.values()), says, requests=extra)
                    self.left = dict.fromkeys(self.left, 0)
                    return

    def _rest(self) -> None:
        cell = self.cell
        over = {kind: excess for kind, excess in self.left.items() if excess > 0}
        under = {kind: -excess for kind, excess in self.left.items() if excess < 0}
        if over and not cell.closed:
            amount = total(self._value(kind, tokens) for kind, tokens in over.items())
            self.found.unattributed.append(Unattributed(cell=cell, tokens=sum(over.values()), amount=amount))
        elif over:
            for name, among in (("input_inflated", INPUT), ("output_inflated", ("output", "reasoning"))):
                some = {kind: tokens for kind, tokens in over.items() if kind in among}
                if some:
                    amount = total(self._value(kind, tokens) for kind, tokens in some.items())
                    self._add(name, amount, sum(some.values()), "; ".join(map(self._against, some)))
        if under:
            amount = total(self._value(kind, tokens) for kind, tokens in under.items())
            self._add("billed_less", -amount, sum(under.values()), "; ".join(map(self._against, under)))

    # ------------------------------------------------------------------------------------------------------ prices

    def _prices(self) -> None:
        tier = self.cell.tier
        for line in (*self.cell.lines, *self.cell.copies):
            if line.price is None or not line.tokens or tier is None:
                continue
            right = tier.price(line.kind)
            if right is None or right == line.price:
                continue
            if _rounded(right, line.price):
                self.found.slack += cost(abs(line.price - right), line.tokens)
                continue
            other = tier.other_peak()
            kind = "price_off" if line.price > right else "price_below_list"
            if other is not None and other.price(line.kind) == line.price:
                kind = "wrong_peak_hour" if line.price > right else "off_peak_at_peak"
            amount = cost(line.price - right, line.tokens)
            says = (
                f"{line.kind} at {plain(line.price)} a token ({line.place}), by the list {plain(right)}"
                f" ({_percent(line.price, right)})"
            )
            self._add(kind, amount, line.tokens, says)

    def _charges(self) -> None:
        """Money against the tokens it is for, where lines have no price of their own."""
        cell, tier = self.cell, self.cell.tier
        taken = total(charge.amount for charge in cell.charges)
        slack = (self.unit or Decimal(0)) * len(cell.charges)
        self.found.slack += slack
        if tier is None:
            return
        counted = [line for line in cell.lines if line.kind != "requests"]
        if counted and all(tier.price(line.kind) is not None for line in counted):
            right, whose = self._asked(counted), "its own tokens"
        else:
            right, whose = cell.amount, "the reported tokens"
        if abs(taken - right) <= slack:
            return
        where = f"{plain(taken)} charged ({cell.charges[0].place}), {plain(right)} for {whose} by the list"
        kind = "price_off" if counted else "charged_too_much"
        if taken < right:
            kind = "price_below_list"
        elif tier.other_peak() is not None and not tier.peak and abs(taken - right * tier.row.peak_factor) <= slack:
            kind, where = "wrong_peak_hour", f"{where}: the peak price, or charged more than once"
        elif right and abs(taken - right * 2) <= slack:
            kind = "charged_twice"
        elif not counted and abs(taken - self._without_hits()) <= slack:
            kind, where = "hits_as_misses", f"{where}: as if nothing had been hit"
        tokens = sum(line.tokens for line in counted)
        self._add(kind, taken - right, tokens, f"{where} ({_percent(taken, right)})")

    def _without_hits(self) -> Decimal:
        hits = sum(hit_counts(self.cell.requests))
        return self.cell.amount + self._value("miss", hits) - self._value("hit", hits)

    # ------------------------------------------------------------------------------------------------------ helpers

    def _value(self, kind: str, tokens: int) -> Decimal:
        tier = self.cell.tier
        return Decimal(0) if tier is None else cost(tier.least(kind), tokens)

    def _asked(self, lines: list[InvoiceLine]) -> Decimal:
        """What lines ask for: at their own prices, else at the list's."""
        return total(
            cost(line.price, line.tokens) if line.price is not None else self._value(line.kind, line.tokens)
            for line in lines
            if line.kind != "requests"
        )

    def _against(self, kind: str) -> str:
        least, most = self.cell.expected(kind)
        used = f"{least:,}" if most == least else f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
        return f"{kind} {used} used, {self.cell.invoiced(kind):,} billed"

    def _add(self, kind: str, amount: Decimal, tokens: int, says: str, **more: Any) -> None:
        tier = self.cell.tier
        self.found.faults.append(
            Fault(
                kind=kind,
                cell=self.cell,
                amount=amount,
                tokens=tokens,
                requests=more.pop("requests", len(self.cell.requests)),
                says=says,
                official="" if tier is None else row_text(tier),
                proof=tier is not None and tier.row.status == "official",
                **more,
            )
        )


def shifts(cells: list[Cell]) -> Iterator[tuple[Fault, Cell, Cell, str, int]]:
    """Tokens of one window and model that were billed in its dear tier and used in its cheap one.

    Yields the fault, the two cells, and the tokens of which kind to leave out of both.
    """
    for dear in cells:
        for cheap in cells:
            if dear is cheap or dear.tier is None or cheap.tier is None:
                continue
            for kind in dear.token_kinds:
                high, low = dear.tier.price(kind), cheap.tier.price(kind)
                moved = min(dear.excess(kind), -cheap.excess(kind))
                if high is None or low is None or high <= low or moved <= 0:
                    continue
                same = dear.tier.row is cheap.tier.row
                says = f"{kind}: {moved:,} tokens at {plain(high)} that cost {plain(low)}"
                yield (
                    Fault(
                        kind="wrong_peak_hour" if same else "price_off",
                        cell=cheap,
                        amount=cost(high - low, moved),
                        tokens=moved,
                        requests=len(cheap.requests),
                        says=says,
                        official=row_text(cheap.tier),
                        proof=cheap.tier.row.status == "official" and dear.closed,
                    ),
                    dear,
                    cheap,
                    kind,
                    moved,
                )


def row_text(tier: Tier) -> str:
    row = tier.row
    prices = ", ".join(
        f"{kind} {plain(price * 1_000_000)}"
        for kind in ("hit", "miss", "output")
        if (price := row.per_token(kind, peak=tier.peak)) is not None
    )
    until = "" if row.end is None else f" until {row.end:%Y-%m-%d %H:%M}"
    peak = "" if row.peak is None else " peak" if tier.peak else " off-peak"
    return (
        f"{row.model}{peak}, {row.currency} for 1M tokens: {prices} (from {row.start:%Y-%m-%d %H:%M}{until} UTC; "
        f"{row.status}: {row.source})"
    )


def hit_counts(requests: list[Asked]) -> list[int]:
    return [each.priced.usage.cached_tokens or 0 for each in requests if each.priced is not None]


def _rounded(right: Decimal, printed: Decimal) -> bool:
    """Whether `printed` is `right` with fewer decimals, however it was rounded."""
    exponent = int(printed.as_tuple().exponent)
    if not printed or exponent <= int(right.normalize().as_tuple().exponent):
        return False
    unit = Decimal(1).scaleb(exponent)
    return printed in {right.quantize(unit, rounding) for rounding in (ROUND_FLOOR, ROUND_CEILING, ROUND_HALF_EVEN)}


def _percent(got: Decimal, right: Decimal) -> str:
    if not right:
        return "where nothing is due"
    return f"{float(got / right - 1):+.4%}"


def _places(lines: list[InvoiceLine]) -> str:
    places = list(dict.fromkeys(line.place for line in lines if line.place))
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
