"""A hard cap on what a check may cost, kept by reserving the worst case before each request."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

HARD_CAP_USD = Decimal("0.20")

MISS_USD_PER_MTOK = Decimal("0.44")
OUTPUT_USD_PER_MTOK = Decimal("1.32")
"""The dearest prices that deepseek-flash ever had: those from 2026-08-16 16:00 UTC, at peak (twice 0.22 and 0.66)."""

TEMPLATE_TOKENS = 64
"""More than a chat template adds to a message."""


class CapReached(Exception):
    """The next request could cost more than is left; nothing was sent."""


def worst_usd(body: dict[str, Any]) -> Decimal:
    """What a request can cost at most: a token stands for at least one byte, none of them is cached, and the answer is
    as long as it may be."""
    prompt = len(msgspec.json.encode(body["messages"])) + TEMPLATE_TOKENS * (len(body["messages"]) + 1)
    return usd(prompt, body["max_tokens"])


def usd(input_tokens: int, output_tokens: int) -> Decimal:
    return (input_tokens * MISS_USD_PER_MTOK + output_tokens * OUTPUT_USD_PER_MTOK) / 1_000_000


class Budget:
    """`reserve` before a request, `settle` after it. `used_usd` is an upper bound on what was billed so far."""

    def __init__(self, cap_usd: Decimal = HARD_CAP_USD) -> None:
        if not 0 < cap_usd <= HARD_CAP_USD:
            raise ValueError(f"the cap is above 0 and at most {HARD_CAP_USD} USD, not {cap_usd}")
        self.cap_usd = cap_usd
        self.used_usd = Decimal(0)
        self.requests = 0

    def reserve(self, body: dict[str, Any]) -> Decimal:
        """Set the worst case aside; CapReached where it does not fit under the cap."""
        worst = worst_usd(body)
        if self.used_usd + worst > self.cap_usd:
            raise CapReached(
                f"{self.requests} requests cost up to {self.used_usd:.4f} USD; the next could cost {worst:.4f}, and "
                f"the cap is {self.cap_usd} USD"
            )
        self.used_usd += worst
        self.requests += 1
        return worst

    def settle(self, reserved: Decimal, input_tokens: int | None, output_tokens: int | None) -> None:
        """Take what was reported (hits as misses, at the dearest price) for what was reserved. A request whose usage
        is not known stays at its worst case."""
        if input_tokens is not None and output_tokens is not None:
            self.used_usd += usd(input_tokens, output_tokens) - reserved
