"""The demo run's bill: its committed figures follow from its committed data, by arithmetic done here."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app

DEMO = Path(__file__).parents[2] / "reports" / "demo-bill"
PRICES = {"hit": Decimal("0.000000003"), "miss": Decimal("0.00000015"), "output": Decimal("0.0000006")}
TYPES = {"hit": "input_cache_hit_tokens", "miss": "input_cache_miss_tokens", "output": "output_tokens"}
CASES = ["honest", "input-5-percent-more"]
LOOKED_AT = re.compile(r"\d+ days? ago")


def used() -> dict[bool, Counter[str]]:
    """Tokens by whether the hour is a peak hour (from 01:00 on), as the answers reported them."""
    zero_ns = json.loads((DEMO / "agent-demo" / "run.json").read_text())["zero_unix_ns"]
    tokens: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for line in (DEMO / "agent-demo" / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        sent = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=(zero_ns + record["clock"]["upload_start"]) / 1000
        )
        assert (sent.year, sent.month, sent.day, sent.hour) in {(2026, 10, 15, 0), (2026, 10, 15, 1)}
        usage = record["usage_raw"]
        tokens[sent.hour == 1].update(
            hit=usage["prompt_cache_hit_tokens"],
            miss=usage["prompt_cache_miss_tokens"],
            output=usage["completion_tokens"],
            requests=1,
        )
    return tokens


def cost(tokens: Counter[str], *, peak: bool) -> Decimal:
    return sum((PRICES[kind] * tokens[kind] for kind in PRICES), Decimal(0)) * (2 if peak else 1)


def exported(name: str) -> tuple[Counter[str], Decimal]:
    """Tokens by kind, and the money, of an export."""
    with (DEMO / name / "amount.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    tokens = Counter({kind: sum(int(row["amount"]) for row in rows if row["type"] == TYPES[kind]) for kind in TYPES})
    money = sum((Decimal(row["price"]) * int(row["amount"]) for row in rows if row["price"]), Decimal(0))
    with (DEMO / name / "cost.csv").open() as stream:
        assert sum(Decimal(row["cost"]) for row in csv.DictReader(stream)) == money
    return tokens, money


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_what_the_command_says_of_the_committed_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(DEMO, tmp_path / "demo")
    monkeypatch.chdir(tmp_path / "demo")
    pages = sorted((tmp_path / "demo" / name).glob("*.md"))
    before = {path.name: path.read_text() for path in pages}
    for path in pages:
        path.unlink()
    (command,) = re.findall(r"^kvbench (.*)$", (DEMO / "README.md").read_text(), re.MULTILINE)
    result = CliRunner().invoke(app, [*command.replace("NAME", name).split(), "--json"])
    assert result.exit_code == CASES.index(name)
    after = {path.name: path.read_text() for path in sorted((tmp_path / "demo" / name).glob("*.md"))}
    assert {n: LOOKED_AT.sub("", text) for n, text in after.items()} == {
        n: LOOKED_AT.sub("", text) for n, text in before.items()
    }
    report = json.loads(result.stdout)
    tokens = used()
    off_peak, peak = cost(tokens[False], peak=False), cost(tokens[True], peak=True)
    assert Decimal(report["total"]["amount"]) == off_peak + peak
    assert {kind: part["tokens"] for kind, part in report["by_kind"].items()} == {
        kind: tokens[False][kind] + tokens[True][kind] for kind in PRICES
    }
    assert Decimal(report["by_period"]["peak"]["amount"]) == peak
    assert report["by_period"]["peak"]["requests"] == tokens[True]["requests"]
    no_cache = {
        is_peak: Counter(miss=each["hit"] + each["miss"], output=each["output"]) for is_peak, each in tokens.items()
    }
    otherwise = {name: Decimal(each["amount"]) for name, each in report["counterfactuals"].items()}
    assert otherwise["no_cache"] == cost(no_cache[False], peak=False) + cost(no_cache[True], peak=True)
    assert otherwise["off_peak"] == off_peak + peak / 2
    # The row until 10 September: 0.007, 0.22, 0.66 a million, twice that at peak.
    earlier = Counter({kind: tokens[False][kind] + 2 * tokens[True][kind] for kind in PRICES})
    by_hand = (7 * earlier["hit"] + 220 * earlier["miss"] + 660 * earlier["output"]) / Decimal(10**9)
    assert otherwise["other_date"] == by_hand
    paid = (off_peak + peak) - PRICES["output"] * (tokens[False]["output"] + 2 * tokens[True]["output"])
    inputs = sum(tokens[is_peak][kind] for is_peak in tokens for kind in ("hit", "miss"))
    assert float(report["input_price_per_mtok"]["amount"]) == pytest.approx(float(paid / inputs * 1_000_000))
    billed, money = exported(name)
    assert Decimal(report["bill"]["invoiced"]) == money
    over = sum(Decimal(finding["amount"]) for finding in report["findings"])
    assert over == money - off_peak - peak
    extra = sum(billed[kind] - tokens[False][kind] - tokens[True][kind] for kind in PRICES)
    assert sum(finding["tokens"] for finding in report["findings"]) == extra
    assert bool(extra) == bool(CASES.index(name))
    assert report["residuals"]["inside"] == report["residuals"]["requests"] == 215


def test_the_data_are_dated_by_the_endpoint_and_have_no_machine_in_them() -> None:
    for path in DEMO.rglob("*"):
        if path.is_file() and path.suffix != ".py":
            text = path.read_text()
            assert not re.search(r"/(work|tmp|home|root|Users)/", text), path
            assert '"environment"' not in text
    assert (DEMO / "input-5-percent-more" / "dispute.md").exists()
    assert not (DEMO / "honest" / "dispute.md").exists()


def test_the_letter_is_one_page_with_the_amount_and_the_rows() -> None:
    letter = (DEMO / "input-5-percent-more" / "dispute.md").read_text()
    tokens = used()
    _, money = exported("input-5-percent-more")
    over = money - cost(tokens[False], peak=False) - cost(tokens[True], peak=True)
    (said,) = re.findall(r"^# Disputed bill: USD ([0-9.]+) too much$", letter, re.MULTILINE)
    assert abs(Decimal(said) - over) < Decimal("0.00000001")
    assert "key agents" in letter
    assert "off-peak, USD for 1M tokens: hit 0.003, miss 0.15, output 0.6" in letter
    assert len(letter.splitlines()) < 40
