"""What is inferred of served hits, and what a balance can tell."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from kvbench.analysis.billing.balance import against_balance, beside_invoice
from kvbench.analysis.billing.served import interval, served
from kvbench.analysis.billing.sides import asked
from kvbench.errors import UsageError
from kvbench.model import Spent, Usage
from kvbench.prices.load import load_book
from kvbench.prices.priced import Billable
from kvbench.prices.pricing import PriceList

PRICES = PriceList([load_book("deepseek")])


def told(*rows: tuple[int, int | None, int | None], times: int = 1) -> dict[str, Any]:
    """(reported hits of 10,000 tokens, floor, ceiling), off-peak"""
    billables = [
        Billable(
            request_id=f"r{number}",
            model="deepseek-flash",
            usage=Usage(input_tokens=10_000, cached_tokens=cached, output_tokens=10),
            start=datetime(2026, 10, 15, 12, tzinfo=UTC),
            floor=floor,
            ceiling=ceiling,
        )
        for number, (cached, floor, ceiling) in enumerate(rows * times)
    ]
    return served(asked(PRICES, billables, "start"))


def test_hits_below_the_floor_differ_by_what_they_cost_more() -> None:
    found = told((9_000, 9_000, 9_000), (8_000, 9_000, 9_000))
    assert (found["verdict"], found["short_tokens"]) == ("differs", 1_000)
    # 1,000 tokens at 0.15 and not 0.003 a million.
    assert found["short_amount"] == "0.000147"
    assert "no lapse explains" in found["says"]
    assert "after a lapse" in told((0, 9_000, 9_000), times=3)["says"]


@pytest.mark.parametrize(
    ("rows", "times", "verdict"),
    [
        (((9_000, 9_000, 9_000),), 1_000, "no difference seen"),
        (((9_000, 9_000, 9_000),), 500, "cannot tell"),  # 3 of 500: lapses of 0.6% could be unseen
        (((9_000, 8_000, 9_400),), 1_000, "cannot tell"),  # 400 in 9,400 could be withheld
        (((9_000, None, None),), 1_000, "cannot tell"),
        (((0, 0, 0),), 1_000, "cannot tell"),
        (((9_500, 9_000, 9_000),), 1_000, "cannot tell"),  # the rule is not the endpoint's
    ],
)
def test_no_difference_is_claimed_only_where_one_would_show(
    rows: tuple[tuple[int, int | None, int | None], ...], times: int, verdict: str
) -> None:
    assert told(*rows, times=times)["verdict"] == verdict


def test_rates_have_their_exact_intervals() -> None:
    assert interval(0, 0) == (None, None)
    # 1 - 0.05 ** (1 / 100); and for 1 of 10 the published Clopper-Pearson limits.
    assert interval(0, 100) == (0.0, pytest.approx(0.02951, abs=1e-5))
    assert interval(1, 10) == (pytest.approx(0.0025, abs=1e-4), pytest.approx(0.4450, abs=1e-4))


def spent(before: str, after: str) -> Spent:
    difference = Decimal(before) - Decimal(after)
    least, most = difference - Decimal("0.02"), difference + Decimal("0.02")
    ends: dict[str, Any] = {"at_least": max(least, Decimal(0)), "at_most": most}
    return Spent(currency="USD", before=Decimal(before), after=Decimal(after), **ends)


OFFICIAL = [{"status": "official"}]


@pytest.mark.parametrize(
    ("price", "before", "after", "dedicated", "verdict"),
    [
        ("4.00", "20.00", "16.00", True, "confirmed"),
        ("4.00", "20.00", "15.98", True, "confirmed"),
        ("4.00", "20.00", "15.97", True, "disputed"),
        ("4.00", "20.00", "15.97", False, "cannot tell"),
        ("4.00", "20.00", "12.00", False, "cannot tell"),
        ("4.00", "20.00", "16.50", True, "cannot tell"),
        ("0.03", "20.00", "19.97", True, "cannot tell"),
        ("0.00001", "20.00", "20.00", True, "cannot tell"),
    ],
)
def test_a_balance_is_a_bound_of_two_decimals(
    price: str, before: str, after: str, dedicated: bool, verdict: str
) -> None:
    report = {"total": {"currency": "USD", "at_least": price, "at_most": price}, "findings": [], "rows": OFFICIAL}
    got = against_balance(report, [spent(before, after)], dedicated=dedicated)
    assert got["verdict"] == verdict
    assert got["detectable"]["amount"] == "0.04"


@pytest.mark.parametrize(
    ("status", "incomplete", "says"),
    [
        ("secondary", None, "not the provider's own word"),
        ("official", "the run is interrupted", "the run is interrupted"),
    ],
)
def test_what_may_explain_a_balance_is_no_dispute(status: str, incomplete: str | None, says: str) -> None:
    total = {"currency": "USD", "at_least": "4", "at_most": "4"}
    report = {"total": total, "findings": [], "rows": [{"status": status}]}
    got = against_balance(report, [spent("20.00", "12.00")], dedicated=True, incomplete=incomplete)
    assert (got["verdict"], got["findings"][0]["proof"]) == ("cannot tell", False)
    assert says in got["verdict_reasons"][0]


def test_the_excess_of_a_balance_is_the_least_it_can_be() -> None:
    report = {"total": {"currency": "USD", "at_least": "4", "at_most": "4"}, "findings": [], "rows": OFFICIAL}
    (finding,) = against_balance(report, [spent("20.00", "12.00")], dedicated=True)["findings"]
    assert (finding["amount"], finding["at_most"]) == ("3.98", "4.02")


def test_a_run_without_a_balance_in_the_currency_is_refused() -> None:
    report = {"total": {"currency": "CNY", "at_least": "4", "at_most": "4"}, "findings": [], "rows": OFFICIAL}
    with pytest.raises(UsageError, match="no balance in CNY; it has one in USD"):
        against_balance(report, [spent("20.00", "12.00")], dedicated=True)


@pytest.mark.parametrize(
    ("asked", "after", "holds_invoice", "holds_price"),
    [("4.01", "16.00", True, True), ("4.03", "16.00", False, True), ("8.00", "12.00", True, False)],
)
def test_beside_an_invoice_a_balance_says_what_it_holds(
    asked: str, after: str, holds_invoice: bool, holds_price: bool
) -> None:
    report = {"total": {"currency": "USD", "at_least": "4", "at_most": "4"}, "bill": {"invoiced": asked}}
    got = beside_invoice(report, [spent("20.00", after)])
    assert got is not None
    assert (got["holds_the_invoice"], got["holds_the_price"]) == (holds_invoice, holds_price)
    assert beside_invoice(report, None) is None


def test_what_it_takes_to_tell_is_said() -> None:
    few = told((9_000, 9_000, 9_000), times=500)
    # ln 0.05 / ln 0.995
    assert few["to_see_less"] == "598 requests that are owed a hit (here 500)"
    assert told((9_000, 9_000, 9_000), times=1_000)["to_see_less"] is None
    assert "token ids" in told((9_000, None, None))["to_see_less"]
    assert "known closer" in told((9_000, 8_000, 9_400), times=1_000)["to_see_less"]
