"""A run's limit on what it may cost: every attempt's worst price is set aside before it leaves, and settled after it.

What an attempt can cost at most is known before it is sent: a token is no less than a byte of its body (token ids are
counted) but for what a chat template adds, nothing of it may be hit, and the answer has max_tokens, all at the peak
price where there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from kvbench.errors import ConfigError, UsageError
from kvbench.model import Record, Usage, Warning
from kvbench.prices.book import PriceRow
from kvbench.prices.money import PER_M, ZERO, plain, product, total
from kvbench.prices.parts import CannotPrice
from kvbench.prices.priced import Billable, Priced
from kvbench.prices.pricing import At, PriceList
from kvbench.usage import normalise

TEMPLATE_TOKENS = 512
"""What a chat template may add beyond the bytes of the body: prose about tools, mostly. Assumed, not known."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)


class Budget:
    """At most `limit`, in the one currency of the books.

    Raises UsageError where the books have several. Requests are priced by their start and by their end, whichever is
    more.
    """

    def __init__(self, prices: PriceList, limit: Decimal, now: Callable[[], datetime] = _now) -> None:
        currencies = {prices.currency or book.currency for book in prices.books}
        if len(currencies) > 1:
            raise UsageError(
                f"--max-cost: the price books are in several currencies ({', '.join(sorted(currencies))})",
                hint="name one book by --prices",
            )
        self.currency = currencies.pop()
        self.limit = limit
        self.spent = ZERO
        """What the attempts so far can have cost at most."""
        self.zero_unix_ns = 0
        """When the clock of the records to come began."""
        self.used_up = False
        self._reserved = ZERO
        self._waiting: list[asyncio.Future[None]] = []
        self._prices = prices
        self._now = now

    async def reserve(self, body: dict[str, Any]) -> Decimal | None:
        """Set aside what a request with this body can cost, once what is in flight leaves room for it; None where the
        limit might be passed by it all the same.

        Raises ConfigError where its price, or its size, has no bound.
        """
        worst = self._worst(body)
        while total((self.spent, self._reserved, worst)) > self.limit:
            if self.used_up or not self._reserved or total((self.spent, worst)) > self.limit:
                self.used_up = True
                return None
            settled = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled
        self._reserved = total((self._reserved, worst))
        return worst

    def settle(self, reserved: Decimal, record: Record) -> None:
        """Replace what was set aside by what the attempt cost; what cannot be priced keeps its worst."""
        self.spent = total((self.spent, self._cost(reserved, record)))
        self.release(reserved)

    def release(self, reserved: Decimal | None) -> None:
        """What was set aside is free again, for those who wait for it."""
        if reserved is not None:
            self._reserved = total((self._reserved, -reserved))
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)

    def described(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "amount": plain(self.limit),
            "currency": self.currency,
            "books": [book.name for book in self._prices.books],
        }

    def warnings(self) -> list[Warning]:
        if not self.used_up:
            return []
        spent = total((self.spent, self._reserved))
        return [
            Warning(
                code="max_cost",
                message=f"the run was stopped by --max-cost {plain(self.limit)}: it cost at most {self.currency} "
                f"{plain(spent)}, and the next request might have passed the limit",
                advice="the trace was not replayed to its end; raise the limit, or replay less of it",
            )
        ]

    def _cost(self, reserved: Decimal, record: Record) -> Decimal:
        clock = record.clock
        if clock.upload_start is None and clock.sent is None:
            return ZERO
        usage = record.usage if record.usage_raw is None else normalise(record.usage_raw)
        refused = not record.ok and record.http_status is not None and record.http_status >= 400
        if refused and usage.input_tokens is None and usage.problem is None:
            return ZERO
        zero = _EPOCH + timedelta(microseconds=self.zero_unix_ns / 1000)
        sent_ns = clock.upload_start if clock.upload_start is not None else clock.sent
        assert sent_ns is not None
        billable = Billable(
            request_id=record.request_id,
            model=record.request_model,
            usage=usage,
            start=zero + timedelta(microseconds=sent_ns / 1000),
            end=None if clock.end is None else zero + timedelta(microseconds=clock.end / 1000),
        )
        ends: tuple[At, At] = ("start", "end")
        priced = [self._prices.price(billable, at) for at in ends]
        amounts = [got.amount.most for got in priced if isinstance(got, Priced)]
        known = [amount for amount in amounts if amount is not None]
        return max(known) if len(known) == len(priced) else max([reserved, *known])

    def _worst(self, body: dict[str, Any]) -> Decimal:
        model = str(body.get("model") or "")
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            tokens = len(prompt)
        else:
            # Schemas and the like are part of a prompt too; a number or a word is no text.
            content = {
                name: value for name, value in body.items() if isinstance(value, list | dict) or name == "prompt"
            }
            raw = msgspec.json.encode(content)
            if b'"image_url"' in raw:
                raise ConfigError("--max-cost: what an image costs is not known before it is sent")
            tokens = len(raw) + TEMPLATE_TOKENS
        output = body.get("max_tokens", body.get("max_completion_tokens"))
        if type(output) is not int:
            raise ConfigError(
                "--max-cost: a turn says no output length, so nothing bounds what its answer costs",
                hint="a trace with output_tokens on every turn, and --output recorded, can be bounded",
            )
        answers = body.get("n", 1)
        if type(answers) is not int or answers < 1 or "best_of" in body:
            raise ConfigError("--max-cost: how many answers a request asks for is not known (n, best_of)")
        tier = body.get("service_tier")
        worst = self._per_token(model, tokens, tier if isinstance(tier, str) else None)
        return total((product(worst.input, tokens), product(worst.output, output, answers)))

    def check(self, model: str | None) -> None:
        """ConfigError where a request to this model would have no bound."""
        self._per_token(model, 1)

    def _per_token(self, model: str | None, input_tokens: int, tier: str | None = None) -> WorstPrice:
        try:
            return worst_per_token(self._prices, model, [self._now()], [input_tokens], tier)
        except CannotPrice as error:
            raise ConfigError(
                f"--max-cost: {error.why}", hint="--prices BOOK names another book; kvbench prices lists them"
            ) from None


class WorstPrice(NamedTuple):
    """Most that a token can cost, in `currency` by the book named."""

    input: Decimal
    output: Decimal
    currency: str
    book: str


def worst_per_token(
    prices: PriceList,
    model: str | None,
    moments: Sequence[datetime],
    input_tokens: Sequence[int],
    tier: str | None = None,
) -> WorstPrice:
    """The dearest price of prompts of such lengths at any of the moments: no hits, peak hours. Raises CannotPrice."""
    found = [
        prices.find(model, moment, Usage(input_tokens=tokens, service_tier=tier))
        for moment in moments
        for tokens in input_tokens
    ]
    return WorstPrice(
        product(max(_dearest(each.row, _INPUT) for each in found), PER_M),
        product(max(_dearest(each.row, _OUTPUT) for each in found), PER_M),
        found[0].row.currency,
        found[0].book.name,
    )


_INPUT = ("miss", "hit", "write_5m", "write_1h", "image")
_OUTPUT = ("output", "reasoning")


def _dearest(row: PriceRow, kinds: tuple[str, ...]) -> Decimal:
    prices: list[Decimal] = [price for kind in kinds if (price := getattr(row, kind)) is not None]
    return product(max(prices), row.peak_factor)
