"""Every boundary of DeepSeek's tariffs, a second to each side, by a table written by hand from the published lists.

Each request has 5M hit, 3M missed and 1M output tokens. What that costs, added up by hand (5 hit + 3 miss + output):

    Flash USD  A 5x0.028 + 3x0.14 + 0.28 = 0.84     B 5x0.0028 + 3x0.14 + 0.28 = 0.714
               C 5x0.007 + 3x0.22 + 0.66 = 1.355    D 5x0.003 + 3x0.15 + 0.60 = 1.065     peak: twice
    Flash CNY  C 5x0.05 + 3x1.5 + 4.5 = 9.25        D 5x0.02 + 3x1 + 4 = 7.1
    Pro USD    A 5x0.145 + 3x1.74 + 3.48 = 9.425    B 5x0.003625 + 3x0.435 + 0.87 = 2.193125
               C 5x0.022 + 3x0.66 + 1.98 = 4.07     Pro CNY C 5x0.15 + 3x4.5 + 13.5 = 27.75
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest

from kvbench.model import Usage
from kvbench.prices.load import load_book
from kvbench.prices.priced import Billable, Priced, Unpriced
from kvbench.prices.pricing import PriceList

USAGE = Usage(input_tokens=8_000_000, cached_tokens=5_000_000, output_tokens=1_000_000)
FLASH = ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
A = ("0.84", None, "9.425", None)
B = ("0.714", None, "2.193125", None)
C = ("1.355", "9.25", "4.07", "27.75")
C_PEAK = ("2.71", "18.5", "8.14", "55.5")
D = ("1.065", "7.1", "4.07", "27.75")
D_PEAK = ("2.13", "14.2", "8.14", "55.5")
NONE = (None, None, None, None)
"""Flash in USD and CNY, Pro in USD and CNY; None: refused."""

MOMENTS = [
    ("2026-04-23T23:59:59", NONE),
    ("2026-04-24T00:00:00", A),
    ("2026-04-24T00:00:01", A),
    ("2026-04-26T12:14:59", A),
    ("2026-04-26T12:15:00", B),
    ("2026-04-26T12:15:01", B),
    ("2026-08-14T02:00:00", B),  # a Friday inside the later windows: there was no peak price yet
    ("2026-08-16T15:59:59", B),
    ("2026-08-16T16:00:00", C),
    ("2026-08-16T16:00:01", C),
    ("2026-08-17T00:59:59", C),  # Monday
    ("2026-08-17T01:00:00", C_PEAK),
    ("2026-08-17T01:00:01", C_PEAK),
    ("2026-08-17T03:59:59", C_PEAK),
    ("2026-08-17T04:00:00", C),
    ("2026-08-17T05:59:59", C),
    ("2026-08-17T06:00:00", C_PEAK),
    ("2026-08-17T09:59:59", C_PEAK),
    ("2026-08-17T10:00:00", C),
    ("2026-08-22T00:59:59", C),  # the Saturday that was still charged
    ("2026-08-22T01:00:00", C_PEAK),
    ("2026-08-22T03:59:59", C_PEAK),
    ("2026-08-22T04:00:00", C),
    ("2026-08-22T05:59:59", C),
    ("2026-08-22T06:00:00", C_PEAK),
    ("2026-08-22T09:59:59", C_PEAK),
    ("2026-08-22T10:00:00", C),
    ("2026-08-22T15:59:59", C),
    ("2026-08-22T16:00:00", C),
    ("2026-08-23T01:00:00", C),  # Sunday
    ("2026-08-23T06:30:00", C),
    ("2026-08-24T00:59:59", C),  # Monday
    ("2026-08-24T01:00:00", C_PEAK),
    ("2026-08-29T02:00:00", C),  # Saturday
    ("2026-09-10T03:59:59", C_PEAK),  # Thursday: the new list begins as a window ends
    ("2026-09-10T04:00:00", D),
    ("2026-09-10T04:00:01", D),
    ("2026-09-10T06:00:00", D_PEAK),
    ("2026-09-11T09:59:59", D_PEAK),  # Friday
    ("2026-09-11T10:00:00", D),
    ("2026-09-12T02:00:00", D),  # Saturday
    ("2026-09-20T02:00:00", D),  # a Sunday that is worked for the holiday
    ("2026-09-24T09:59:59", D_PEAK),
    ("2026-09-25T00:59:59", D),
    ("2026-09-25T01:00:00", D),  # Friday, Mid-Autumn
    ("2026-09-25T09:59:59", D),
    ("2026-09-28T01:00:00", D_PEAK),  # Monday after it
    ("2026-09-30T09:59:59", D_PEAK),
    ("2026-10-01T01:00:00", D),  # National Day, Thursday to Wednesday
    ("2026-10-05T06:00:00", D),
    ("2026-10-07T09:59:59", D),
    ("2026-10-08T00:59:59", D),
    ("2026-10-08T01:00:00", D_PEAK),
    ("2026-10-10T02:00:00", D),  # a Saturday that is worked for the holiday
    ("2026-12-31T09:59:59", D_PEAK),
    ("2026-12-31T10:00:00", D),
    ("2027-01-01T00:59:59", D),
    ("2027-01-01T01:00:00", NONE),  # a Friday in a window, and nobody has said which days of 2027 are holidays
    ("2027-01-02T02:00:00", D),  # a Saturday is off-peak whatever they say
]
CASES = [
    (moment, model, currency, expected)
    for moment, (flash_usd, flash_cny, pro_usd, pro_cny) in MOMENTS
    for model, currency, expected in (
        *((name, "USD", flash_usd) for name in FLASH),
        *((name, "CNY", flash_cny) for name in FLASH[:2]),
        ("deepseek-v4-pro", "USD", pro_usd),
        ("deepseek-v4-pro", "CNY", pro_cny),
    )
]
LISTS = {currency: PriceList([load_book("deepseek")], currency) for currency in ("USD", "CNY")}


def test_there_are_enough_cases() -> None:
    assert len(CASES) == 413
    assert len(set(CASES)) == 413


@pytest.mark.parametrize(("moment", "model", "currency", "expected"), CASES)
def test_price(moment: str, model: str, currency: str, expected: str | None) -> None:
    start = datetime.fromisoformat(f"{moment}+00:00")
    got = LISTS[currency].price(Billable(request_id="r", model=model, usage=USAGE, start=start))
    if expected is None:
        assert isinstance(got, Unpriced)
        assert got.reason in ("no_row", "holidays_unknown")
    else:
        assert isinstance(got, Priced)
        assert (got.amount.exact, got.currency) == (Decimal(expected), currency)
