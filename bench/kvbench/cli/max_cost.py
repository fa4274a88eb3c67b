"""--max-cost, which more than one command has."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.prices.pricing import PriceList
    from kvbench.replay.budget import Budget


def spending_limit(max_cost: str | None, prices: PriceList) -> Budget | None:
    """UsageError for what is no amount above 0."""
    if max_cost is None:
        return None
    from kvbench.replay.budget import Budget

    try:
        limit = Decimal(max_cost)
    except InvalidOperation:
        limit = Decimal(0)
    if not limit.is_finite() or limit <= 0:
        raise UsageError(f"--max-cost {max_cost}: not an amount above 0", hint="as --max-cost 2.50")
    return Budget(prices, limit)
