"""What a run cost, worked out by hand from its tokens and a book's prices."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.made_runs import BOOK, make_run

from kvbench.analysis.compare.report import compare
from kvbench.analysis.measured import measured
from kvbench.analysis.pricing.run_cost import RunCost, incomparable
from kvbench.prices.load import load_prices
from kvbench.prices.pricing import PriceList
from kvbench.runs.reader import load_run

TREE = Decimal("0.004648")
FLASH = {"server": {"server": "DeepSeek", "model": "deepseek-flash"}}


@pytest.fixture
def book(tmp_path: Path) -> PriceList:
    (tmp_path / "book.toml").write_text(BOOK)
    return load_prices([str(tmp_path / "book.toml")])


def cost(path: Path, prices: PriceList) -> RunCost:
    found = measured(load_run(path), (), prices).cost
    assert found is not None
    return found


def test_an_exact_amount_and_a_jobs(tmp_path: Path, book: PriceList) -> None:
    found = cost(make_run(tmp_path, "run", 0), book)
    assert (found.currency, found.reason) == ("USD", None)
    assert found.amount == 12 * TREE == Decimal("0.055776")
    assert found.per_job == TREE
    assert found.by_tree["s03"] == TREE


def test_jobs_are_those_that_ran_to_their_end(tmp_path: Path, book: PriceList) -> None:
    # The first turn of the first tree broke off: it reported no usage, and may be billed all the same.
    found = cost(make_run(tmp_path, "run", 0, failed=1), book)
    assert (found.amount, found.per_job) == (None, None)
    assert found.reason is not None
    assert "0/0" in found.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # 4,000 tokens in, of which 3,000 were hits: less 0.0013, and 0.0004 to 0.004 in its place.
        (lambda record: record["usage"].pop("cached_tokens"), "at least 0.054876 and at most 0.058476"),
        (lambda record: record.update(usage={}), "(0/3)"),
        (lambda record: record.update(request_model="other"), "no price for the model other"),
    ],
)
def test_what_has_no_exact_amount_says_why(tmp_path: Path, book: PriceList, change: Any, said: str) -> None:
    path = make_run(tmp_path, "run", 0)
    lines = [msgspec.json.decode(line) for line in (path / "records.jsonl").read_bytes().splitlines()]
    change(lines[3])
    (path / "records.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    found = cost(path, book)
    assert found.amount is None
    assert found.reason is not None
    assert said in found.reason, found.reason


def test_a_change_that_the_clock_made_is_none(tmp_path: Path) -> None:
    """DeepSeek's peak hours: 01:00 to 04:00 UTC, on a Monday."""
    prices = load_prices()
    night = [cost(make_run(tmp_path, f"run-{at}", at, **FLASH), prices) for at in (0, 30, 120)]
    assert night[0].amount == night[1].amount
    assert night[2].amount == 2 * night[0].amount
    assert incomparable(night[:2]) is None
    said = incomparable(night)
    assert said is not None
    assert said.startswith("deepseek-flash was charged by off-peak prices since ")
    assert " and by peak prices since " in said


def test_two_sides(tmp_path: Path, book: PriceList) -> None:
    base = [make_run(tmp_path, f"base-{i}", i) for i in range(2)]
    new = [make_run(tmp_path, f"new-{i}", 2 + i, hits=0.0) for i in range(2)]
    rows = {row["metric"]: row for row in compare(base, new, book)["metrics"]}
    # Without hits a tree costs 0.01 + 0.000048.
    ratio = pytest.approx(0.010048 / 0.004648)
    assert (rows["cost"]["ratio"], rows["cost"]["low"], rows["cost"]["high"]) == (ratio, ratio, ratio)
    assert rows["cost"]["unit"] == "USD"
    assert rows["cost"]["amounts"] == {"base": ["0.055776"] * 2, "new": ["0.120576"] * 2}
    assert (rows["cost_per_job"]["base"], rows["cost_per_job"]["new"]) == (0.004648, 0.010048)
