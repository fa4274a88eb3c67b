"""An account's balance before and after a run (DeepSeek's GET /user/balance), and what the two say was spent.

    {"is_available": true, "balance_infos": [{"currency": "USD", "total_balance": "110.00",
                                              "granted_balance": "10.00", "topped_up_balance": "100.00"}]}

Amounts are texts with two decimals; they are never floats here, and currencies are never converted into one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from kvbench.model import Spent

PATH = "/user/balance"
ROUNDING = Decimal("0.01")
"""What one reading can be off by: whether the API rounds up, down or to the nearest is not documented."""

Balances = Mapping[str, Decimal]
"""Total balance (granted and topped up) by currency."""


def read_balances(value: Any) -> Balances:
    """Total balances by currency out of the API's object; ValueError where it is not such an object."""
    infos = value.get("balance_infos") if isinstance(value, dict) else None
    if not isinstance(infos, list) or not infos:
        raise ValueError("no balance_infos in the answer")
    found: dict[str, Decimal] = {}
    for info in infos:
        currency = info.get("currency") if isinstance(info, dict) else None
        if not isinstance(currency, str) or not currency:
            raise ValueError("a balance without a currency")
        if currency in found:
            raise ValueError(f"two balances in {currency}")
        found[currency] = _amount(info.get("total_balance"))
    return found


def _amount(value: Any) -> Decimal:
    if not isinstance(value, str):
        raise ValueError("total_balance is not a text")
    try:
        amount = Decimal(value)
    except InvalidOperation:
        raise ValueError(f"total_balance {value[:40]!r} is no amount") from None
    if not amount.is_finite():
        raise ValueError(f"total_balance {value[:40]!r} is no amount")
    return amount


def spent(before: Balances | None, after: Balances | None) -> tuple[Spent, ...] | None:
    """What was spent in between, by currency; None where the balance was read at neither end.

    before - after, with ROUNDING off at each end and never below 0. A balance that went up by more than that was
    topped up meanwhile, and bounds nothing.
    """
    if before is None and after is None:
        return None
    return tuple(
        _spent(currency, (before or {}).get(currency), (after or {}).get(currency))
        for currency in dict.fromkeys([*(before or ()), *(after or ())])
    )


def _spent(currency: str, before: Decimal | None, after: Decimal | None) -> Spent:
    if before is None or after is None or before - after + 2 * ROUNDING < 0:
        return Spent(currency=currency, before=before, after=after)
    difference = before - after
    return Spent(
        currency=currency,
        before=before,
        after=after,
        at_least=max(Decimal("0.00"), difference - 2 * ROUNDING),
        at_most=difference + 2 * ROUNDING,
    )
