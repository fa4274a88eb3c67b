"""Sums of prices: tokens and money by kind."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

from kvbench.prices.money import Money, plain
from kvbench.prices.priced import Part

KINDS = ("hit", "miss", "write_5m", "write_1h", "write", "input", "image", "output", "reasoning")
INPUT_KINDS = frozenset({"hit", "miss", "write_5m", "write_1h", "write", "input", "image"})


class Tally:
    """Requests, and what they cost by kind."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens: dict[str, int] = {}
        self.most_tokens: dict[str, int | None] = {}
        self.money: dict[str, Money] = {}

    def add(self, parts: tuple[Part, ...]) -> None:
        self.requests += 1
        for part in parts:
            kind = part.kind
            self.tokens[kind] = self.tokens.get(kind, 0) + part.tokens
            most = self.most_tokens.get(kind, 0)
            self.most_tokens[kind] = None if most is None or part.most_tokens is None else most + part.most_tokens
            self.money[kind] = self.money.get(kind, Money()).plus(part.amount)

    @property
    def amount(self) -> Money:
        total = Money()
        for money in self.money.values():
            total = total.plus(money)
        return total

    @property
    def input_amount(self) -> Money:
        total = Money()
        for kind in INPUT_KINDS & self.money.keys():
            total = total.plus(self.money[kind])
        return total

    @property
    def input_tokens(self) -> int:
        return sum(count for kind, count in self.tokens.items() if kind in INPUT_KINDS)

    def by_kind(self) -> dict[str, Any]:
        """Kinds in the order of a bill; tools, counted in calls, come last."""
        kinds = [kind for kind in KINDS if kind in self.money] + sorted(self.money.keys() - set(KINDS))
        return {
            kind: {
                "tokens": self.tokens[kind],
                **({} if self.most_tokens[kind] == self.tokens[kind] else {"most_tokens": self.most_tokens[kind]}),
                **money_dict(self.money[kind]),
            }
            for kind in kinds
        }


def money_dict(money: Money) -> dict[str, Any]:
    """amount is null where the price is only known to lie between at_least and at_most (null: without a bound)."""
    return {
        "amount": None if money.exact is None else plain(money.exact),
        "at_least": plain(money.least),
        "at_most": None if money.most is None else plain(money.most),
    }


def per_million(money: Money, tokens: int) -> dict[str, Any] | None:
    """Price of a million tokens, to 12 significant digits: a quotient, which may have no end."""
    if not tokens:
        return None

    def quotient(amount: Decimal) -> Decimal:
        with localcontext() as context:
            context.prec, context.rounding = 12, ROUND_HALF_EVEN
            return amount * 1_000_000 / tokens

    most = None if money.most is None else quotient(money.most)
    return money_dict(Money(quotient(money.least), most))
