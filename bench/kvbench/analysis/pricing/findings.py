"""What there is to say about requests and their prices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvbench.analysis.pricing.tally import money_dict
from kvbench.prices.money import Money
from kvbench.prices.priced import Unpriced

SHOWN = 5
"""How many requests a finding names."""

SAYS = {
    "boundary": "the price at the request's other end is another one",
    "boundary_unknown": "at the request's other end there is no price",
    "hits_not_reported": "how much of the input was cached, or written to the cache, is not reported: it lies between "
    "all at the lowest and all at the highest price",
    "output_open": "the output was counted before its end: at least that much, at most a token for each byte of "
    "its text",
    "write_not_split": "how long what was written to the cache stays is not reported, and its price depends on that",
    "row_not_official": "the price is not from the provider's own documentation",
    "hits_below_expected": "fewer cached tokens reported than the hit rule's floor; the amount is what they cost more",
    "hits_above_expected": "more cached tokens reported than the hit rule's ceiling; the amount is what they cost less",
    "granularity_differs": "hits are not in the steps of the rule that they were predicted by",
    "other_model": "the answer names a model that is not billed as the one asked for",
}


class Finding:
    """One thing to say about some requests: how much money it is about, how many tokens, and which."""

    def __init__(self, kind: str, says: str) -> None:
        self.kind = kind
        self.says = says
        self.money = Money()
        self.tokens = 0
        self.requests = 0
        self.examples: list[str] = []

    def add(self, request_id: str, money: Money, tokens: int = 0) -> None:
        self.money = self.money.plus(money)
        self.tokens += tokens
        self.requests += 1
        if len(self.examples) < SHOWN:
            self.examples.append(request_id)

    def dict(self) -> dict[str, Any]:
        which = f" (first: {', '.join(self.examples)})" if self.examples else ""
        return {
            "kind": self.kind,
            **money_dict(self.money),
            "tokens": self.tokens,
            "requests": self.requests,
            "evidence": f"{self.says}{which}",
        }


_APART = ("bad_usage", "no_usage", "unreadable")
"""Reasons that are told apart by what is wrong; the others by model, as what they say has a time in it."""


def grouped(unpriced: Iterable[Unpriced]) -> list[dict[str, Any]]:
    """Requests without a price, by why not; the most frequent first."""
    groups: dict[tuple[str, str], list[Unpriced]] = {}
    for each in unpriced:
        detail = each.why if each.reason in _APART else each.model or ""
        groups.setdefault((each.reason, detail), []).append(each)
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "reason": reason,
            "model": members[0].model,
            "requests": len(members),
            "why": members[0].why,
            "first": [each.place or each.request_id for each in members[:SHOWN]],
        }
        for (reason, _), members in ranked
    ]
