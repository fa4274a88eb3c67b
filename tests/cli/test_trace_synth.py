"""`kvbench trace synth` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench


def test_a_recipe_becomes_a_trace_that_runs(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "synth", "tool-chat", "-o", "chat.jsonl", "--sessions", 1, "--seed", 8, "--json")
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
