from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvbench.cli.runs import runs
from kvbench.cli.show import show
from kvbench.errors import InputError, UsageError

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"

app = typer.Typer()
app.command("show")(show)
app.command("runs")(runs)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FIXTURE, tmp_path / "runs" / "20261130T000000Z-a-000001")
    return tmp_path / "runs"


def test_show_by_path_and_by_id(base: Path) -> None:
    by_path = call("show", str(base / "20261130T000000Z-a-000001"))
    by_id = call("show", "20261130T000000Z-a-000001")
    assert by_path.exit_code == by_id.exit_code == 0
    assert "TTFT       p50 0.075 s" in by_id.stdout
    assert by_id.stdout.splitlines()[-1] == "next       kvbench show runs/20261130T000000Z-a-000001 --json"


def test_show_json_is_one_object(base: Path) -> None:
    plain = json.loads(call("show", "20261130T000000Z-a-000001", "--json").stdout)
    assert plain["run"] == "runs/20261130T000000Z-a-000001"
    assert plain["requests"]["ok"] == 4


def test_show_of_what_is_no_run(base: Path) -> None:
    result = call("show", "nothing")
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2
    assert result.stdout == ""


def test_runs_lists_every_state(base: Path) -> None:
    torn = Path(shutil.copytree(FIXTURE, base / "20261130T000100Z-b-000002"))
    (torn / "records.jsonl").write_bytes((torn / "records.jsonl").read_bytes()[:-30])
    info = json.loads((torn / "run.json").read_text())
    (torn / "run.json").write_text(json.dumps({**info, "status": "started"}))
    (base / "foreign").mkdir()
    (base / "notes.txt").touch()
    broken = Path(shutil.copytree(FIXTURE, base / "20261130T000200Z-c-000003"))
    (broken / "records.jsonl").write_text("{}\n{}\n")
    result = call("runs")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["run", "status", "when", "trace", "endpoint", "turns", "TTFT", "p50", "hit", "rate"]
    assert lines[1].split("  ")[:2] == ["20261130T000000Z-a-000001", "done, 2 failed"]
    assert lines[1].endswith("http://127.0.0.1:8000/v1  6      0.075 s   64.8%")
    assert "INCOMPLETE (its kvbench ended without a word)" in lines[2]
    assert lines[3].startswith("not readable   20261130T000200Z-c-000003: ")
    assert "records.jsonl:1" in lines[3]
    assert lines[4].startswith("not readable   foreign: ")
    assert len(lines) == 5
    rows = json.loads(call("runs", "--json").stdout)
    assert [row["turns"] for row in rows] == [6, 5, None, None]
    assert [row["problem"] is None for row in rows] == [True, True, False, False]


def test_runs_of_a_directory_without_any(base: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no runs in" in call("runs", str(tmp_path / "empty")).stdout
    assert call("runs", str(tmp_path / "empty"), "--json").stdout == "[]\n"
    assert isinstance(call("runs", str(tmp_path / "none")).exception, InputError)


def test_goodput_of_requests_that_meet_the_slos(base: Path) -> None:
    run = "20261130T000000Z-a-000001"
    shown = call("show", run, "--slo", "ttft<100ms", "--slo", "tpot<15ms", "--json")
    found = json.loads(shown.stdout)
    # 40 and 50 ms meet the first, 10/3 ms the second as well; 6 turns in 3.0511 s
    assert found["slos"] == {"ttft_s": 0.1, "tpot_s": pytest.approx(0.015)}
    assert (found["good_fraction"], found["goodput_per_s"]) == (1 / 6, pytest.approx(1 / 3.0511))
    assert (
        "goodput    0.3/s: 16.7% of the turns" in call("show", run, "--slo", "ttft<100ms", "--slo", "tpot<15ms").stdout
    )
    assert isinstance(call("show", run, "--slo", "ttft.p95<1s").exception, UsageError)
