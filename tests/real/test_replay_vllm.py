"""Whole runs against a real vLLM: what it reports has to be what the block rule expects, and nothing may be lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.sizes import roomy, tight
from servers.vllm import VllmServer

from kvbench.traces.bundled import resolve_trace

pytestmark = pytest.mark.real


def run(kvbench: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    done: subprocess.CompletedProcess[str] = kvbench("run", *arguments, "--json", **options)
    assert done.returncode in (0, 3), done.stderr  # 3: two busy cores may be too slow to be trusted
    assert "Traceback" not in done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def rows(got: dict[str, Any], cwd: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cwd / got["run"] / name).read_text().splitlines()]


@roomy
def test_in_the_bundled_trace_every_hit_is_what_the_rule_expects_and_lengths_are_exact(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    """The first seven roots of it, with their sub-agents: all 18 sessions take 200 s here."""
    trace = tmp_path / "part.jsonl"
    bundled = resolve_trace("agent-trace.jsonl").read_text().splitlines()
    turns = [row for row in map(json.loads, bundled) if row.get("session_id", "s99").partition(".")[0] <= "s07"]
    trace.write_text("\n".join([line for line in bundled if '"session_id"' not in line] + list(map(json.dumps, turns))))
    got = run(kvbench, trace, "--endpoint", vllm.url, "--time-scale", "0.02", timeout_s=600)
    assert got["requests"] == {"ok": len(turns), "failed": 0, "skipped": 0, "retried": 0}
    assert got["output_tokens"] == got["wanted_output_tokens"] == sum(turn["output_tokens"] for turn in turns)
    assert got["rule"] == "block 32"
    expectations = {e["request_id"]: e["expectation"] for e in rows(got, tmp_path, "expectations.jsonl")}
    records = rows(got, tmp_path, "records.jsonl")
    assert len(expectations) == len(records) == len(turns) > 80
    points = 0
    for record in records:
        usage, expected = record["usage"], expectations[record["request_id"]]
        where = (record["session_id"], record["turn"], usage, expected)
        assert usage["input_tokens"] == expected["input_tokens"], where
        assert expected["floor"] <= usage["cached_tokens"] <= expected["ceiling"], where
        points += expected["floor"] == expected["ceiling"]
        if record["session_id"] == "s01" and record["turn"] > 0:
            # alone in its session, with its own prompt before it: a point, and the greater part of the prompt
            assert expected["floor"] == expected["ceiling"] > 0, where
    # only turns that share an uncached prefix with one in flight may be intervals: the first ones of each prompt
    assert points >= len(turns) - 15
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0
    # the tools are in the prompt: without them the first prompt would be far shorter
    assert records[0]["usage"]["input_tokens"] > 2_000
    assert got["server_metrics"]["prefix_hit_tokens"] == got["cached_tokens"]
    assert got["server_metrics"]["preemptions"] == 0


@roomy
def test_live_history_and_completions_stay_inside_the_expectation(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "live.jsonl"
    trace.write_text(busy_trace(sessions=3, turns=4, output_tokens=90))
    got = run(kvbench, trace, "--endpoint", vllm.url, "--history", "live", "--time-scale", "0.1")
    assert got["requests"]["ok"] == 12
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0
    assert got["expected_hit_rate"]["turns"] == 12


def busy_trace(sessions: int, turns: int, output_tokens: int, words: int = 40) -> str:
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "busy"}]
    for number in range(sessions):
        for turn in range(turns):
            append: list[dict[str, str]] = [{"role": "user", "content": f"{number} {turn} look at def f(x): " * words}]
            if turn:
                append.insert(0, {"role": "assistant", "content": f"seen {turn - 1}"})
            line = {"session_id": f"s{number}", "turn": turn, "append": append, "output_tokens": output_tokens}
            lines.append(line | ({"delay_s": 0.2} if turn else {"start_s": 0.0}))
    return "".join(json.dumps(line) + "\n" for line in lines)


@tight
def test_a_pool_below_the_working_set_loses_hits_and_preempts_and_loses_nothing(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    """16 sessions with prompts of about 1,000 and then 2,000 tokens that grow by 120, in a pool of 16,352."""
    trace = tmp_path / "busy.jsonl"
    trace.write_text(busy_trace(sessions=16, turns=2, output_tokens=120, words=100))
    tight_run = run(kvbench, trace, "--endpoint", vllm.url)
    assert tight_run["requests"] == {"ok": 32, "failed": 0, "skipped": 0, "retried": 0}
    assert tight_run["output_tokens"] == 32 * 120
    assert tight_run["server_metrics"]["preemptions"] > 0
    assert "preemptions" in {warning["code"] for warning in tight_run["warnings"]}
    assert len(rows(tight_run, tmp_path, "records.jsonl")) == 32
    # one session at a time fits, and then every earlier prompt is still there
    alone = run(kvbench, trace, "--endpoint", vllm.url, "--sessions", "1")
    assert alone["requests"]["ok"] == 32
    assert alone["expected_hit_rate"]["below"] == alone["expected_hit_rate"]["above"] == 0
    assert tight_run["hit_rate"] < 0.8 * alone["hit_rate"]
    assert tight_run["expected_hit_rate"]["below"] == tight_run["expected_hit_rate"]["above"] == 0


@tight
def test_a_context_overflow_is_one_failed_record(vllm: VllmServer, kvbench: Any, tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text(busy_trace(sessions=2, turns=1, output_tokens=20).replace("0 0 look", "word " * 400 + "0 0 look"))
    got = run(kvbench, trace, "--endpoint", vllm.url)
    assert got["requests"]["failed"] == 1
    assert got["errors"] == {"context_overflow": 1}


@tight
def test_a_wrong_model_is_found_before_the_first_turn(vllm: VllmServer, kvbench: Any) -> None:
    done = kvbench("run", "agent-trace.jsonl", "--endpoint", vllm.url, "--model", "other")
    assert done.returncode == 2
    assert "tiny" in done.stderr


@tight
def test_the_clients_ttft_agrees_with_the_servers_own(
    vllm: VllmServer, kvbench: Any, client: httpx.Client, tmp_path: Path
) -> None:
    trace = tmp_path / "quiet.jsonl"
    trace.write_text(busy_trace(sessions=4, turns=4, output_tokens=30))
    got = run(kvbench, trace, "--endpoint", vllm.url, "--sessions", "1")
    server = got["server_metrics"]
    assert server["requests"] == 16
    # both count from the request; the client's way is longer by a loopback and an API server's turn
    assert got["ttft_s"]["mean"] >= server["ttft_mean_s"] * 0.9
