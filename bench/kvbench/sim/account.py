"""The balance behind a key: goes down by the price of what was used, what was granted first (dialect deepseek)."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import Any

from kvbench.sim.presets import Preset

_MTOK = 10**6
_CENT = Decimal("0.01")


class Account:
    """Exact amounts inside, two decimals outside, cut off: a difference of two balances is off by less than 0.01."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._granted = preset.granted_balance
        self._topped_up = preset.topped_up_balance

    @property
    def is_available(self) -> bool:
        return self._granted + self._topped_up > 0

    def charge(self, *, hit_tokens: int, miss_tokens: int, output_tokens: int) -> None:
        """Take the price of one request; the last one that is let in may overdraw."""
        preset = self._preset
        price = (
            hit_tokens * preset.price_hit_per_mtok
            + miss_tokens * preset.price_miss_per_mtok
            + output_tokens * preset.price_output_per_mtok
        ) / _MTOK
        of_granted = min(price, self._granted)
        self._granted -= of_granted
        self._topped_up -= price - of_granted

    def balance(self) -> dict[str, Any]:
        """The body of GET /user/balance."""
        info = {
            "currency": self._preset.currency,
            "total_balance": _shown(self._granted + self._topped_up),
            "granted_balance": _shown(self._granted),
            "topped_up_balance": _shown(self._topped_up),
        }
        return {"is_available": self.is_available, "balance_infos": [info]}


def _shown(amount: Decimal) -> str:
    return str(amount.quantize(_CENT, ROUND_FLOOR))
