"""`kvbench trace synth` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench

LONGEST = 22_398
"""The longest prompt of the bundled workload, at 4 characters a token."""


def test_a_recipe_becomes_a_trace_that_runs(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "brief.toml").write_text('extends = "tool-chat"\n[shape]\nturns = [2, 2]\noutput_tokens = 30\n')
    done = kvbench("trace", "synth", "brief.toml", "-o", "chat.jsonl", "--sessions", 1, "--seed", 8, "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["name"], made["seed"], made["trees"], made["sessions"]) == ("tool-chat", 8, 1, 1)
    valid = kvbench("trace", "validate", "chat.jsonl").stdout
    assert valid == f"chat.jsonl: valid, 1 session, {made['turns']} turns\n"
    ran = kvbench("run", "chat.jsonl", "--endpoint", "sim", "--time-scale", 0, "--json")
    assert ran.returncode in (0, 3), ran.stderr
    assert json.loads(ran.stdout)["requests"]["ok"] == made["turns"]


def test_blocks_run_too(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text(
        'extends = "long-context"\nname = "short"\nmax_input_tokens = 1500\n'
        "[root]\nturns = 3\noutput_tokens = 4\ngrowth_tokens = 50\npause_s = 0\n"
        'begins = [{ with = "prompt", blocks = 10, new_tokens = 300 }]\n'
    )
    done = kvbench("trace", "synth", "short.toml", "-o", "short.jsonl")
    assert done.stdout.splitlines() == [
        "made       short, seed 11: 4 trees, 4 sessions, 12 turns",
        "next       kvbench run short.jsonl --endpoint sim",
    ]
    ran = kvbench("run", "short.jsonl", "--endpoint", "sim", "--time-scale", 0, "--json")
    assert ran.returncode in (0, 3), ran.stderr
    summary = json.loads(ran.stdout)
    # 10 blocks of 64, 300 new tokens and twice 50: what each of four sessions sends in three turns
    assert summary["input_tokens"] == 4 * (940 + 990 + 1040)
    assert summary["requests"]["ok"] == 12


def test_the_trace_can_go_to_standard_output(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "synth", "coding-agent")
    assert done.returncode == 0
    assert done.stderr == "made       agent-demo, seed 7: 13 trees, 18 sessions, 215 turns\n"
    assert done.stdout.encode() == (Path(__file__).parents[2] / "workloads" / "agent-trace.jsonl").read_bytes()


def test_a_wrong_recipe_leaves_no_file(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('extends = "tool-chat"\nsead = 3\n')
    done = kvbench("trace", "synth", "wrong.toml", "-o", "out.jsonl")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "kvbench: wrong.toml:2: sead: unknown field"
    assert not (tmp_path / "out.jsonl").exists()


def test_a_trace_like_the_bundled_one(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "synth", "--like", "agent-trace", "-o", "like.jsonl", "--recipe", "like.toml", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["source"] == "like agent-demo: 13 trees, 18 sessions, 215 turns"
    assert (shown["made"]["trees"], shown["likeness"]["block_size"]) == (13, 64)
    turns = next(d for d in shown["likeness"]["distances"] if d["quantity"] == "root turns")
    assert (turns["source_n"], turns["result_n"], turns["source_median"]) == (13, 13, 16)
    assert "valid, " in kvbench("trace", "validate", "like.jsonl").stdout
    lengths = next(d for d in shown["likeness"]["distances"] if d["quantity"] == "input")
    longest = max(
        json.loads(line).get("input_tokens", 0) for line in (tmp_path / "like.jsonl").read_text().splitlines()
    )
    assert (lengths["source_max"], lengths["result_max"]) == (LONGEST, longest)
    again = kvbench("trace", "synth", "like.toml", "--seed", 0)
    made = (tmp_path / "like.jsonl").read_text()
    assert again.stdout.splitlines()[1:] == made.splitlines()[1:]


def test_how_like_it_is_stands_in_a_table(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "synth", "--like", "agent-trace", "--sessions", 5, "--block-size", 16)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 40
    said = done.stderr.splitlines()
    assert said[:2] == [
        "source     agent-demo: 13 trees, 18 sessions, 215 turns",
        "blocks     of 16 tokens: estimated at 4 characters a token, without the chat template",
    ]
    assert said[3].startswith("ceiling    source 9")
    longest = max(json.loads(line).get("input_tokens", 0) for line in done.stdout.splitlines())
    assert said[4].startswith(f"longest    prompt of the source {LONGEST:,} tokens, of the result {longest:,}")
    assert ("max_input_tokens" in said[4]) is (longest > LONGEST)
    rows = {row[:38].strip(): row[38:].split() for row in said if "," in row or "turns" in row}
    assert rows["root turns"][:2] == ["13", "5"]


def test_either_a_recipe_or_a_trace(kvbench: Kvbench, tmp_path: Path) -> None:
    for arguments in ([], ["research", "--like", "agent-trace"], ["research", "--recipe", "x.toml"]):
        done = kvbench("trace", "synth", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
    assert "next: bundled recipes: cache-hostile, coding-agent," in kvbench("trace", "synth").stderr
