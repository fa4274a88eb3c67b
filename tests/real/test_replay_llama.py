"""Whole runs against a real llama.cpp: token-granular hits, slots instead of blocks, and its way with connections."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.llama import LlamaServer

pytestmark = pytest.mark.real

SEEDS = itertools.count(1)


def trace(path: Path, sessions: int, turns: int = 3) -> Path:
    """Sessions that share nothing but the template, their turns in rounds, one request at a time."""
    seed = next(SEEDS)
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "slots"}]
    for turn in range(turns):
        for session in range(sessions):
            text = f"{seed} {session} {turn} look at def f{session}_{seed}(x): return x + {turn}; " * 25
            append = [{"role": "user", "content": text}]
            if turn:
                append.insert(0, {"role": "assistant", "content": f"seen {turn}"})
            when = {"delay_s": 2.0} if turn else {"start_s": session * 0.4}
            lines.append({"session_id": f"s{session}", "turn": turn, "append": append, "output_tokens": 6} | when)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def kvbench(tmp_path: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *map(os.fspath, arguments)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run(tmp_path: Path, sessions: int, endpoint: Any, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = kvbench(
        tmp_path,
        "run",
        trace(tmp_path / "t.jsonl", sessions),
        "--endpoint",
        endpoint,
        "--salt",
        "tree",
        "--json",
        *more,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: two busy cores may be too slow to be trusted
    got: dict[str, Any] = json.loads(done.stdout)
    assert got["requests"]["ok"] == sessions * 3, got["errors"]
    rows = (tmp_path / got["run"] / "records.jsonl").read_text().splitlines()
    return got, [json.loads(row) for row in rows]


def test_as_many_sessions_as_slots_hit_what_they_sent_and_one_more_loses_it(llama: LlamaServer, tmp_path: Path) -> None:
    """Each turn repeats the one before, up to the recorded answer, token by token."""
    hits: dict[int, list[float]] = {}
    for sessions in (llama.settings.slots, llama.settings.slots + 1):
        got, records = run(tmp_path, sessions, llama.url)
        assert (got["model"], got["server"], got["rule"]) == ("tiny", "llama.cpp", "none")
        assert got["expected_hit_rate"] is None
        prompts = {(r["session_id"], r["turn"]): r["usage"] for r in records}
        hits[sessions] = [
            usage["cached_tokens"] / prompts[session, turn - 1]["input_tokens"]
            for (session, turn), usage in prompts.items()
            if turn
        ]
    assert min(hits[llama.settings.slots]) > 0.97
    assert max(hits[llama.settings.slots + 1]) < 0.2


def test_blocks_of_one_token_are_its_rule_within_the_slots(llama: LlamaServer, tmp_path: Path) -> None:
    endpoint = tmp_path / "llama.toml"
    endpoint.write_text(f'url = "{llama.url}"\n[expected_hits]\nrule = "block"\nblock_size = 1\n')
    got, records = run(tmp_path, 1, endpoint)
    lines = (tmp_path / got["run"] / "expectations.jsonl").read_text().splitlines()
    expected = {line["request_id"]: line["expectation"] for line in map(json.loads, lines)}
    assert len(expected) == 3
    for record in records:
        usage, allowed = record["usage"], expected[record["request_id"]]
        assert usage["input_tokens"] == allowed["input_tokens"]  # /apply-template and /tokenize say the same
        if record["turn"]:
            assert allowed["floor"] <= usage["cached_tokens"] <= allowed["ceiling"], (usage, allowed)
            assert allowed["floor"] > 0.9 * records[record["turn"] - 1]["usage"]["input_tokens"]


def test_a_model_it_does_not_have_is_refused_by_kvbench_since_it_would_serve_another(
    llama: LlamaServer, tmp_path: Path
) -> None:
    done = kvbench(tmp_path, "run", trace(tmp_path / "t.jsonl", 1), "--endpoint", llama.url, "--model", "nonesuch")
    assert done.returncode == 2
    assert "'nonesuch' is not served; served: tiny" in done.stderr


def test_connections_it_closes_cost_no_turn(llama: LlamaServer, tmp_path: Path) -> None:
    """It closes kept-alive connections after some seconds or requests: whatever the moment, nothing fails."""
    path = tmp_path / "many.jsonl"
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "many"}]
    for turn in range(150):
        append = [{"role": "user", "content": f"{turn}"}]
        lines.append({"session_id": "s", "turn": turn, "messages": append, "output_tokens": 1})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = kvbench(tmp_path, "run", path, "--endpoint", llama.url, "--time-scale", "0", "--json")
    got = json.loads(done.stdout)
    assert got["requests"] == {"ok": 150, "failed": 0, "skipped": 0, "retried": 0}
    rows = [json.loads(r) for r in (tmp_path / got["run"] / "records.jsonl").read_text().splitlines()]
    again = sum(bool(row["clock"].get("retried_stale")) for row in rows)
    assert ("sent_again" in {w["code"] for w in got["warnings"]}) == (again > 0)
