"""What a run cost by the account's balance, which has two decimals: a bound, not a bill."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from kvbench.errors import UsageError
from kvbench.model import Spent
from kvbench.prices.money import plain

WORST = Decimal("0.04")
"""Each reading is off by up to 0.01, and so is what is made of it: a fault above this is always seen."""
CONFIRMS_FROM = Decimal("0.05")
"""The largest share of the bill that may go unseen where the balance is said to confirm it."""


def against_balance(
    report: dict[str, Any], balance: Sequence[Spent] | None, *, dedicated: bool, incomplete: str | None = None
) -> dict[str, Any]:
    """The price report with a verdict by the balance. incomplete: why requests may be missing on our side. Raises
    UsageError where there is no balance to go by."""
    currency = report["total"]["currency"]
    spent = next((each for each in balance or () if each.currency == currency), None)
    if spent is None:
        others = ", ".join(each.currency for each in balance or ())
        raise UsageError(
            f"the run has no balance in {currency}" + (f"; it has one in {others}" if others else ""),
            hint="--currency, or a run with `balance = true` in its endpoint's TOML, or --invoice FILE",
        )
    least = Decimal(report["total"]["at_least"])
    most = None if report["total"]["at_most"] is None else Decimal(report["total"]["at_most"])
    weak = "a price row is not the provider's own word"
    official = all(row["status"] == "official" for row in report["rows"])
    doubts = [*([incomplete] if incomplete is not None else []), *([] if official else [weak])]
    verdict, reasons, findings = _verdict(spent, least, most, dedicated, doubts)
    share = None if not least else WORST / least
    return report | {
        "doubts": report["findings"],
        "findings": findings,
        "verdict": verdict,
        "verdict_reasons": reasons,
        "detectable": {
            "amount": plain(WORST),
            "currency": currency,
            "tokens": None,
            "by_fault": {},
            "share": None if share is None else float(share),
            "to_see_less": f"a fault of 1% is seen where the run costs {currency} 4.00 or more; an invoice shows less",
        },
        "bill": {
            "format": "balance before and after",
            "currency": currency,
            "before": _text(spent.before),
            "after": _text(spent.after),
            "at_least": _text(spent.at_least),
            "at_most": _text(spent.at_most),
        },
    }


def beside_invoice(report: dict[str, Any], balance: Sequence[Spent] | None) -> dict[str, Any] | None:
    """What the account's balance says to a bill that an invoice was held against; None where it was not read. No part
    of the verdict: others' traffic, and charges still to come, are in a balance too."""
    spent = next((each for each in balance or () if each.currency == report["total"]["currency"]), None)
    if spent is None:
        return None
    asked = report["bill"].get("invoiced")
    told: dict[str, Any] = {
        "before": _text(spent.before),
        "after": _text(spent.after),
        "at_least": _text(spent.at_least),
        "at_most": _text(spent.at_most),
    }
    if spent.at_least is None or spent.at_most is None or asked is None:
        return told | {"holds_the_invoice": None, "holds_the_price": None}
    least, most = report["total"]["at_least"], report["total"]["at_most"]
    return told | {
        "holds_the_invoice": spent.at_least <= Decimal(asked) <= spent.at_most,
        "holds_the_price": Decimal(least) <= spent.at_most and (most is None or spent.at_least <= Decimal(most)),
    }


def _verdict(
    spent: Spent, least: Decimal, most: Decimal | None, dedicated: bool, doubts: list[str]
) -> tuple[str, list[str], list[dict[str, Any]]]:
    if spent.at_least is None or spent.at_most is None:
        return "cannot tell", ["the balance was not read at both ends, or went up"], []
    between = f"the balance fell by {plain(spent.at_least)} to {plain(spent.at_most)}"
    if most is None:
        return "cannot tell", [f"{between}, and some requests have no price"], []
    if spent.at_least > most:
        over = spent.at_least - most
        says = f"{between}, at least {plain(over)} more than the requests cost"
        finding = {
            "kind": "balance_fell_more",
            "amount": plain(over),
            "at_least": plain(over),
            "at_most": plain(spent.at_most - least),
            "tokens": 0,
            "requests": 0,
            "evidence": says,
            "proof": dedicated and not doubts,
        }
        if doubts:
            return "cannot tell", [f"{says}; {'; '.join(doubts)}"], [finding]
        if dedicated:
            return "disputed", [says], [finding]
        return "cannot tell", [f"{says}; other traffic of the account may be in it"], [finding]
    if spent.at_most < least:
        return "cannot tell", [f"{between}, less than the requests cost: charges may still be to come"], []
    if not least or WORST / least > CONFIRMS_FROM:
        return "cannot tell", [f"{between}: two decimals cannot tell a bill of {plain(most)} from another"], []
    return "confirmed", [f"{between}, which holds the price"], []


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else plain(amount)
