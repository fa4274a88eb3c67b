"""`kvbench trace transform` as a user runs it: files, standard output, what it says, and that the result runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench

SMALL = [
    {"kvbench_trace": 1, "name": "small"},
    {"prefix": "p", "messages": [{"role": "system", "content": "You answer in few words. " * 40}]},
    *(
        {"session_id": name, "turn": 0, "prefix": "p", "append": [{"role": "user", "content": f"I am {name}."}],
         "output_tokens": 4}
        for name in "ab"
    ),
    {"session_id": "a", "turn": 1, "delay_s": 3, "append": [{"role": "user", "content": "Go on."}], "output_tokens": 4},
]  # fmt: skip


def test_copies_run(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "small.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SMALL))
    done = kvbench("trace", "transform", "small.jsonl", "-o", "many.jsonl", "--copies", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "took       2 trees, 3 turns",
        "made       8 trees, 8 sessions, 12 turns",
        "copies     4; the further ones start 0, 0, 0 s later",
        "shared     what at least 2 trees have, and named prompts",
        "next       kvbench run many.jsonl --endpoint sim",
    ]
    assert kvbench("trace", "validate", "many.jsonl").stdout == "many.jsonl: valid, 8 sessions, 12 turns\n"
    ran = kvbench("run", "many.jsonl", "--endpoint", "sim:tiny", "--time-scale", 0, "--sessions", 1, "--json")
    assert ran.returncode in (0, 3), ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["sessions"], summary["turns"], summary["requests"]["failed"]) == (8, 12, 0)


def test_the_trace_can_go_to_standard_output(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "transform", "agent-trace.jsonl", "--session", "s03", "--max-pause", 1, "--json")
    assert done.returncode == 0
    assert json.loads(done.stderr)["sessions"] == 4
    (tmp_path / "out.jsonl").write_text(done.stdout)
    assert "valid, 4 sessions" in kvbench("trace", "validate", "out.jsonl").stdout


def test_what_cannot_be_done_leaves_no_file(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text("mine")
    done = kvbench("trace", "transform", "agent-trace", "-o", "kept.jsonl", "--from", 1000)
    assert done.returncode == 2
    assert "no tree of it is wanted" in done.stderr
    assert "next: its 13 trees start from 0 s to" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]
    assert (tmp_path / "kept.jsonl").read_text() == "mine"
    assert kvbench("trace", "transform", "agent-trace", "-o", "no/where.jsonl").returncode == 4
    assert kvbench("trace", "transform", "agent-trace", "-o", ".").returncode == 2
    both = kvbench("trace", "transform", "agent-trace", "--from", 5, "--until", 5)
    assert (both.returncode, both.stdout) == (2, "")
    assert "--from 5 --until 5: no time lies in between" in both.stderr
    nan = kvbench("trace", "transform", "agent-trace", "--until", "nan")
    assert (nan.returncode, nan.stdout) == (2, "")
    assert "--until nan: seconds of trace time" in nan.stderr


def test_a_trace_may_replace_itself(kvbench: Kvbench, tmp_path: Path) -> None:
    kvbench("trace", "transform", "agent-trace", "-o", "t.jsonl", "--session", "s0*")
    done = kvbench("trace", "transform", "t.jsonl", "-o", "t.jsonl", "--session", "s01")
    assert done.returncode == 0
    assert "valid, 1 session," in kvbench("trace", "validate", "t.jsonl").stdout
