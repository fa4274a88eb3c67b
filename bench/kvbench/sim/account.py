"""What requests cost, what is charged for them, and the balance that goes down by it, what was granted first."""

from __future__ import annotations

import math
import random
import time
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from kvbench.sim.parameters import Preset

MISREPORTS = ("input_overcount", "stream_overcount", "rounded_up")
"""Faults by which usage has more input tokens than there were."""
_MTOK = 10**6
_CENT = Decimal("0.01")


class Bill(NamedTuple):
    """Of one request: what it should cost, what was charged, and which faults made the difference."""

    price: Decimal
    charged: Decimal
    peak: bool
    faults: tuple[str, ...]


class Account:
    """Exact amounts inside, two decimals outside, cut off: a difference of two balances is off by less than 0.01."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._granted = preset.granted_balance
        self._topped_up = preset.topped_up_balance
        self._chance = random.Random(f"{preset.seed} faults")
        self._more_chance = random.Random(f"{preset.seed} faults of usage")
        self._peak = [tuple(map(_minutes, span.split("-"))) for span in preset.peak_hours_utc.split(",") if span]
        self._started_ns = time.monotonic_ns()
        self._utc_start = datetime.now(UTC) if preset.utc_start is None else datetime.fromisoformat(preset.utc_start)

    @property
    def is_available(self) -> bool:
        return self._granted + self._topped_up > 0

    @property
    def has_prices(self) -> bool:
        preset = self._preset
        return bool(preset.price_hit_per_mtok or preset.price_miss_per_mtok or preset.price_output_per_mtok)

    def draw_faults(self) -> tuple[str, ...]:
        """The faults that the next request will have."""
        preset = self._preset
        shares = {
            "hits_as_misses": preset.fault_hits_as_misses,
            "peak_price": preset.fault_peak_price,
            "charged_twice": preset.fault_charged_twice,
            "output_overcount": preset.fault_output_overcount,
        }
        # Apart, so that the faults above stay those of the seed.
        more = {
            "input_overcount": preset.fault_input_overcount,
            "stream_overcount": preset.fault_stream_overcount,
            "overrun": preset.fault_overrun,
        }
        faults = [name for name, share in shares.items() if self._chance.random() < share]
        return (*faults, *[name for name, share in more.items() if self._more_chance.random() < share])

    def overcount_tokens(self, tokens: int) -> int:
        """Tokens that an overcount adds: overcount_share of them as it is written, rounded up."""
        return math.ceil(tokens * Fraction(repr(self._preset.overcount_share)))

    def utc(self, at_ns: int) -> datetime:
        """The endpoint's date and time at a moment of this machine's monotonic clock."""
        return self._utc_start + timedelta(microseconds=(at_ns - self._started_ns) / 1000)

    def is_peak(self, at: datetime) -> bool:
        if self._preset.peak_days == "weekdays" and at.weekday() >= 5:
            return False
        minute = at.hour * 60 + at.minute
        return any(start <= minute < end for start, end in self._peak)

    def charge(
        self,
        *,
        hit_tokens: int,
        miss_tokens: int,
        output_tokens: int,
        at_ns: int,
        faults: tuple[str, ...] = (),
        overcount_tokens: int = 0,
        input_overcount_tokens: int = 0,
    ) -> Bill:
        """Take the price of one request; the last one that is let in may overdraw. Of `faults` the bill has those that
        changed the charge: a peak price in peak hours is none."""
        peak = self.is_peak(self.utc(at_ns))
        price = self._price(hit_tokens, miss_tokens, output_tokens, peak=peak)
        charged, times, at_peak_price, effective = price, 1, peak, []
        for fault in faults:
            before = charged
            if fault == "hits_as_misses":
                hit_tokens, miss_tokens = 0, hit_tokens + miss_tokens
            elif fault == "peak_price":
                at_peak_price = True
            elif fault == "output_overcount":
                output_tokens += overcount_tokens
            elif fault in MISREPORTS:
                miss_tokens += input_overcount_tokens
                input_overcount_tokens = 0
            elif fault == "charged_twice":
                times = 2
            charged = times * self._price(hit_tokens, miss_tokens, output_tokens, peak=at_peak_price)
            if charged != before:
                effective.append(fault)
        of_granted = min(charged, self._granted)
        self._granted -= of_granted
        self._topped_up -= charged - of_granted
        return Bill(price, charged, peak, tuple(effective))

    def balance(self) -> dict[str, Any]:
        """The body of GET /user/balance."""
        info = {
            "currency": self._preset.currency,
            "total_balance": _shown(self._granted + self._topped_up),
            "granted_balance": _shown(self._granted),
            "topped_up_balance": _shown(self._topped_up),
        }
        return {"is_available": self.is_available, "balance_infos": [info]}

    def _price(self, hit_tokens: int, miss_tokens: int, output_tokens: int, *, peak: bool) -> Decimal:
        preset = self._preset
        price = (
            hit_tokens * preset.price_hit_per_mtok
            + miss_tokens * preset.price_miss_per_mtok
            + output_tokens * preset.price_output_per_mtok
        ) / _MTOK
        return price * preset.peak_factor if peak else price


def _minutes(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return int(hours) * 60 + int(minutes)


def _shown(amount: Decimal) -> str:
    return str(amount.quantize(_CENT, ROUND_FLOOR))
