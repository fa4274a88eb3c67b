"""A usage report by kind, each at its row's price: exact where the report says all, an interval where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

from kvbench.model import Usage
from kvbench.prices.book import Book, PriceRow
from kvbench.prices.money import Money, point, product
from kvbench.prices.priced import Billable, Part, Reason

_PER_1000 = Decimal("0.001")


class CannotPrice(Exception):
    """Why a request has no price."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why


def check_usage(usage: Usage) -> None:
    """Raises CannotPrice for a report that does not say what was used, or that cannot be."""
    if usage.problem is not None:
        raise CannotPrice("bad_usage", usage.problem)
    missing = [name for name in ("input_tokens", "output_tokens") if getattr(usage, name) is None]
    if missing:
        raise CannotPrice("no_usage", f"{' and '.join(missing)} not reported")
    if usage.input_tokens == 0:
        raise CannotPrice("no_usage", "input_tokens is 0, which no prompt has: a placeholder for what was not reported")


def price_parts(billable: Billable, row: PriceRow, book: Book, moment: datetime, *, peak: bool) -> tuple[Part, ...]:
    """All kinds that were used. Raises CannotPrice where the row, or the book's tools, have no price for one."""
    parts = _Parts(row, peak)
    return (
        *parts.input(billable.usage),
        *parts.output(billable),
        *_tools(billable.usage, row, book, moment),
    )


class _Parts:
    def __init__(self, row: PriceRow, peak: bool) -> None:
        self._row = row
        self._peak = peak

    def input(self, usage: Usage) -> Iterator[Part]:
        tokens, cached, row = usage.input_tokens or 0, usage.cached_tokens, self._row
        if cached is None and row.hit is None:
            cached = 0  # Nothing is cheaper for having been cached.
        pays_writes = not row.write_as_miss and (row.write_5m is not None or row.write_1h is not None)
        written = usage.cache_write_tokens
        if row.write_as_miss:
            written = 0
        elif not pays_writes and written:
            raise self._missing("tokens written to the cache", "write_5m, write_1h")
        elif not pays_writes:
            written = 0
        rest = tokens - (cached or 0) - (written or 0)
        if rest < 0:
            raise CannotPrice(
                "bad_usage", f"cached {cached} + written {written} tokens are more than the input, {tokens}"
            )
        if cached:
            yield self._part("hit", cached)
        if written:
            yield from self._written(written, usage.cache_write_1h_tokens)
        if cached is None or written is None:
            yield self._untold(rest, cached is None, written is None)
            return
        image = usage.image_tokens if row.image is not None else None
        if image:
            if cached or image > rest:
                raise CannotPrice("no_price", f"which of {cached} cached tokens are of images is not reported")
            yield self._part("image", image)
            rest -= image
        if rest:
            yield self._part("miss", rest)

    def _written(self, written: int, long: int | None) -> Iterator[Part]:
        row = self._row
        prices = {price for price in (row.write_5m, row.write_1h) if price is not None}
        if long is None:
            most = max(prices)
            kind = "write_5m" if row.write_1h is None else "write_1h" if row.write_5m is None else "write"
            yield Part(
                kind=kind,
                tokens=written,
                most_tokens=written,
                amount=self._between(written, min(prices), written, most),
            )
            return
        for kind, count in (("write_5m", written - long), ("write_1h", long)):
            if count:
                yield self._part(kind, count)

    def _untold(self, tokens: int, hits: bool, writes: bool) -> Part:
        """Input of which it is not reported how much was hit, or written."""
        row = self._row
        prices = [row.miss]
        if hits and row.hit is not None:
            prices.append(row.hit)
        if writes:
            prices += [price for price in (row.write_5m, row.write_1h) if price is not None]
        amount = self._between(tokens, min(prices), tokens, max(prices))
        return Part(kind="input", tokens=tokens, most_tokens=tokens, amount=amount)

    def output(self, billable: Billable) -> Iterator[Part]:
        row, usage = self._row, billable.usage
        tokens, reasoning = usage.output_tokens or 0, usage.reasoning_tokens
        least = most = row.output
        if row.reasoning is not None:
            if reasoning is not None and not billable.output_open:
                if reasoning:
                    yield self._part("reasoning", reasoning)
                if tokens > reasoning:
                    yield self._part("output", tokens - reasoning)
                return
            least, most = min(row.output, row.reasoning), max(row.output, row.reasoning)
        if billable.output_open:
            bound = None if billable.output_most is None else max(billable.output_most, tokens)
            amount = self._between(tokens, least, bound, most)
            yield Part(kind="output", tokens=tokens, most_tokens=bound, amount=amount)
        elif tokens:
            amount = self._between(tokens, least, tokens, most)
            yield Part(kind="output", tokens=tokens, most_tokens=tokens, amount=amount)

    def _part(self, kind: str, tokens: int) -> Part:
        price = self._row.per_token(kind, peak=self._peak)
        if price is None:
            raise self._missing(f"{kind} tokens", kind)
        return Part(kind=kind, tokens=tokens, most_tokens=tokens, amount=point(product(price, tokens)))

    def _between(self, tokens: int, low: Decimal, most_tokens: int | None, high: Decimal) -> Money:
        factor = self._row.peak_factor if self._peak else Decimal(1)
        million = Decimal("0.000001")
        least = product(low, factor, million, tokens)
        return Money(least, None if most_tokens is None else product(high, factor, million, most_tokens))

    def _missing(self, what: str, fields: str) -> CannotPrice:
        row = self._row
        return CannotPrice(
            "no_price",
            f"{what} were reported, and the {row.currency} row of {row.model} from {row.start:%Y-%m-%d} has no price "
            f"for them ({fields})",
        )


def _tools(usage: Usage, row: PriceRow, book: Book, moment: datetime) -> Iterator[Part]:
    for name, calls in sorted(usage.server_tools.items()):
        listed = [tool for tool in book.tools if name in tool.names]
        price = next((tool for tool in listed if tool.currency == row.currency and tool.holds(moment)), None)
        if price is None:
            known = ", ".join(f"{tool.currency} from {tool.start:%Y-%m-%d %H:%M}" for tool in listed)
            raise CannotPrice(
                "no_price",
                f"{calls} calls of the server tool {name}: no price in {row.currency} at {moment:%Y-%m-%d %H:%M} "
                + (f"(known: {known})" if known else "(the book does not have it)"),
            )
        amount = point(product(price.per_1000, _PER_1000, calls))
        yield Part(kind=f"tool:{price.name}", tokens=calls, most_tokens=calls, amount=amount)
