"""`kvbench price`, as scripts and people use it; expected amounts are worked out by hand or by another way."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from tests.cli.conftest import Kvbench
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.errors import KvbenchError
from kvbench.sim.process import SimProcess

DATA = os.environ.get("KVBENCH_TEST_DATA")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-schema-1"

BOOK = """kvbench_prices = 1
name = "own"
provider = "Own"
currency = "USD"
checked = 2026-11-30
[[model]]
id = "m"
hit_rule = "HIT_RULE"
[[alias]]
name = "deepseek-flash"
model = "m"
[[alias]]
name = "claude-opus-4-8"
model = "m"
[[alias]]
name = "claude-opus-4-6"
model = "m"
[[row]]
model = "m"
currency = "USD"
from = 2026-01-01T00:00:00Z
hit = 1000
miss = 10_000
write_5m = 12_500
write_1h = 20_000
output = 100_000
status = "official"
source = "made up"
"""


GOOD = '"time": 1794790798, "model": "deepseek-flash", "usage": {"prompt_tokens": 1, "completion_tokens": 1}'
"""2026-11-16T00:59:58Z"""


def own_book(tmp_path: Path, hit_rule: str, *changes: tuple[str, str]) -> None:
    text = BOOK.replace("HIT_RULE", hit_rule)
    for old, new in changes:
        text = text.replace(old, new)
    (tmp_path / "own.toml").write_text(text)


def price(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["price", *map(str, arguments)])


def report(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = price(*arguments, "--json")
    assert done.exit_code == code, (done.exception, done.output)
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def usage_file(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(time: object, hit: int, miss: int, output: int, model: str = "deepseek-flash", **more: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": hit + miss,
        "prompt_cache_hit_tokens": hit,
        "prompt_cache_miss_tokens": miss,
        "completion_tokens": output,
    }
    return {"time": time, "model": model, "usage": usage, **more}


MAY = [row("2026-05-01T00:00:00Z", 435_033_856, 767_616, 179_763, "deepseek-v4-flash")]


def test_the_names_that_scripts_rely_on(tmp_path: Path) -> None:
    got = report("--usage", usage_file(tmp_path / "u.jsonl", MAY), "--prices", "deepseek")
    assert (got["total"]["amount"], got["total"]["currency"]) == ("1.3758946768", "USD")
    assert {kind: (part["tokens"], part["amount"]) for kind, part in got["by_kind"].items()} == {
        "hit": (435_033_856, "1.2180947968"),
        "miss": (767_616, "0.10746624"),
        "output": (179_763, "0.05033364"),
    }
    assert got["by_model"]["deepseek-v4-flash"]["amount"] == "1.3758946768"
    assert got["by_model"]["deepseek-v4-flash"]["billed_as"] == ["deepseek-flash (deepseek)"]
    assert (got["findings"], got["verdict"], got["detectable"]) == ([], None, None)
    # 435.801472 M at 0.14, and the same output
    assert got["counterfactuals"]["no_cache"]["amount"] == "61.06253972"
    assert [(used["from"], used["status"], used["requests"]) for used in got["rows"]] == [
        ("2026-04-26T12:15:00Z", "official", 1)
    ]


def test_the_effective_price_of_the_input(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 10**6, "cached_tokens": 960_000, "completion_tokens": 0}
    path = usage_file(tmp_path / "u.jsonl", [{"time": "2026-11-15T00:00:00Z", "model": "kimi-k3", "usage": usage}])
    got = report("--usage", path)
    assert Decimal(got["input_price_per_mtok"]["amount"]) == Decimal("0.408")
    assert [found["kind"] for found in got["findings"]] == ["row_not_official"]


def test_a_week_by_period(tmp_path: Path) -> None:
    rows = [row(f"2026-10-{12 + hour // 24}T{hour % 24:02}:00:00Z", 0, 10**6, 0) for hour in range(168)]
    got = report("--usage", usage_file(tmp_path / "u.jsonl", rows))
    # 35 hours at 0.30, 133 at 0.15
    assert (got["by_period"]["peak"]["requests"], got["by_period"]["peak"]["amount"]) == (35, "10.5")
    assert (got["by_period"]["off_peak"]["requests"], got["by_period"]["off_peak"]["amount"]) == (133, "19.95")
    assert got["counterfactuals"]["off_peak"]["amount"] == "25.2"


def test_requests_that_cross_a_boundary(tmp_path: Path) -> None:
    rows = [
        row("2026-11-16T00:59:59Z", 0, 10**6, 0, end="2026-11-16T01:00:00Z"),  # 0.15, by its end 0.30
        row("2026-11-16T03:00:00Z", 0, 10**6, 0, end="2026-11-16T03:59:59Z"),  # 0.30 either way
        row("2026-11-16T12:00:00Z", 0, 10**6, 0),  # 0.15, and when it ended is not known
    ]
    path = usage_file(tmp_path / "u.jsonl", rows)
    for at, total, other in (("start", "0.6", "0.75"), ("end", "0.75", "0.6")):
        got = report("--usage", path, "--at", at)
        edge = got["boundary"]
        assert (got["total"]["amount"], edge["by_the_other"]["amount"]) == (total, other)
        assert (edge["straddling"], edge["without_both_times"]) == (1, 1)
        assert [(found["kind"], found["amount"], found["requests"]) for found in got["findings"]] == [
            ("boundary", "0.15", 1)
        ]


def test_another_date(tmp_path: Path) -> None:
    rows = [row("2026-11-16T12:00:00Z", 0, 10**6, 0), row("2026-11-16T13:00:00Z", 0, 10**6, 0)]
    path = usage_file(tmp_path / "u.jsonl", rows)
    # Friday: 00:30 is off-peak at 0.22, 01:30 is peak at 0.44
    got = report("--usage", path, "--date", "2026-08-28T00:30:00Z")
    assert (got["total"]["amount"], got["counterfactuals"]["own_date"]["amount"]) == ("0.66", "0.3")
    assert "as if begun at 2026-08-28T00:30:00Z" in got["notes"][0]
    usage_file(path, [row("2025-11-16T12:00:00Z", 0, 10**6, 0)])
    old = report("--usage", path, "--date", "2026-11-14")
    assert old["total"]["amount"] == "0.15"
    own = old["counterfactuals"]["own_date"]
    assert (own["amount"], "no USD row" in own["why"]) == (None, True)


def test_order_whitespace_keys_and_packing_change_nothing(tmp_path: Path) -> None:
    rows = [
        row(f"2026-10-{day:02}T{hour:02}:59:59Z", 1000 * day, 37 * hour, day, model, id=f"{day}-{hour}-{model}")
        for day in range(1, 20)
        for hour in range(0, 24, 5)
        for model in ("deepseek-flash", "deepseek-v4-pro")
    ]
    rows += rows[:7]  # the same records again
    rows += [row("2026-10-03T03:00:00Z", 1, 1, output, id="stream") for output in (1, 90, 17)]
    expected = report("--usage", usage_file(tmp_path / "u.jsonl", rows))
    assert expected["requests"]["duplicates"] == 9
    assert expected["by_kind"]["output"]["tokens"] == 2 * 5 * sum(range(1, 20)) + 90
    chance = random.Random(7)
    for number, (separators, end, bom) in enumerate(
        [((" , ", " : "), "\n", False), ((",", ":"), "\r\n", True), ((",\t", ": "), "\n\n", False)]
    ):
        chance.shuffle(rows)
        lines = []
        for each in rows:
            names = list(each)
            chance.shuffle(names)
            lines.append(json.dumps({name: each[name] for name in names}, separators=separators))
        path = tmp_path / f"u{number}.jsonl"
        path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + end.join(lines).encode())
        got = report("--usage", path)
        assert {name: got[name] for name in ("total", "by_kind", "by_model", "by_period")} == {
            name: expected[name] for name in ("total", "by_kind", "by_model", "by_period")
        }
    path = tmp_path / "pretty.json"
    path.write_text(json.dumps(rows, indent=4))
    assert report("--usage", path)["total"] == expected["total"]


def test_a_tool_that_gets_its_price_while_it_runs(tmp_path: Path) -> None:
    rows = [row("2026-10-31T15:59:59Z", 0, 1000, 0, end="2026-10-31T16:00:00Z")]
    rows[0]["usage"]["server_tool_use"] = {"web_fetch_requests": 2}
    path = usage_file(tmp_path / "u.jsonl", rows)
    got = report("--usage", path, "--currency", "CNY", "--at", "end", code=0)
    assert (got["total"]["amount"], got["by_kind"]["tool:fetch"]["tokens"]) == ("0.011", 2)
    assert [found["kind"] for found in got["findings"]] == ["boundary_unknown"]


def test_what_has_no_price_is_named_and_the_sum_is_no_sum(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    usage_file(
        path, [*MAY, row(1794790800, 1, 1, 1, "gpt-9"), {"time": 1794790800, "model": "deepseek-flash", "usage": None}]
    )
    with path.open("a") as lines:
        lines.write('{"time": "2026-05-01T00:00:00Z", "model": "deepseek-flash", "usage": {"prompt_tokens": 1\n')
        lines.write('{"time": "soon", "model": "deepseek-flash", "usage": {}}\n')
        lines.write(json.dumps(row("2026-05-01T00:00:00Z", -5, 10, 1)) + "\n")
    got = report("--usage", path, code=3)
    assert got["total"] == {"currency": "USD", "amount": None, "at_least": "1.3758946768", "at_most": None}
    assert (got["requests"]["priced"], got["requests"]["unpriced"]) == (1, 5)
    assert {(group["reason"], *group["first"]) for group in got["unpriced"]} == {
        ("unknown_model", "u.jsonl:2"),
        ("no_usage", "u.jsonl:3"),
        ("unreadable", "u.jsonl:4"),
        ("unreadable", "u.jsonl:5"),
        ("bad_usage", "u.jsonl:6"),
    }
    shown = price("--usage", path)
    assert shown.exit_code == 3
    assert "5 WITHOUT A PRICE" in shown.stdout
    assert "at least USD 1.37589, without an upper bound" in shown.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("{}\n", "no log of a format that is read, nor lines of {time, model, usage}"),
        ('{"time": 1794790800, "model": "gpt-9", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n', "gpt-9"),
        ('{"time": 1794790800, "model": "deepseek-flash", "usage": null}\n', "not one request has a price"),
        ('{"kvbench_trace": 1}\n', "a native trace"),
        (f'{{"batch": "true", {GOOD}}}\n', "batch: true or false"),
        (f'{{"end": "2026-11-16T00:59:57Z", {GOOD}}}\n', "end: 2026-11-16T00:59:57+00:00 is before"),
    ],
)
def test_nothing_to_price_is_an_error_and_never_0(kvbench: Kvbench, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "u.jsonl").write_text(text)
    done = kvbench("price", "--usage", "u.jsonl", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "one of RUN, --usage FILE and --estimate TRACE"),
        (("x", "--usage", "u.jsonl"), "one of RUN, --usage FILE and --estimate TRACE"),
        (("--usage", "u.jsonl", "--currency", "EUR"), "no list in it; there are CNY, USD"),
        (("--usage", "u.jsonl", "--date", "soon"), "--date soon: not a date"),
        (("--estimate", "agent-trace.jsonl", "--model", "deepseek-flash", "--at", "end"), "--at is about requests"),
        (("--usage", "u.jsonl", "--date", "9999-12-31"), "--date 9999-12-31: not a date"),
        (("--usage", "u.jsonl", "--prices", "nope"), "no price book 'nope'"),
        (("nowhere",), "no run directory"),
        (("--estimate", "agent-trace.jsonl"), "the trace names no model"),
    ],
)
def test_what_cannot_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    usage_file(tmp_path / "u.jsonl", MAY)
    monkeypatch.chdir(tmp_path)
    done = price(*arguments)
    assert isinstance(done.exception, KvbenchError)
    assert done.exception.exit_code == 2
    assert says in done.exception.message


def test_mixed_currencies_are_refused(tmp_path: Path) -> None:
    own_book(tmp_path, "none", ("USD", "CNY"), ('"deepseek-flash"', '"x"'))
    path = usage_file(tmp_path / "u.jsonl", [*MAY, row("2026-05-01T00:00:00Z", 1, 1, 1, "m")])
    done = price("--usage", path, "--prices", "deepseek", "--prices", tmp_path / "own.toml")
    assert isinstance(done.exception, KvbenchError)
    assert "several currencies (CNY 1, USD 1)" in done.exception.message


def test_a_run_is_priced_attempt_by_attempt() -> None:
    # 2592 hit, 1908 missed, 15 output tokens on a Monday off-peak; a refusal is free, what broke off may be billed
    got = report(FIXTURE, "--model", "deepseek-flash", code=3)
    assert got["total"] == {"currency": "USD", "amount": None, "at_least": "0.000302976", "at_most": None}
    assert {kind: part["tokens"] for kind, part in got["by_kind"].items()} == {"hit": 2592, "miss": 1908, "output": 15}
    assert got["requests"] == {
        "priced": 5,
        "unpriced": 1,
        "failed_without_usage": 1,
        "not_sent": 1,
        "duplicates": 0,
    }
    assert [(group["reason"], group["first"]) for group in got["unpriced"]] == [("no_usage", ["q5"])]
    assert got["first"] == "2026-11-30T00:00:00.000900Z"
    assert any("went to 127.0.0.1" in note for note in got["notes"])
    assert any("did not note when its clock began" in note for note in got["notes"])
    done = price(FIXTURE)
    assert isinstance(done.exception, KvbenchError)
    assert "no price for the model tiny" in done.exception.message


def test_what_was_aborted_in_flight_may_be_billed(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "run")
    path = tmp_path / "run" / "records.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    clock = last["clock"] | {"end": 5_500_000_000}
    aborted = last | {"request_id": "q7", "error_class": "cancelled", "clock": clock}
    retry = last | {"request_id": "q8", "error_class": "cancelled"}
    path.write_text(path.read_text() + json.dumps(aborted) + "\n" + json.dumps(retry) + "\n")
    got = report(tmp_path / "run", "--model", "deepseek-flash", code=3)
    # q6 was skipped and q8 never made again; of q5 and q7 nobody knows what they used
    assert (got["requests"]["not_sent"], got["requests"]["unpriced"]) == (2, 2)
    assert [group["first"] for group in got["unpriced"]] == [["q5", "q7"]]


def test_hits_against_what_was_expected(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "run")
    path = tmp_path / "run" / "expectations.jsonl"
    # q2 hit 992 of a floor of 1,100; q4 hit 960 where 900 was the most
    text = path.read_text().replace('"floor":992,"ceiling":992', '"floor":1100,"ceiling":1150')
    path.write_text(text.replace('"ceiling":960', '"ceiling":900'))
    got = report(tmp_path / "run", "--model", "deepseek-flash", code=3)
    found = {each["kind"]: (each["amount"], each["tokens"], each["requests"]) for each in got["findings"]}
    # 108 and 60 tokens at 0.15 - 0.003
    assert found == {"hits_below_expected": ("0.000015876", 108, 1), "hits_above_expected": ("0.00000882", 60, 1)}
    ideal = got["counterfactuals"]["ideal_cache"]
    # q2 hits 158 more, q4 60 less
    assert Decimal(ideal["amount"]) == Decimal("0.000302976") - 98 * Decimal("0.000000147")
    assert ideal["requests_with_expectation"] == 3


def test_a_run_costs_what_the_endpoint_charged(tmp_path: Path) -> None:
    """Request by request, against the books of a simulated endpoint that shares no code with kvbench."""
    prices = {"price_hit_per_mtok": 1000, "price_miss_per_mtok": 10_000, "price_output_per_mtok": 100_000}
    settings = {**prices, "peak_hours_utc": "", "unit_build_s": 0, "decode_base_s": 0.001, "prefill_base_s": 0.01}
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t", "block_size": 64}]
    for number in range(3):
        ids = list(range(100 * number, 100 * number + 9))
        common = {"session_id": f"s{number}", "output_tokens": 7}
        lines.append(common | {"turn": 0, "input_tokens": 9 * 64, "hash_ids": ids})
        lines.append(
            common | {"turn": 1, "input_tokens": 12 * 64, "keep_blocks": 9, "hash_ids": [ids[-1] + 1, 7000, 7001]}
        )
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own_book(tmp_path, "units", ("write_5m = 12_500\nwrite_1h = 20_000", 'write = "miss"'))
    with SimProcess.start("deepseek-api", settings=settings, time_scale=0) as sim:
        (tmp_path / "e.toml").write_text(f'url = "{sim.url}"\nmodel = "deepseek-flash"\n')
        where = ("--endpoint", str(tmp_path / "e.toml"), "--out", str(tmp_path / "runs"))
        began = datetime.now(UTC)
        ran = CliRunner().invoke(app, ["run", str(tmp_path / "t.jsonl"), *where, "--time-scale", "0", "--json"])
        ended = datetime.now(UTC)
        assert ran.exit_code in (0, 3), ran.output
        for _ in range(200):  # it writes a request's line after the answer's last byte has left
            truth = [json.loads(line) for line in httpx.get(f"{sim.url}/sim/truth").text.splitlines()]
            if len(truth) == 6:
                break
            time.sleep(0.05)
    assert len(truth) == 6
    got = report(json.loads(ran.stdout)["run"], "--prices", tmp_path / "own.toml")
    assert Decimal(got["total"]["amount"]) == sum(Decimal(each["price"]) for each in truth)
    assert got["by_kind"]["hit"]["tokens"] > 0
    assert began < datetime.fromisoformat(got["first"]) < datetime.fromisoformat(got["last"]) < ended


def test_a_run_stops_before_it_costs_more(tmp_path: Path) -> None:
    own_book(tmp_path, "none", ("write_5m = 12_500\nwrite_1h = 20_000", 'write = "miss"'))
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t"}]
    for number in range(40):
        message = {"role": "user", "content": f"{number} " + "word " * 100}
        lines.append({"session_id": f"s{number}", "turn": 0, "output_tokens": 5, "append": [message]})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"peak_hours_utc": "", "decode_base_s": 0.001, "prefill_base_s": 0.01}
    with SimProcess.start("deepseek-api", settings=settings, time_scale=0) as sim:
        (tmp_path / "e.toml").write_text(f'url = "{sim.url}"\nmodel = "deepseek-flash"\n')
        arguments = ["run", str(tmp_path / "t.jsonl"), "--endpoint", str(tmp_path / "e.toml"), "--time-scale", "0"]
        arguments += ["--prices", str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs"), "--json"]
        ran = CliRunner().invoke(app, [*arguments, "--max-cost", "40"])
    assert ran.exit_code == 3
    summary = json.loads(ran.stdout)
    assert "max_cost" in [warning["code"] for warning in summary["warnings"]]
    got = report(summary["run"], "--prices", tmp_path / "own.toml")
    # A request's worst is at most 13 (some 1,200 tokens at 0.01, 5 at 0.1), so at least 27 must have been used.
    assert 27 < Decimal(got["total"]["amount"]) <= 40
    assert f"at most USD {got['total']['amount']}," in ran.stdout
    info = json.loads((Path(summary["run"]) / "run.json").read_text())
    assert info["settings"]["max_cost"] == {"amount": "40", "currency": "USD", "books": ["own"]}
    for wrong in (["--max-cost", "0"], ["--max-cost", "1", "--output", "free"], []):
        done = CliRunner().invoke(app, [*arguments, *wrong])
        assert isinstance(done.exception, KvbenchError)


def claude_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_limit_without_a_price_is_refused_before_anything_is_sent(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("run", "agent-trace.jsonl", "--endpoint", "sim:tiny", "--max-cost", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--max-cost: no price for the model" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
def test_a_claude_log_is_priced_by_the_last_usage_of_each_message(tmp_path: Path) -> None:
    log = Path(DATA or "") / "tracelab" / "claude_session.jsonl"
    own_book(tmp_path, "none")
    last: dict[str, dict[str, Any]] = {}
    for line in claude_lines(log):
        if line.get("type") == "assistant":
            last[line["message"]["id"]] = line["message"]["usage"]
    assert len(last) == 10
    expected = Decimal(0)
    for usage in last.values():
        parts = usage["cache_creation"]
        expected += (
            1000 * usage["cache_read_input_tokens"]
            + 10_000 * usage["input_tokens"]
            + 12_500 * parts["ephemeral_5m_input_tokens"]
            + 20_000 * parts["ephemeral_1h_input_tokens"]
            + 100_000 * usage["output_tokens"]
        )
    got = report("--usage", log, "--prices", tmp_path / "own.toml")
    assert Decimal(got["total"]["amount"]) == expected / 10**6
    derived = claude_lines(log.parent / "derived_round_trace.jsonl")
    rounds = [each for each in derived if each["provider"] == "claude"]
    assert got["input_tokens"] == sum(each["input_tokens_total"] for each in rounds)
    assert got["by_kind"]["hit"]["tokens"] == sum(each["claude_cache_read_input_tokens"] for each in rounds)
    assert got["by_kind"]["output"]["tokens"] == sum(each["output_tokens"] for each in rounds)
    chance = random.Random(3)
    lines = claude_lines(log)
    chance.shuffle(lines)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("".join(json.dumps(line, separators=(" , ", " : ")) + "\n" for line in lines))
    assert report("--usage", mixed, "--prices", tmp_path / "own.toml")["total"] == got["total"]


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
def test_a_placeholder_in_a_log_is_an_interval(tmp_path: Path) -> None:
    own_book(tmp_path, "none")
    got = report(
        "--usage", Path(DATA or "") / "claude-code/spotter/short.jsonl", "--prices", tmp_path / "own.toml", code=3
    )
    output = got["by_kind"]["output"]
    # one call, whose 13 tokens were counted at the stream's start
    assert (output["tokens"], output["at_least"], output["amount"]) == (13, "1.3", None)
    assert output["most_tokens"] > 100
    assert "output_open" in [found["kind"] for found in got["findings"]]


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
def test_an_estimate_of_a_published_trace(tmp_path: Path) -> None:
    """Against an LRU of unbounded size that was computed apart: 11,349 blocks of 512, 9,821 of them distinct."""
    own_book(tmp_path, "none")
    trace = Path(DATA or "") / "mooncake" / "conversation_first400.jsonl"
    got = report("--estimate", trace, "--model", "m", "--prices", tmp_path / "own.toml")
    hits = got["by_kind"]["hit"]
    whole = (11_349 - 9_821) * 512
    assert hits["tokens"] == 0  # no rule is known
    assert whole <= hits["most_tokens"] <= whole + 400 * 511
    assert got["input_tokens"] == 5_710_530
    wanted = sum(json.loads(line)["output_length"] for line in trace.read_text().splitlines())
    assert got["by_kind"]["output"]["most_tokens"] == wanted
    assert got["total"]["at_most"] == str(Decimal(5_710_530 * 10_000 + wanted * 100_000) / 10**6)


@pytest.mark.parametrize(
    ("date", "changes"),
    [
        ("2026-11-16T00:57:00Z", True),  # peak from 01:00 on
        ("2026-11-16T00:52:00Z", True),  # where it takes twice as long
        ("2026-11-16T00:30:00Z", False),
        ("2026-11-15T00:57:00Z", False),  # a Sunday
    ],
)
def test_an_estimate_says_where_the_price_changes_under_it(tmp_path: Path, date: str, changes: bool) -> None:
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t", "block_size": 64}]
    for number in range(2):
        ids = list(range(10 * number, 10 * number + 10))
        start = {"session_id": f"s{number}", "turn": 0, "start_s": 300.0 * number}
        lines.append(start | {"input_tokens": 640, "output_tokens": 7, "hash_ids": ids})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    got = report("--estimate", tmp_path / "t.jsonl", "--model", "deepseek-flash", "--date", date)
    assert any("the price changes while it is replayed" in note for note in got["notes"]) == changes


def test_an_estimate_knows_what_is_too_short_to_be_cached(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t", "block_size": 64}]
    for number, blocks in enumerate((10, 20)):
        common = {"session_id": f"s{number}", "output_tokens": 7}
        ids = list(range(100 * number, 100 * number + blocks))
        lines.append(common | {"turn": 0, "input_tokens": 64 * blocks, "hash_ids": ids})
        more = {"input_tokens": 64 * blocks + 64, "keep_blocks": blocks, "hash_ids": [9000 + number]}
        lines.append(common | {"turn": 1, "delay_s": 1.0} | more)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own_book(tmp_path, "steps", ("miss = 10_000", "miss = 10_000\nminimum_cacheable_tokens = 1300"))
    got = report("--estimate", tmp_path / "t.jsonl", "--model", "m", "--prices", tmp_path / "own.toml")
    # 1,280 tokens are ten steps, and too few; with the 7 that were generated they are no more steps
    assert "hit" not in got["by_kind"]
    own_book(tmp_path, "steps")
    got = report("--estimate", tmp_path / "t.jsonl", "--model", "m", "--prices", tmp_path / "own.toml")
    assert got["by_kind"]["hit"]["tokens"] == 1280
    assert "most_tokens" not in got["by_kind"]["hit"]


def test_an_estimate_contains_what_the_run_then_costs(tmp_path: Path) -> None:
    own_book(tmp_path, "units")
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t", "block_size": 64}]
    for number, pause_s in enumerate((20.0, 5.0, 400.0)):
        common = {"session_id": f"s{number}", "output_tokens": 7}
        ids = [1, 2, *range(100 * number + 10, 100 * number + 18)]
        lines.append(common | {"turn": 0, "start_s": 1.0 * number, "input_tokens": 640, "hash_ids": ids})
        lines.append(
            common
            | {"turn": 1, "delay_s": pause_s, "input_tokens": 704, "keep_blocks": 10, "hash_ids": [9000 + number]}
        )
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    got = report("--estimate", tmp_path / "t.jsonl", "--model", "m", "--prices", tmp_path / "own.toml")
    hits = got["by_kind"]["hit"]
    # Only after 20 s is the first prompt surely a unit, and surely still there: 640 tokens, five times 128.
    assert hits["tokens"] == 640
    # Second turns may hit the first prompt and the 7 tokens that answered it, in steps of 64. First turns share two
    # blocks and a part of the third; before the very first prompt there is nothing.
    assert hits["most_tokens"] == 3 * 640 + 2 * 128
    assert got["by_kind"]["output"]["tokens"] == 6
    assert got["by_kind"]["output"]["most_tokens"] == 42
