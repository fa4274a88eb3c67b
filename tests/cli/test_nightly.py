"""`kvbench nightly` and `kvbench history` as a job sees them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.nights.nights import make_night
from tests.cli.conftest import Kvbench, environment
from tests.made_runs import make_run
from tests.short_trace import write_short_trace
from typer.testing import CliRunner

import kvbench.replay.night
from kvbench.cli.main import app
from kvbench.replay.night import Bench
from kvbench.runs.night import NightRun, load_night, records_sha256

SPEC = """
trace = "short.jsonl"
fail_if = ["ttft.geomean>+3%"]
treatment = ["endpoint.simulated.settings"]
[run]
time_scale = 0.0
sessions = 1
[base]
endpoint = "sim"
[candidate]
endpoint = "sim"
"""
STORED = 'trace = "t.jsonl"\nruns = 3\nfail_if = ["ttft.geomean>+3%"]\n[history]\n[candidate]\nendpoint = "x"\n'


def only_night(tmp_path: Path) -> Path:
    (night,) = (tmp_path / "nights").glob("2*")
    return night


def test_a_server_that_was_not_switched_stops_the_night_after_one_run_a_side(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace(".settings", ".preset"))
    write_short_trace(tmp_path / "short.jsonl")
    done = kvbench("nightly", "spec.toml", "--json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "refused"
    # A busy machine may have made one again.
    assert [run["side"] for run in told["runs"] if not run["repeated"]] == ["base", "candidate"]
    assert "endpoint.simulated.preset is declared as what differs, and is the same in all runs" in " ".join(
        told["reasons"]
    )
    night = load_night(only_night(tmp_path))
    assert (night.status, night.verdict, len(night.runs)) == ("done", "refused", len(told["runs"]))


def test_ctrl_c_keeps_the_night_and_says_so(kvbench: Kvbench, tmp_path: Path) -> None:
    # The hook's parent is the job.
    hook = 'before_run = "kill -INT $PPID; sleep 30"'
    (tmp_path / "spec.toml").write_text(SPEC.replace("[base]", f"[base]\n{hook}"))
    done = kvbench("nightly", "spec.toml")
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert load_night(only_night(tmp_path)).status == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_a_night_ends_its_run_and_no_gate_takes_it(
    kvbench: Kvbench, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    write_short_trace(tmp_path / "short.jsonl", sessions=1000)
    words = [sys.executable, "-m", "kvbench", "nightly", "spec.toml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), text=True, start_new_session=True, **pipes) as job:
        records = wait_for(
            lambda: [file for file in tmp_path.glob("nights/*/runs/*/records.jsonl") if file.stat().st_size]
        )
        (child,) = children(job.pid)
        # To the job alone: the run is told by it.
        job.send_signal(number)
        stdout, stderr = job.communicate(timeout=100)
    assert (job.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert "is INCOMPLETE (interrupted)" in stderr
    assert not Path(f"/proc/{child}").exists()
    night = only_night(tmp_path)
    assert (load_night(night).status, load_night(night).verdict) == ("interrupted", None)
    run = records[0].parent
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    # As if one run of it had been whole.
    whole = make_run(night / "runs", "whole", 0)
    done = kvbench("gate", whole, "--slo", "errors<5%", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["reasons"] == ["whole is of a night that is INCOMPLETE (interrupted)"]


def wait_for(look: Callable[[], list[Path]]) -> list[Path]:
    for _ in range(600):
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError("nothing came")


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_run_that_cannot_be_made_ends_the_night_with_its_exit_code(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    done = kvbench("nightly", "spec.toml")
    assert done.returncode == 2, done.stderr
    assert "short.jsonl" in done.stderr
    assert "run 1 of 10 (base) ended with exit code 2; its own message stands above" in done.stderr
    night = load_night(only_night(tmp_path))
    assert (night.status, night.runs) == ("failed", ())


def test_a_bad_spec_is_found_before_anything_is_made(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace("sessions = 1", "speed = 1"))
    done = kvbench("nightly", "spec.toml")
    assert done.returncode == 2
    assert "spec.toml: run.speed: no such option" in done.stderr
    assert not (tmp_path / "nights").exists()


@pytest.fixture
def tonight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Runs are made up: each set takes its TTFT from this list."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(STORED)
    factors: list[float] = []

    def made(bench: Bench, _: Any, order: list[Any], *, confirming: bool) -> Iterator[NightRun]:
        factor = factors.pop(0)
        if not confirming:
            run = make_run(bench.out / "runs", "tonight-lagging", 98 * 1440, ttft=9.0)
            digest = records_sha256(run)
            yield NightRun(run="runs/tonight-lagging", side="candidate", records_sha256=digest, repeated=True)
        for i, side in enumerate(order):
            name = f"tonight-{'again' if confirming else 'first'}-{i}"
            run = make_run(bench.out / "runs", name, 99 * 1440 + 60 * confirming + 2 * i, ttft=factor)
            digest = records_sha256(run)
            yield NightRun(run=f"runs/{name}", side=side, records_sha256=digest, confirming=confirming)

    monkeypatch.setattr(kvbench.replay.night, "make_runs", made)
    return factors


@pytest.mark.parametrize(
    ("nights", "factors", "verdict", "code", "runs"),
    [
        (1, [1.0], "inconclusive", 3, 3),
        (7, [1.0], "pass", 0, 3),
        (7, [1.2, 1.2], "fail", 1, 6),
        (7, [1.2, 1.0], "inconclusive", 3, 6),
    ],
)
def test_against_stored_runs(
    tonight: list[float], tmp_path: Path, nights: int, factors: list[float], verdict: str, code: int, runs: int
) -> None:
    tonight += factors
    for day in range(nights):
        make_night(tmp_path / "nights", day)
    result = CliRunner().invoke(app, ["nightly", "spec.toml", "--json"])
    assert result.exit_code == code, result.output
    told = json.loads(result.stdout)
    told["runs"] = [run for run in told["runs"] if not run["repeated"]]
    assert "made again: 1 candidate" in told["notes"][-1]
    assert (told["verdict"], len(told["runs"]), len(told["stored"])) == (verdict, runs, min(3 * nights, 20))
    assert tonight == []
    if nights == 1:
        assert told["gates"][0]["reason"].startswith("3 stored runs of this trace, configuration, endpoint and model")
    night = load_night(only_night(tmp_path))
    assert (night.verdict, [run.confirming for run in night.runs[1:]]) == (verdict, [False] * 3 + [True] * (runs - 3))


def test_history_prints_lines_json_and_a_page(kvbench: Kvbench, tmp_path: Path) -> None:
    make_night(tmp_path / "nights", 0)
    done = kvbench("history", "--json", "--plot", "h.html")
    assert done.returncode == 0, done.stderr
    assert [key["side"] for key in json.loads(done.stdout)["keys"]] == ["candidate"]
    assert (tmp_path / "h.html").exists()
    assert kvbench("history", "none").returncode == 2
