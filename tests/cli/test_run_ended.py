"""Runs that are ended before they are done: by a signal, a kill, a server that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cli.conftest import Kvbench, environment
from tests.cli.test_run import lines, turn

from kvbench.sim.process import SimProcess


def start(cwd: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvbench", *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_records(cwd: Path, number: int) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in cwd.glob("runs/*/records.jsonl"):
            if path.read_bytes().count(b"\n") >= number:
                return path.parent
        time.sleep(0.02)
    raise AssertionError("no records came")


def long_trace(tmp_path: Path) -> Path:
    path = tmp_path / "long.jsonl"
    quick = [turn("q", n, "quick", output_tokens=2) for n in range(3)]
    path.write_text(lines(*quick, turn("q", 3, "later", delay_s=600.0), turn("slow", 0, "slow", output_tokens=300)))
    return path


def test_one_interrupt_drains_and_keeps_the_rows(tmp_path: Path) -> None:
    with start(tmp_path, "run", long_trace(tmp_path), "--endpoint", "sim", "--json") as process:
        run_dir = wait_for_records(tmp_path, 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    got = json.loads(out)
    assert got["status"] == "interrupted"
    assert got["requests"] == {"ok": 4, "failed": 0, "skipped": 0, "retried": 0}  # the slow one was let finish
    assert len((run_dir / "records.jsonl").read_text().splitlines()) == 4
    shown = subprocess.run(
        [sys.executable, "-m", "kvbench", "show", run_dir],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "INCOMPLETE" in shown.stdout


def test_two_interrupts_abort_and_keep_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(lines(turn("q", 0, "quick", output_tokens=2), turn("slow", 0, "slow", output_tokens=20_000)))
    with start(tmp_path, "run", path, "--endpoint", "sim", "--json") as process:
        run_dir = wait_for_records(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    rows = [json.loads(line) for line in (run_dir / "records.jsonl").read_text().splitlines()]
    assert [(r["session_id"], r["error_class"]) for r in rows] == [("q", None), ("slow", "cancelled")]
    assert json.loads(out)["status"] == "interrupted"


def test_a_killed_run_loses_at_most_what_was_in_flight(tmp_path: Path, kvbench: Kvbench) -> None:
    with start(tmp_path, "run", long_trace(tmp_path), "--endpoint", "sim") as process:
        run_dir = wait_for_records(tmp_path, 3)
        process.kill()
        process.communicate(timeout=60)
    done = kvbench("show", run_dir, "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["status"] == "started"
    assert got["requests"]["ok"] >= 3
    assert "INCOMPLETE" in kvbench("show", run_dir).stdout


def test_a_server_that_dies_leaves_records_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(
        lines(
            turn("q", 0, "quick", output_tokens=2),
            turn("q", 1, "later", delay_s=2.0),
            turn("s", 0, "x", output_tokens=9000),
        )
    )
    with SimProcess.start("vllm-small") as server:
        process = start(tmp_path, "run", path, "--endpoint", server.url, "--json")
        run_dir = wait_for_records(tmp_path, 1)
        os.kill(server.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "Traceback" not in err
    rows = [json.loads(line) for line in (run_dir / "records.jsonl").read_text().splitlines()]
    outcome = {(r["session_id"], r["turn"]): r["error_class"] for r in rows}
    assert outcome["q", 0] is None
    assert outcome["q", 1] == "refused"
    assert outcome["s", 0] in ("reset", "truncated")
    assert json.loads(out)["requests"] == {"ok": 1, "failed": 2, "skipped": 0, "retried": 0}
