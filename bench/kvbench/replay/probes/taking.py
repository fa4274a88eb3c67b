"""What an experiment will take at most, said before it starts: requests, tokens, hours and money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import ROUND_UP, Decimal

import msgspec

from kvbench.prices.money import product, total
from kvbench.prices.parts import CannotPrice
from kvbench.prices.pricing import PriceList
from kvbench.replay.budget import worst_per_token

TEXT_MARGIN_TOKENS = 64
"""By which a prompt sent as text may be longer than planned: a chat template, mostly."""
_SIGNIFICANT = 4


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """At most so much. longest_tokens: of its prompts; hours None: as long as its requests take."""

    requests: int
    input_tokens: int
    longest_tokens: int
    output_tokens: int
    hours: float | None = None
    note: str = ""

    def sentence(self) -> str:
        told = (
            f"at most {self.requests:,} requests, {self.input_tokens:,} prompt tokens, {self.output_tokens:,} of output"
        )
        told += f" and {_duration(self.hours)}" if self.hours is not None else ""
        return f"{told} ({self.note})" if self.note else told


def _duration(hours: float) -> str:
    """Two significant digits in the unit that keeps them readable."""
    seconds = hours * 3600
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if hours < 1 else f"{hours:.2g} h"


def cost_sentence(takes: Takes, prices: PriceList, model: str | None, *, as_ids: bool) -> str:
    """The most that `takes` can cost with nothing hit and at peak prices, or that no price is known, and what then."""
    now = datetime.now(UTC)
    moments = [now, now + timedelta(hours=takes.hours or 0)]
    margin = 0 if as_ids else takes.requests * TEXT_MARGIN_TOKENS
    try:
        worst = worst_per_token(prices, model, moments, [1, takes.longest_tokens + TEXT_MARGIN_TOKENS])
    except CannotPrice as error:
        why = (
            f" in {', '.join(book.name for book in prices.books)}"
            if error.reason == "unknown_model"
            else f": {error.why}"
        )
        return f"no price known for {model}{why} (--prices BOOK names another book)"
    amount = total((product(worst.input, takes.input_tokens + margin), product(worst.output, takes.output_tokens)))
    return f"{worst.currency} {_rounded_up(amount)} at most, by the book {worst.book} with nothing hit"


def _rounded_up(amount: Decimal) -> str:
    """Four significant digits, never less than the amount."""
    if not amount:
        return "0"
    step = min(Decimal(1), Decimal(1).scaleb(amount.adjusted() - _SIGNIFICANT + 1))
    shown = format(amount.quantize(step, ROUND_UP), ",f")
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
