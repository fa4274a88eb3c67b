"""What a probe says it can cost before it starts, and that it keeps to a limit: amounts worked out by hand."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from tests.books import book as price_book
from tests.cli.conftest import Kvbench

QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"
BOOK = price_book("tiny", "0.5", "2", "10", name="mine", currency="EUR")


@pytest.fixture
def book(tmp_path: Path) -> str:
    (tmp_path / "book.toml").write_text(BOOK)
    return "book.toml"


@pytest.mark.parametrize(
    ("command", "told", "cost"),
    [
        # 25,922 * 2 + 50 * 10 for a million: 0.052344, and never rounded down
        ("granularity", "50 requests, 25,922 prompt tokens, 50 of output and 1 h (about a minute)", "0.05235"),
        # 10 requests of 1,001 in, 4 out, the trial among them: 10,010 * 2 + 40 * 10
        (
            "consistency --prompts 3 --output-tokens 4",
            "10 requests, 10,010 prompt tokens, 40 of output and 1 h",
            "0.02042",
        ),
        # 1 + 2 * (12 + 8) requests of 101: 4,141 * 2 + 41 * 10; hours go by how long the first took
        (
            "ttl --max-age 0.3 --min-age 0.1 --passes 1 --input-tokens 101",
            "41 requests, 4,141 prompt tokens, 41 of output and SO LONG (0.72 s of it waiting)",
            "0.008692",
        ),
    ],
)
def test_the_most_it_can_cost_is_said_first(kvbench: Kvbench, book: str, command: str, told: str, cost: str) -> None:
    done = kvbench("probe", *command.split(), "--endpoint", f"sim:tiny?{QUICK}", "--yes", "--prices", book)
    assert done.returncode == 0, done.stderr
    first = re.sub(r"and [0-9.]+ s \(0.72", "and SO LONG (0.72", done.stderr.splitlines()[0])
    assert first == f"{command.split()[0]}: at most {told}; EUR {cost} at most, by the book mine with nothing hit"


def test_a_model_that_is_in_no_book_is_said_to_be(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("probe", "ttl", "--endpoint", f"sim:tiny?{QUICK}", "--max-age", 0.3, "--min-age", 0.1, "--yes")
    assert "no price known for tiny in deepseek, together (--prices BOOK names another book)\n" in done.stderr
    assert "USD" not in done.stderr
    done = kvbench("probe", "granularity", "--endpoint", f"sim:tiny?{QUICK}", "--yes", "--max-cost", 1, "--out", "none")
    assert done.returncode == 2
    assert "no price for the model tiny" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_limit_is_kept_to_and_what_was_measured_is_kept(kvbench: Kvbench, book: str, tmp_path: Path) -> None:
    done = kvbench(
        "probe", "capacity", "--endpoint", f"sim:tiny?{QUICK}", "--yes", "--json", "--prices", book,
        "--max-cost", "0.02",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "it stops before EUR 0.02 can have been passed (--max-cost)" in done.stderr
    report = json.loads(done.stdout)
    assert report["estimates"] == []
    assert "the budget of EUR 0.02 is spent (--max-cost)" in report["refusals"][0]["reason"]
    (run,) = (tmp_path / "runs").iterdir()
    usages = [json.loads(line)["usage"] for line in (run / "records.jsonl").read_text().splitlines()]
    cost = sum(
        (u["input_tokens"] - u["cached_tokens"]) * 2 + u["cached_tokens"] * Decimal("0.5") + u["output_tokens"] * 10
        for u in usages
    ) / Decimal(10**6)
    # the next prompt of the scouting is 8,000 tokens at most, 0.016 if none of it is hit
    assert Decimal("0.004") <= cost <= Decimal("0.02")
    info = json.loads((run / "run.json").read_text())
    assert info["settings"]["budget"]["max_cost"] == {"amount": "0.02", "currency": "EUR", "books": ["mine"]}
    assert [w["code"] for w in info["warnings"]] == ["max_cost"]


def test_what_is_no_amount_is_refused(kvbench: Kvbench) -> None:
    for wrong in ("0", "-1", "much"):
        done = kvbench("probe", "granularity", "--endpoint", "sim:tiny", "--yes", "--max-cost", wrong)
        assert done.returncode == 2
        assert "not an amount above 0" in done.stderr


SLOW = "frontend_s=0.25&prefill_base_s=0&prefill_s_per_token=1e-6&attention_s_per_token2=0&decode_base_s=0.0005"


def used(tmp_path: Path) -> tuple[int, int, int, float]:
    """Requests, prompt and output tokens, and hours that the one run in the directory took."""
    (run,) = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    usages = [r["usage"] for r in records]
    hours = json.loads((run / "run.json").read_text())["wall_s"] / 3600
    return len(records), sum(u["input_tokens"] for u in usages), sum(u["output_tokens"] for u in usages), hours


@pytest.mark.parametrize(
    "command",
    [
        # short prompts take a quarter of a second, and long ones hardly more
        "capacity --max-hours 0.002",
        "ttl --max-age 0.3 --min-age 0.1 --passes 1 --input-tokens 101",
        "occupancy --input-tokens 100,200 --repeats 1",
    ],
)
def test_what_is_said_first_is_not_less_than_what_it_takes(kvbench: Kvbench, tmp_path: Path, command: str) -> None:
    done = kvbench("probe", *command.split(), "--endpoint", f"sim:tiny?{SLOW}", "--yes")
    assert "Traceback" not in done.stderr
    told = re.search(
        r"at most ([0-9,]+) requests, ([0-9,]+) prompt tokens, ([0-9,]+) of output and ([0-9.]+) (s|min|h)", done.stderr
    )
    assert told, done.stderr
    requests, prompt, output, hours = used(tmp_path)
    assert requests <= int(told[1].replace(",", ""))
    assert prompt <= int(told[2].replace(",", ""))
    assert output <= int(told[3].replace(",", ""))
    # two digits are shown, and a request in flight is awaited
    assert hours * 3600 <= float(told[4]) * {"s": 1, "min": 60, "h": 3600}[told[5]] * 1.06 + 2
