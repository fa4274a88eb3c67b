"""Prices, peak hours and billing faults, worked out by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from kvbench.sim.account import Account, Bill
from kvbench.sim.settings import resolve_preset

PRICES = {"price_hit_per_mtok": 1, "price_miss_per_mtok": 10, "price_output_per_mtok": 100, "topped_up_balance": 1000}
SATURDAY = "2026-11-28T12:00:00Z"


def account(**settings: Any) -> Account:
    return Account(resolve_preset("deepseek-api", {**PRICES, "granted_balance": 0, "utc_start": SATURDAY, **settings}))


def charge(account: Account, *faults: str, overcount_tokens: int = 0) -> Bill:
    """600,000 tokens hit, 400,000 missed, 10,000 of output: 0.6 + 4 + 1."""
    return account.charge(
        hit_tokens=600_000,
        miss_tokens=400_000,
        output_tokens=10_000,
        at_ns=account._started_ns,
        faults=faults,
        overcount_tokens=overcount_tokens,
    )


@pytest.mark.parametrize(
    ("faults", "overcount_tokens", "charged"),
    [
        ((), 0, "5.6"),
        (("hits_as_misses",), 0, "11"),
        (("peak_price",), 0, "11.2"),
        (("charged_twice",), 0, "11.2"),
        (("output_overcount",), 1000, "5.7"),
        (("hits_as_misses", "peak_price", "charged_twice", "output_overcount"), 1000, "44.4"),
    ],
)
def test_each_fault_by_hand(faults: tuple[str, ...], overcount_tokens: int, charged: str) -> None:
    own = account()
    bill = charge(own, *faults, overcount_tokens=overcount_tokens)
    assert bill == (Decimal("5.6"), Decimal(charged), False, faults)
    balance = own.balance()["balance_infos"][0]["total_balance"]
    assert Decimal(balance) == 1000 - Decimal(charged)


def test_in_peak_hours_all_is_dearer_and_the_fault_of_it_is_none() -> None:
    own = account(utc_start="2026-11-30T01:00:00Z")
    assert charge(own)[:3] == (Decimal("11.2"), Decimal("11.2"), True)
    assert charge(own, "peak_price") == (Decimal("11.2"), Decimal("11.2"), True, ())


def test_what_was_granted_is_spent_first() -> None:
    own = account(granted_balance=10)
    left = [own.balance()["balance_infos"][0] for _ in range(2) if charge(own)]
    assert [(row["granted_balance"], row["topped_up_balance"]) for row in left] == [
        ("4.40", "1000.00"),
        ("0.00", "998.80"),
    ]


def test_a_fault_that_changes_no_charge_is_none() -> None:
    own = account()
    nothing = {"hit_tokens": 0, "miss_tokens": 1000, "output_tokens": 0, "at_ns": own._started_ns}
    bill = own.charge(**nothing, faults=("hits_as_misses", "charged_twice", "output_overcount"))
    assert (bill.price, bill.charged, bill.faults) == (Decimal("0.01"), Decimal("0.02"), ("charged_twice",))


@pytest.mark.parametrize(
    ("share", "output", "more"), [(0.1, 10, 1), (0.1, 70, 7), (0.1, 71, 8), (0.07, 100, 7), (1.1, 70, 77), (1e-9, 1, 1)]
)
def test_an_overcount_is_the_share_of_the_output_rounded_up(share: float, output: int, more: int) -> None:
    assert account(overcount_share=share).overcount_tokens(output) == more


@pytest.mark.parametrize(
    ("at", "peak"),
    [
        ("2026-11-30T00:59:59", False),  # a Monday
        ("2026-11-30T01:00:00", True),
        ("2026-11-30T03:59:59", True),
        ("2026-11-30T04:00:00", False),
        ("2026-11-30T06:00:00", True),
        ("2026-11-30T10:00:00", False),
        ("2026-11-28T02:00:00", False),  # a Saturday
    ],
)
def test_peak_hours_are_half_open(at: str, peak: bool) -> None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert account().is_peak(moment) == peak
    assert account(peak_days="all").is_peak(moment) == (peak or at.startswith("2026-11-28"))
    assert not account(peak_hours_utc="").is_peak(moment)


def test_the_clock_goes_on_from_where_it_was_set() -> None:
    own = account(utc_start="2026-11-30T00:59:59Z")
    assert not own.is_peak(own.utc(own._started_ns))
    assert own.is_peak(own.utc(own._started_ns + 1_000_000_000))
    started = account(utc_start=None)
    assert abs((datetime.now(UTC) - started.utc(started._started_ns)).total_seconds()) < 60


@pytest.mark.parametrize("name", ["hits_as_misses", "peak_price", "charged_twice", "output_overcount"])
def test_faults_come_as_often_as_said_and_alone(name: str) -> None:
    own = account(**{f"fault_{name}": 0.1}, seed=3)
    drawn = [own.draw_faults() for _ in range(2000)]
    assert set(drawn) == {(), (name,)}
    assert sum(map(bool, drawn)) == pytest.approx(200, abs=4 * math.sqrt(2000 * 0.1 * 0.9))
    assert {account().draw_faults() for _ in range(5)} == {()}
