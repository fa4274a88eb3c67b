"""`kvbench price --invoice`, as scripts use it: exit codes, JSON, the letter, and a run over real HTTP."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.errors import KvbenchError
from kvbench.sim.process import SimProcess

USAGE = (
    '{"id": "r1", "time": "2026-10-15T12:10:00Z", "end": "2026-10-15T12:10:20Z", "model": "deepseek-flash", "usage": '
    '{"prompt_tokens": 105000, "prompt_cache_hit_tokens": 100000, "prompt_cache_miss_tokens": 5000, '
    '"completion_tokens": 1000}}\n'
)
MAP = (
    'kvbench_invoice = 1\ncurrency = "USD"\n[columns]\nrequest_id = "id"\nstart = "at"\nmodel = "model"\n'
    'amount = "charged"\n'
)


def price(tmp_path: Path, row: str, *more: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "usage.jsonl").write_text(USAGE)
    (tmp_path / "map.toml").write_text(MAP)
    (tmp_path / "bill.csv").write_text(f"id,at,model,charged\n{row}\n")
    words = ["price", "--usage", tmp_path / "usage.jsonl", "--invoice", tmp_path / "bill.csv", *more]
    words += ["--columns", tmp_path / "map.toml", "--json"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, KvbenchError):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("charged", "code", "verdict", "kinds"),
    [
        # 100,000 x 0.003 + 5,000 x 0.15 + 1,000 x 0.60 a million = 0.00165; without hits 0.01635.
        ("0.00165", 0, "confirmed", []),
        ("0.01635", 1, "disputed", ["hits_as_misses"]),
        ("0.00200", 1, "disputed", ["charged_too_much"]),
        ("0.00100", 3, "cannot tell", ["price_below_list"]),
    ],
)
def test_the_exit_code_is_the_verdict(tmp_path: Path, charged: str, code: int, verdict: str, kinds: list[str]) -> None:
    got, report = price(tmp_path, f"r1,2026-10-15T12:10:05Z,deepseek-flash,{charged}")
    assert (got, report["verdict"]) == (code, verdict)
    assert [finding["kind"] for finding in report["findings"]] == kinds
    assert sum(Decimal(finding["amount"]) for finding in report["findings"]) == Decimal(charged) - Decimal("0.00165")
    assert report["detectable"]["currency"] == "USD"
    (cell,) = report["bill"]["cells"]
    assert (cell["request_id"], cell["priced"]) == ("r1", "0.00165")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--dedicated-key"], "about an invoice"),
        (["--report", "page.md"], "about an invoice"),
        (["--invoice", "balance"], "before and after a RUN"),
        (["--invoice", "none.csv"], "no such file"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "usage.jsonl").write_text(USAGE)
    result = CliRunner().invoke(app, ["price", "--usage", str(tmp_path / "usage.jsonl"), *words])
    assert isinstance(result.exception, KvbenchError)
    assert says in result.exception.message
    assert result.exception.exit_code == 2


def test_no_letter_is_written_where_nothing_is_disputed(tmp_path: Path) -> None:
    letter = tmp_path / "letter.md"
    assert price(tmp_path, "r1,2026-10-15T12:10:05Z,deepseek-flash,0.00165", "--letter", str(letter))[0] == 0
    assert not letter.exists()


@pytest.mark.parametrize("twice", [0, 1])
def test_a_run_over_http_against_what_the_endpoint_charged(tmp_path: Path, twice: int) -> None:
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t"}]
    for number in range(3):
        text = f"{number} " + "word " * 400
        lines.append(
            {"session_id": f"s{number}", "turn": 0, "output_tokens": 8, "append": [{"role": "user", "content": text}]}
        )
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log, runs = tmp_path / "truth.jsonl", tmp_path / "runs"
    with SimProcess.start("deepseek-api", settings={"fault_charged_twice": twice}, truth_log=log) as sim:
        (tmp_path / "e.toml").write_text(f'url = "{sim.url}"\ndialect = "deepseek"\nmodel = "deepseek-flash"\n')
        words = ["run", tmp_path / "trace.jsonl", "--endpoint", tmp_path / "e.toml", "--out", runs, "--time-scale", "0"]
        result = CliRunner().invoke(app, [str(word) for word in [*words, "--json"]])
        assert result.exit_code in (0, 3), result.output
    truths = [json.loads(line, parse_float=Decimal) for line in log.read_text().splitlines()]
    zero_ns = time.time_ns() - time.monotonic_ns()
    rows = ["id,at,model,charged"]
    for truth in truths:
        at = datetime.fromtimestamp((truth["arrival_ns"] + zero_ns) / 1e9, UTC).isoformat()
        rows.append(f"{truth['response_id']},{at},deepseek-flash,{Decimal(truth['charged']):f}")
    (tmp_path / "bill.csv").write_text("\n".join(rows))
    (tmp_path / "map.toml").write_text(MAP)
    (run,) = runs.iterdir()
    words = ["price", run, "--invoice", tmp_path / "bill.csv", "--columns", tmp_path / "map.toml", "--dedicated-key"]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--json"]])
    report = json.loads(result.stdout)
    over = sum(Decimal(truth["charged"]) - Decimal(truth["price"]) for truth in truths)
    assert report["bill"]["joined"] == "request by request"
    assert result.exit_code == twice
    assert sum(Decimal(finding["amount"]) for finding in report["findings"]) == over
    assert (over > 0) == bool(twice)


def test_the_page_has_every_figure_and_another_date_beside_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    row = "r1,2026-10-15T12:10:05Z,deepseek-flash,0.00200"
    code, report = price(tmp_path, row, "--report", str(page), "--date", "2026-09-01T12:00:00Z")
    assert code == 1
    # 100,000 x 0.007 + 5,000 x 0.22 + 1,000 x 0.66 a million, by the row of 16 August.
    assert report["counterfactuals"]["other_date"]["amount"] == "0.00246"
    assert report["total"]["amount"] == "0.00165"
    text = page.read_text()
    for said in (
        "# Verification of a bill: DISPUTED, USD 0.00035 too much",
        "| charged too much | +0.00035 |",
        "| deepseek-flash | hit | 100,000 | 0.0003 |",
        "| off peak | output |  | 1,000 | 0.0006 |",
        "| without a cache | 0.01635 | +0.0147 |",
        "| begun at 2026-09-01T12:00:00Z | 0.00246 | +0.00081 |",
        "| tolerance | USD 0.00001 for rounding, 0 tokens |",
        "| official |",
        "hits not predicted: a usage file has no prompts",
    ):
        assert said in text
    assert str(tmp_path) not in text


def test_what_an_invoice_says_cannot_become_markup_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    price(tmp_path, "r[1](http://x)|<b>,2026-10-15T12:10:05Z,deepseek-flash,0.5", "--report", str(page))
    text = page.read_text()
    assert "](http" not in text
    assert "|<b>" not in text


PER_HOUR, HOURS = 250, range(11, 19)
EXPORT_HEAD = "user_id,start_time_iso,end_time_iso,model,api_key_name,api_key,type,price,amount\n"
KINDS = {
    "input_cache_hit_tokens": ("0.000000003", 900_000),
    "input_cache_miss_tokens": ("0.00000015", 100_000),
    "output_tokens": ("0.0000006", 10_000),
    "request_count": ("", 1),
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 requests on Thursday 15 October 2026, off-peak, of 900,000 hits, 100,000 misses and 10,000 of output: each
    0.0027 + 0.015 + 0.006 = USD 0.0237, together 47.40."""
    path = tmp_path_factory.mktemp("used") / "usage.jsonl"
    usage = {"prompt_tokens": 1_000_000, "prompt_cache_hit_tokens": 900_000, "prompt_cache_miss_tokens": 100_000}
    lines = []
    for hour in HOURS:
        for number in range(PER_HOUR):
            minute, second = divmod(number * 14, 60)
            times = {
                name: f"2026-10-15T{hour:02d}:{minute:02d}:{second + more:02d}Z"
                for name, more in (("time", 0), ("end", 1))
            }
            line = {"id": f"{hour}-{number}", **times, "model": "deepseek-flash"}
            lines.append(json.dumps({**line, "usage": {**usage, "completion_tokens": 10_000}}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "factors", "code", "kind", "amount"),
    [
        ("honest", {}, 0, None, "0"),
        ("doubled", dict.fromkeys(KINDS, 2), 1, "doubled_bill", "47.40"),
        # 45,000 hits at 0.003 and 5,000 misses at 0.15 a million, 2,000 times: 0.27 + 1.50
        (
            "input +5%",
            {"input_cache_hit_tokens": 1.05, "input_cache_miss_tokens": 1.05},
            1,
            "input_inflated",
            "1.77",
        ),
        # 3,000 tokens at 0.60 a million, 2,000 times
        ("output +30%", {"output_tokens": 1.3}, 1, "output_inflated", "3.60"),
    ],
)
def test_what_the_best_peer_calls_reconciled_is_named_with_its_amount(
    tmp_path: Path, used: Path, name: str, factors: dict[str, float], code: int, kind: str | None, amount: str
) -> None:
    rows = [
        f"u,2026-10-15T{hour}:00:00Z,2026-10-15T{hour + 1}:00:00Z,deepseek-flash,agents,sk,{item},{price},"
        f"{round(PER_HOUR * tokens * factors.get(item, 1))}\n"
        for hour in HOURS
        for item, (price, tokens) in KINDS.items()
    ]
    (tmp_path / "amount.csv").write_text(EXPORT_HEAD + "".join(rows))
    letter = tmp_path / "letter.md"
    words = ["price", "--usage", used, "--invoice", tmp_path / "amount.csv", "--dedicated-key", "--letter", letter]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--json"]])
    report = json.loads(result.stdout)
    assert (result.exit_code, report["total"]["amount"]) == (code, "47.4")
    assert {each["kind"]: Decimal(each["amount"]) for each in report["findings"]} == (
        {} if kind is None else {kind: Decimal(amount)}
    )
    assert letter.exists() == bool(code)
    if code:
        assert f"# Disputed bill: USD {amount} too much" in letter.read_text()
        # One token more in a window shows: at the miss price of 0.15 and the output price of 0.6 for a million, and a
        # half more of either where all is doubled at once is not a fault of these kinds.
        shown = {
            "input_inflated": "input inflated above USD 0.00000015 would have shown",
            "output_inflated": "output inflated above USD 0.0000006 would have shown",
        }
        assert shown.get(str(kind), "Nothing was allowed for rounding") in letter.read_text()
