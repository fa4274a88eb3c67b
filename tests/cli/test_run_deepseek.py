"""Whole runs against an API that speaks DeepSeek's dialect: thinking, limits and the account's balance."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deepseek_api import KEY, DeepSeekApi, deepseek_api

from .conftest import Kvbench, environment

ENV = {"DEEPSEEK_API_KEY": KEY}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}


@pytest.fixture
def api() -> Iterator[DeepSeekApi]:
    with deepseek_api() as api:
        yield api


def trace(tmp_path: Path, reasoning: str | None = None, sessions: int = 1) -> Path:
    answer: dict[str, Any] = {"role": "assistant", "content": "recorded"}
    if reasoning is not None:
        answer["reasoning_content"] = reasoning
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "two-turns"}]
    for number in range(sessions):
        first = {"role": "user", "content": f'{number} what does "reasoning_content": "x" mean'}
        common = {"session_id": f"s{number}", "output_tokens": 8}
        lines.append(common | {"turn": 0, "tools": [TOOL], "append": [first]})
        lines.append(common | {"turn": 1, "append": [answer, {"role": "user", "content": "go on"}]})
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def profile(tmp_path: Path, api: DeepSeekApi, more: str = "") -> Path:
    path = tmp_path / "deepseek.toml"
    path.write_text(
        f'url = "{api.url}"\ndialect = "deepseek"\nmodel = "deepseek-v4-flash"\nkey_env = "DEEPSEEK_API_KEY"\n{more}'
    )
    return path


def run(kvbench: Kvbench, *arguments: Any) -> dict[str, Any]:
    done = kvbench("run", *arguments, "--time-scale", "0", "--json", env=ENV)
    assert "Traceback" not in done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def run_info(got: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((tmp_path / got["run"] / "run.json").read_text())
    return info


def test_a_recorded_history_without_reasoning_disables_thinking(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    got = run(kvbench, trace(tmp_path), "--endpoint", profile(tmp_path, api))
    assert got["requests"]["ok"] == 2
    assert [body["thinking"] for body in api.bodies] == [{"type": "disabled"}] * 2
    assert [body["model"] for body in api.bodies] == ["deepseek-v4-flash"] * 2
    assert all("ignore_eos" not in body and body["max_tokens"] == 8 for body in api.bodies)
    assert run_info(got, tmp_path)["settings"]["thinking"] == "disabled"
    assert got["reasoning_tokens"] is None
    assert got["server"] == "DeepSeek API"


def test_reasoning_in_the_trace_leaves_thinking_on_and_is_sent_back(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    got = run(kvbench, trace(tmp_path, reasoning="as recorded"), "--endpoint", profile(tmp_path, api))
    assert got["requests"]["ok"] == 2
    assert all("thinking" not in body for body in api.bodies)
    assert api.bodies[1]["messages"][1]["reasoning_content"] == "as recorded"
    assert got["reasoning_tokens"] == 8
    assert got["ttfo_s"]["p50"] > got["ttft_s"]["p50"]


def test_live_history_sends_what_the_model_just_thought_back_with_tools(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    got = run(kvbench, trace(tmp_path), "--endpoint", profile(tmp_path, api), "--history", "live")
    assert got["requests"]["ok"] == 2, got["errors"]
    assert "thinking" not in api.bodies[0]
    assert api.bodies[1]["messages"][1] == {
        "role": "assistant",
        "content": " word" * 4,
        "reasoning_content": " hm" * 4,
    }


def test_the_balance_bounds_the_bill(kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path) -> None:
    api.balances = [{"USD": "110.00", "CNY": "3.00"}, {"USD": "109.95", "CNY": "3.00"}]
    endpoint = profile(tmp_path, api, "balance = true\n")
    got = run(kvbench, trace(tmp_path), "--endpoint", endpoint)
    dollars = {"currency": "USD", "before": "110.00", "after": "109.95", "at_least": "0.03", "at_most": "0.07"}
    yuan = {"currency": "CNY", "before": "3.00", "after": "3.00", "at_least": "0.00", "at_most": "0.02"}
    assert got["balance"] == run_info(got, tmp_path)["balance"] == [dollars, yuan]
    events = [json.loads(line) for line in (tmp_path / got["run"] / "events.jsonl").read_text().splitlines()]
    assert [(e["phase"], e["totals"]) for e in events if e["kind"] == "balance"] == [
        ("start", {"USD": "110.00", "CNY": "3.00"}),
        ("end", {"USD": "109.95", "CNY": "3.00"}),
    ]
    shown = kvbench("show", tmp_path / got["run"]).stdout
    assert "USD 110.00 -> 109.95: 0.03 to 0.07 spent" in shown
    assert sum(path.endswith("/user/balance") for path in api.paths) == 2


def test_an_interrupt_after_the_last_turn_keeps_what_was_measured(api: DeepSeekApi, tmp_path: Path) -> None:
    """What is left then, the balance and the expected hits, is given up."""
    api.balances, api.holds_last_balance = [{"USD": "110.00"}, {"USD": "109.95"}], True
    endpoint = profile(tmp_path, api, "balance = true\n")
    command = [sys.executable, "-m", "kvbench", "run", trace(tmp_path), "--endpoint", endpoint, "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment() | ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert api.last_balance_asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        api.last_balance_let.set()
    assert (process.returncode, "Traceback" in err) == (130, False)
    got = json.loads(out)
    assert (got["status"], got["requests"]["ok"]) == ("interrupted", 2)
    assert [(spent["before"], spent["after"], spent["at_most"]) for spent in got["balance"]] == [("110.00", None, None)]
    assert run_info(got, tmp_path)["status"] == "interrupted"
    codes = [warning["code"] for warning in got["warnings"]]
    assert ("expectation_incomplete" in codes, "no_expectation" in codes) == (True, False)


def test_a_balance_that_cannot_be_read_is_a_warning_and_none(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    api.balances = []
    got = run(kvbench, trace(tmp_path), "--endpoint", profile(tmp_path, api, "balance = true\n"))
    assert got["requests"]["ok"] == 2
    assert got["balance"] is None
    assert [w["code"] for w in got["warnings"]].count("balance_not_read") == 2


def test_nobody_who_does_not_ask_reads_the_balance(kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path) -> None:
    got = run(kvbench, trace(tmp_path), "--endpoint", profile(tmp_path, api))
    assert got["balance"] is None
    assert not any("balance" in path for path in api.paths)


def test_the_endpoints_own_limit_holds_whatever_is_asked_for(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    endpoint = profile(tmp_path, api, "[limits]\nin_flight = 2\n")
    got = run(kvbench, trace(tmp_path, sessions=6), "--endpoint", endpoint, "--max-in-flight", "5")
    assert got["requests"]["ok"] == 12
    assert api.most_at_a_time == 2
    assert "in_flight_limit" in [w["code"] for w in got["warnings"]]


def test_prompts_made_before_the_template_was_known_are_made_the_same_again(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    """The first answer tells what the template adds: 4 tokens, by which the prompts before it are too long."""
    path = tmp_path / "m.jsonl"
    rows = [{"timestamp": 0, "input_length": 600 + i, "output_length": 4, "hash_ids": [0, i]} for i in range(1, 13)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    got = run(kvbench, path, "--endpoint", profile(tmp_path, api, 'tokenizer = "deepseek"\n'))
    run_dir = tmp_path / got["run"]
    reported = {r["request_id"]: r for r in map(json.loads, (run_dir / "records.jsonl").read_text().splitlines())}
    over = [r["usage"]["input_tokens"] - r["wanted_input_tokens"] for r in reported.values()]
    assert sorted(set(over)) == [0, 4], "some were made before, some after"
    expected = [json.loads(line) for line in (run_dir / "expectations.jsonl").read_text().splitlines()]
    assert len(expected) == 12
    for line in expected:
        told = reported[line["request_id"]]["usage"]["input_tokens"]
        assert line["expectation"]["input_tokens"] == told


def test_the_key_is_in_no_artefact(kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path) -> None:
    api.fail = (401, f"Authentication Fails, Your api key: {KEY} is invalid")
    endpoint = profile(tmp_path, api, "balance = true\n")
    done = kvbench("run", trace(tmp_path), "--endpoint", endpoint, env=ENV)
    assert done.returncode == 3
    assert KEY not in done.stdout + done.stderr
    for file in (tmp_path / "runs").rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes(), file


def test_without_its_key_the_public_api_is_not_even_asked(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("run", trace(tmp_path), "--endpoint", "deepseek", env={"DEEPSEEK_API_KEY": ""})
    assert done.returncode == 2
    assert "DEEPSEEK_API_KEY" in done.stderr
