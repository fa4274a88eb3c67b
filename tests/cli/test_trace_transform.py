"""`kvbench trace transform` as a user runs it: files, standard output, what it says, and that the result runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench


def test_copies_of_the_bundled_trace_run(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("trace", "transform", "agent-trace", "-o", "two.jsonl", "--session", "s0[12]", "--copies", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "took       13 trees, 215 turns",
        "made       4 trees, 4 sessions, 66 turns",
    ]
    assert kvbench("trace", "validate", "two.jsonl").stdout == "two.jsonl: valid, 4 sessions, 66 turns\n"
    ran = kvbench("run", "two.jsonl", "--endpoint", "sim", "--time-scale", 0, "--sessions", 4, "--json")
    assert ran.returncode in (0, 3), ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["sessions"], summary["turns"], summary["requests"]["failed"]) == (4, 66, 0)


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


def test_a_trace_may_replace_itself(kvbench: Kvbench, tmp_path: Path) -> None:
    kvbench("trace", "transform", "agent-trace", "-o", "t.jsonl", "--session", "s0*")
    done = kvbench("trace", "transform", "t.jsonl", "-o", "t.jsonl", "--session", "s01")
    assert done.returncode == 0
    assert "valid, 1 session," in kvbench("trace", "validate", "t.jsonl").stdout
