"""Hits that a bill implies, by prices and sums worked out by hand.

DeepSeek's list since 2026-09-10, USD for a million tokens: hit 0.003, miss 0.15, output 0.60; twice that in peak hours,
01:00 to 04:00 and 06:00 to 10:00 UTC on working days.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvbench.analysis.fit.bill import fit_bill, read_bill
from kvbench.errors import UsageError
from kvbench.model import Clock, FitReport, Record, RunInfo, Spent, Usage
from kvbench.prices.load import load_book
from kvbench.prices.pricing import PriceList
from kvbench.runs.reader import Run

NOON = datetime(2026, 10, 15, 12, tzinfo=UTC)
PEAK = datetime(2026, 10, 15, 2, tzinfo=UTC)
S = 1_000_000_000


def request(at: datetime, tokens: int, cached: int | None, output: int = 0, *, model: str = "deepseek-flash") -> Record:
    start = round((at - PEAK) / timedelta(microseconds=1)) * 1000
    clock = Clock(scheduled=start, due=start, upload_start=start, sent=start, end=start + 5 * S)
    usage = Usage(input_tokens=tokens, cached_tokens=cached, output_tokens=output)
    name = f"{start}-{tokens}"
    return Record(request_id=name, session_id="s", turn=0, clock=clock, usage=usage, request_model=model)


def run_of(*records: Record, status: Any = "done", balance: tuple[Spent, ...] | None = None) -> Run:
    info = RunInfo(
        kvbench_version="0",
        run_id="r",
        name="t",
        status=status,
        started_at=PEAK.isoformat(),
        zero_unix_ns=round(PEAK.timestamp()) * S,
        balance=balance,
    )
    return Run(info=info, records=list(records), events=[], warnings=[], path=Path("r"))


def fit(run: Run, bill: str, book: str = "deepseek") -> FitReport:
    said = read_bill(bill, run)
    return fit_bill(run, said, PriceList([load_book(book)], said.currency))


def hits(report: FitReport) -> tuple[float | None, float | None, float | None]:
    found = report.named("hit_tokens_of_bill")
    assert found is not None, report.refusals
    return found.low, found.value, found.high


def test_hits_follow_from_what_was_saved() -> None:
    """1,000,000 in, 800,000 of them cached, 10,000 out: 0.0024 + 0.03 + 0.006 = 0.0384. Without a cache 0.156, so
    0.1176 were saved, at 0.147 a million; 0.00005 of rounding are 340 tokens."""
    run = run_of(request(NOON, 600_000, 500_000, 4_000), request(NOON, 400_000, 300_000, 6_000))
    report = fit(run, "0.0384")
    low, value, high = hits(report)
    assert value == pytest.approx(800_000)
    assert low == pytest.approx(800_000 - 0.00005 / 0.147e-6)
    assert high == pytest.approx(800_000 + 0.00005 / 0.147e-6)
    rate = report.named("hit_rate_of_bill")
    assert rate is not None
    assert rate.value == pytest.approx(0.8)
    assert report.notes == ("800,000 hit tokens were reported: the bill agrees",)


@pytest.mark.parametrize("bill", ["USD 0.0384", "0.0384 USD", " 0.0384"])
def test_a_currency_may_be_said(bill: str) -> None:
    run = run_of(request(NOON, 1_000_000, 800_000, 10_000))
    assert hits(fit(run, bill))[1] == pytest.approx(800_000)


def test_hits_that_were_reported_and_not_granted_show() -> None:
    """Billed with 700,000 of the 800,000 hits: 0.0021 + 0.045 + 0.006 = 0.0531."""
    report = fit(run_of(request(NOON, 1_000_000, 800_000, 10_000)), "0.0531")
    assert hits(report)[1] == pytest.approx(700_000)
    assert report.notes == ("800,000 hit tokens were reported: the bill has at least 99,660 fewer",)
    unknown = fit(run_of(request(NOON, 1_000_000, None, 10_000)), "0.0531")
    assert hits(unknown)[1] == pytest.approx(700_000)
    assert "hits were reported of 0 of 1 requests" in unknown.notes[0]


def test_two_prices_bound_the_hits() -> None:
    """A million tokens at 0.15 and one at 0.30, 0.147 saved: all of the first were hit, or half of the second."""
    run = run_of(request(NOON, 1_000_000, None), request(PEAK, 1_000_000, None))
    low, value, high = hits(fit(run, "0.303000000"))
    assert low == pytest.approx(500_000, rel=1e-6)
    assert high == pytest.approx(1_000_000, rel=1e-6)
    assert value == pytest.approx(750_000, rel=1e-6)


def test_a_balance_has_two_decimals() -> None:
    """100 million tokens, 90 million cached: 0.27 + 1.5 = 1.77 of 15 without. Each end is off by up to 0.01."""
    usd = Spent(
        currency="USD", before=Decimal("9.00"), after=Decimal("7.23"), at_least=Decimal("1.75"), at_most=Decimal("1.79")
    )
    still = Spent(currency="CNY", at_least=Decimal(0), at_most=Decimal(0))
    run = run_of(request(NOON, 100_000_000, 90_000_000), balance=(still, usd))
    low, value, high = hits(fit(run, "balance"))
    assert value == pytest.approx(90_000_000)
    assert low == pytest.approx(90_000_000 - 0.02 / 0.147e-6)
    assert high == pytest.approx(90_000_000 + 0.02 / 0.147e-6)
    for none in (None, (Spent(currency="USD"),), (usd, usd)):
        with pytest.raises(UsageError, match="does not have the fall of one balance"):
            read_bill("balance", run_of(balance=none))


@pytest.mark.parametrize(
    ("records", "bill", "why"),
    [
        ([request(NOON, 1_000_000, 0)], "0.20", "above 0.15"),
        ([request(NOON, 1_000_000, 0)], "0.001", "below 0.003"),
        ([request(NOON, 10_000, 0)], "0.00", "any number explains it"),
        ([request(NOON, 10_000, 0, model="no-such-model")], "0.10", "no price for the model"),
        ([request(datetime(2026, 10, 15, 3, 59, 58, tzinfo=UTC), 10_000, 0)], "0.001", "the price changed while"),
        ([], "0.10", "no request was sent"),
    ],
)
def test_what_a_bill_cannot_tell_is_refused(records: list[Record], bill: str, why: str) -> None:
    report = fit(run_of(*records), bill)
    assert not report.estimates
    assert why in report.refusals[0].reason


def test_prices_that_hide_hits_are_refused(tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    head = 'kvbench_prices = 1\nname = "b"\nprovider = "B"\ncurrency = "USD"\nchecked = 2026-11-01\n'
    row = '[[row]]\nmodel = "m"\ncurrency = "USD"\nfrom = 2026-01-01T00:00:00Z\nmiss = 1.0\noutput = 2.0\n'
    row += 'status = "official"\nsource = "s"\n'
    for more, why in (("", "costs what any other does"), ("hit = 0.1\nwrite_5m = 1.25\n", "have a price of their own")):
        book.write_text(f'{head}[[model]]\nid = "m"\n{row}{more}')
        report = fit(run_of(request(NOON, 1_000_000, None, model="m")), "0.5", str(book))
        assert why in report.refusals[0].reason


def test_a_run_that_did_not_end_is_refused() -> None:
    report = fit(run_of(request(NOON, 1_000_000, 0), status="interrupted"), "0.10")
    assert "in flight" in report.refusals[0].reason


@pytest.mark.parametrize("bill", ["", "much", "-1.00", "1,5", "USD 1.00 EUR", "1e3"])
def test_what_is_no_amount_is_an_error(bill: str) -> None:
    with pytest.raises(UsageError, match="no amount"):
        read_bill(bill, run_of())
