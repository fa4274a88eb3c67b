"""One fold over requests: what they cost, what they would have cost, and what there is to say about either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from kvbench.analysis.pricing.findings import SAYS, Finding, grouped
from kvbench.analysis.pricing.granularity import Granules
from kvbench.analysis.pricing.residuals import Residuals
from kvbench.analysis.pricing.tally import Tally, money_dict, per_million
from kvbench.errors import InputError, UsageError
from kvbench.prices.book import Book
from kvbench.prices.listing import row_dict, utc_text
from kvbench.prices.money import ZERO, Money, plain
from kvbench.prices.parts import CannotPrice, price_parts
from kvbench.prices.priced import Billable, Part, Priced, Unpriced
from kvbench.prices.pricing import At, PriceList


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests come from. duplicates: records of requests that were there already, and left out. not_sent: what
    never left, so that nobody can bill it. unreadable: records of which nothing could be read.
    host: of the endpoint they went to, where that is known. unpredicted: why requests have no predicted hits."""

    kind: str
    path: str
    notes: tuple[str, ...] = ()
    duplicates: int = 0
    not_sent: int = 0
    unreadable: tuple[Unpriced, ...] = ()
    host: str | None = None
    unpredicted: str | None = None


class PriceFold:
    """Feeds on requests; `report` tells of all of them. What is exact stays exact, whatever their order.

    at: which moment of a request decides. shift: is added to every moment, for the prices of another date. unreadable:
    records that may be requests, and have no price.
    """

    def __init__(
        self,
        prices: PriceList,
        at: At = "start",
        *,
        shift: timedelta = timedelta(0),
        unreadable: Iterable[Unpriced] = (),
    ) -> None:
        self._prices = prices
        self._books: dict[str, Book] = {book.name: book for book in prices.books}
        self._at: At = at
        self._shift = shift
        self.total = Tally()
        self.unpriced: list[Unpriced] = list(unreadable)
        self.refused = 0
        self._models: dict[str, Tally] = {}
        self._billed_as: dict[str, set[tuple[str, str]]] = {}
        self._periods = {"peak": Tally(), "off_peak": Tally()}
        self._rows: dict[tuple[str, int], tuple[Priced, Tally]] = {}
        self._currencies: Counter[str] = Counter()
        self._no_cache, self._ideal, self._off_peak = Tally(), Tally(), Tally()
        self._expected = 0
        self._straddling = 0
        self._other_moment = Money()
        self._without_end = 0
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._findings: dict[str, Finding] = {}
        self._residuals = Residuals()
        self._granules: dict[str, Granules] = {}

    def add(self, billable: Billable) -> Priced | Unpriced | None:
        """Price one more request. None: it failed without using anything, as far as is known."""
        if billable.unused:
            self.refused += 1
            return None
        moved = self._moved(billable)
        got = self._prices.price(moved, self._at)
        if isinstance(got, Unpriced):
            self.unpriced.append(got)
            return got
        self._count(got)
        self._counterfactuals(moved, got)
        self._straddle(moved, got)
        self._doubts(moved, got)
        self._residuals.add(billable, got)
        self._granules.setdefault(got.model, Granules()).add(got.usage.cached_tokens, billable.rule)
        return got

    # ------------------------------------------------------------------------------------------------- per request

    def _moved(self, billable: Billable) -> Billable:
        if not self._shift:
            return billable
        start, end = billable.start, billable.end
        return replace(
            billable,
            start=None if start is None else start + self._shift,
            end=None if end is None else end + self._shift,
        )

    def _count(self, got: Priced) -> None:
        self.total.add(got.parts)
        self._models.setdefault(got.model, Tally()).add(got.parts)
        self._billed_as.setdefault(got.model, set()).add((got.book, got.row.model))
        self._periods["peak" if got.peak else "off_peak"].add(got.parts)
        _, tally = self._rows.setdefault((got.book, id(got.row)), (got, Tally()))
        tally.add(got.parts)
        self._currencies[got.currency] += 1
        self._first = got.time if self._first is None else min(self._first, got.time)
        self._last = got.time if self._last is None else max(self._last, got.time)

    def _counterfactuals(self, billable: Billable, got: Priced) -> None:
        usage = got.usage
        none = replace(usage, cached_tokens=0, cache_write_tokens=0, cache_write_1h_tokens=None)
        self._no_cache.add(self._again(replace(billable, usage=none), got, peak=got.peak))
        self._off_peak.add(got.parts if not got.peak else self._again(billable, got, peak=False))
        ideal = got.parts
        if billable.ceiling is not None:
            self._expected += 1
            hit = min(billable.ceiling, usage.input_tokens or 0)
            rest = (usage.input_tokens or 0) - hit
            written, long = usage.cache_write_tokens, usage.cache_write_1h_tokens
            best = replace(
                usage,
                cached_tokens=hit,
                cache_write_tokens=None if written is None else min(written, rest),
                cache_write_1h_tokens=None if long is None else min(long, rest),
            )
            ideal = self._again(replace(billable, usage=best), got, peak=got.peak)
        self._ideal.add(ideal)

    def _again(self, billable: Billable, got: Priced, *, peak: bool) -> tuple[Part, ...]:
        try:
            return price_parts(billable, got.row, self._books[got.book], got.time, peak=peak)
        except CannotPrice:
            # A hit that the row has no price for: nothing is known of it, so nothing bounds it.
            return (Part(kind="input", tokens=0, most_tokens=None, amount=Money(ZERO, None)),)

    def _straddle(self, billable: Billable, got: Priced) -> None:
        if billable.start is None or billable.end is None:
            self._without_end += 1
            self._other_moment = self._other_moment.plus(got.amount)
            return
        if self._same_at(billable, got, billable.start if self._at == "end" else billable.end):
            self._other_moment = self._other_moment.plus(got.amount)
            return
        other = self._prices.price(billable, "end" if self._at == "start" else "start")
        if isinstance(other, Unpriced):
            self._finding("boundary_unknown").add(got.request_id, got.amount)
            self._other_moment = self._other_moment.plus(Money(ZERO, None))
            return
        self._other_moment = self._other_moment.plus(other.amount)
        if (other.row is got.row and other.peak == got.peak) or other.amount == got.amount:
            return
        self._straddling += 1
        if other.amount.exact is not None and got.amount.exact is not None:
            change = abs(other.amount.exact - got.amount.exact)
            tokens = sum(part.tokens for part in got.parts)
            self._finding("boundary").add(got.request_id, Money(change, change), tokens)

    def _same_at(self, billable: Billable, got: Priced, moment: datetime) -> bool:
        """Whether the same row decides, as it does for nearly all. Tools have dates of their own."""
        try:
            found = self._prices.find(billable.model, moment, got.usage, batch=billable.batch)
        except CannotPrice:
            return False
        return found.row is got.row and found.peak == got.peak and not got.usage.server_tools

    def _doubts(self, billable: Billable, got: Priced) -> None:
        usage, row = got.usage, got.row
        for part in got.parts:
            if part.amount.exact is None:
                kind = {"input": "hits_not_reported", "output": "output_open"}.get(part.kind, "write_not_split")
                most = None if part.amount.most is None else part.amount.most - part.amount.least
                self._finding(kind).add(got.request_id, Money(ZERO, most), part.tokens)
        if row.status != "official":
            self._finding("row_not_official").add(got.request_id, got.amount, sum(part.tokens for part in got.parts))
        hit, cached = row.per_token("hit", peak=got.peak), usage.cached_tokens
        if cached is not None and hit is not None:
            saved = (row.per_token("miss", peak=got.peak) or ZERO) - hit
            if billable.floor is not None and cached < billable.floor:
                short = billable.floor - cached
                self._finding("hits_below_expected").add(got.request_id, _point(saved * short), short)
            elif billable.ceiling is not None and cached > billable.ceiling:
                over = cached - billable.ceiling
                self._finding("hits_above_expected").add(got.request_id, _point(saved * over), over)
        answered = billable.response_model
        if answered is not None and answered != got.model:
            named = self._books[got.book].models_named(answered, got.time)
            if named != {row.model}:
                self._finding("other_model").add(f"{got.request_id} by {answered}", got.amount)

    def _finding(self, kind: str) -> Finding:
        return self._findings.setdefault(kind, Finding(kind, SAYS[kind]))

    # ------------------------------------------------------------------------------------------------------ report

    @property
    def amount(self) -> Money:
        """Of everything; without an upper bound where a request has no price."""
        amount = self.total.amount
        return Money(amount.least, None) if self.unpriced else amount

    @property
    def currency(self) -> str:
        """Raises UsageError where the requests are in lists of several currencies."""
        if len(self._currencies) > 1:
            counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self._currencies.items()))
            raise UsageError(
                f"the requests are billed in several currencies ({counts}), and amounts are never converted",
                hint="price them apart: one --prices BOOK, or --currency, at a time",
            )
        return next(iter(self._currencies))

    def report(self, source: Source, now: datetime) -> dict[str, Any]:
        """Plain values, for JSON and for showing. Raises InputError where not one request has a price."""
        if not self.total.requests:
            raise _nothing(source, self.unpriced, self.refused)
        currency = self.currency
        amount = self.amount
        granularity = self._granularity()
        return {
            "source": {"kind": source.kind, "path": source.path},
            "total": {"currency": currency, **money_dict(amount)},
            "by_kind": self.total.by_kind(),
            "by_model": {
                model: {
                    "requests": tally.requests,
                    "billed_as": [f"{billed} ({book})" for book, billed in sorted(self._billed_as[model])],
                    **money_dict(tally.amount),
                    "by_kind": tally.by_kind(),
                }
                for model, tally in sorted(self._models.items())
            },
            "by_period": {
                name: {"requests": tally.requests, **money_dict(tally.amount), "by_kind": tally.by_kind()}
                for name, tally in self._periods.items()
            },
            "requests": {
                "priced": self.total.requests,
                "unpriced": len(self.unpriced),
                "failed_without_usage": self.refused,
                "not_sent": source.not_sent,
                "duplicates": source.duplicates,
            },
            "first": None if self._first is None else utc_text(self._first),
            "last": None if self._last is None else utc_text(self._last),
            "input_tokens": self.total.input_tokens,
            "input_price_per_mtok": per_million(self.total.input_amount, self.total.input_tokens),
            "counterfactuals": {
                "no_cache": money_dict(self._no_cache.amount),
                "ideal_cache": {**money_dict(self._ideal.amount), "requests_with_expectation": self._expected}
                if self._expected
                else None,
                "off_peak": money_dict(self._off_peak.amount) if self._periods["peak"].requests else None,
            },
            "boundary": {
                "decided_by": self._at,
                "straddling": self._straddling,
                "without_both_times": self._without_end,
                "by_the_other": money_dict(self._other_moment),
            },
            "residuals": self._residuals.as_dict(source.unpredicted),
            "granularity": granularity,
            "rows": [self._row(got, tally, now) for got, tally in self._sorted_rows()],
            "findings": self._ranked(),
            "unpriced": grouped(self.unpriced),
            "verdict": None,
            "detectable": None,
            "notes": [*source.notes, *self._notes(source)],
        }

    def _sorted_rows(self) -> list[tuple[Priced, Tally]]:
        return sorted(self._rows.values(), key=lambda pair: (pair[0].book, pair[0].row.model, pair[0].row.start))

    def _row(self, got: Priced, tally: Tally, now: datetime) -> dict[str, Any]:
        row = row_dict(got.row, now)
        return {"book": got.book, **row, "requests": tally.requests, **money_dict(tally.amount)}

    def _granularity(self) -> dict[str, Any]:
        """By model; a rule with other steps is a finding of its own kind."""
        found = {model: granules.as_dict() for model, granules in sorted(self._granules.items())}
        for model, each in found.items():
            if each.get("differs"):
                finding = self._findings[f"granularity {model}"] = Finding(
                    "granularity_differs", f"{SAYS['granularity_differs']}: {model}: {each['differs']}"
                )
                finding.requests = each["off_the_rule"] or each["hits"]
        return found

    def _ranked(self) -> list[dict[str, Any]]:
        def money(finding: Finding) -> tuple[bool, Decimal]:
            most = finding.money.most
            return most is None, ZERO if most is None else most

        found = sorted(self._findings.values(), key=lambda finding: (money(finding), finding.kind), reverse=True)
        return [finding.dict() for finding in found]

    def _notes(self, source: Source) -> list[str]:
        notes = []
        for name in sorted({got.book for got, _ in self._rows.values()}):
            book = self._books[name]
            if source.host is not None and book.hosts and source.host not in book.hosts:
                notes.append(
                    f"the requests went to {source.host}, not to {book.provider}: this is what its list would ask"
                )
            if book.note:
                notes.append(f"{name}: {book.note}")
        return notes


def _point(amount: Decimal) -> Money:
    return Money(amount, amount)


def _nothing(source: Source, unpriced: Sequence[Unpriced], failed: int) -> InputError:
    groups = grouped(unpriced)
    if not groups:
        what = f"{failed:,} failed without using anything" if failed else "it tells of no call's usage"
        return InputError(
            f"no request that could be priced: {what}",
            path=source.path,
            hint="kvbench price --estimate TRACE   says between which amounts a trace will cost",
        )
    first = groups[0]
    more = sum(group["requests"] for group in groups[1:])
    where = ", ".join(first["first"][:3])
    return InputError(
        f"not one request has a price. {first['requests']:,} of them: {first['why']} ({where})"
        + (f"; {more:,} for other reasons" if more else ""),
        path=source.path,
        hint=_HINTS.get(first["reason"], "kvbench prices BOOK   lists what is known"),
    )


_HINTS = {
    "unknown_model": "--prices BOOK names another book, --model M prices all as one model; kvbench prices lists them",
    "ambiguous_model": "name one book by --prices",
    "no_usage": "an endpoint reports usage where it is asked to; what it does not report has no price",
    "bad_usage": "the reports contradict themselves: see usage_raw in records.jsonl, or the file's own line",
    "no_time": "without its time a request has no row; a usage file has {time, model, usage} a line",
}


def with_total(report: dict[str, Any], name: str, fold: PriceFold) -> None:
    """Add what another fold came to among the counterfactuals."""
    unpriced = {"unpriced": len(fold.unpriced)} if fold.unpriced else {}
    report["counterfactuals"][name] = (
        {**money_dict(fold.amount), **unpriced}
        if fold.total.requests
        else {
            "amount": None,
            "at_least": plain(ZERO),
            "at_most": None,
            "why": fold.unpriced[0].why if fold.unpriced else "no request",
        }
    )
