from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench
from tests.made_runs import make_abba


def test_groups_of_runs_as_text_and_json(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 2, ttft=1.5, noise=0, server={"server": "evil\x1b[31m", "model": "tiny"})
    shown = kvbench("compare", "base-*", "new-0,new-1")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    (ttft,) = [line for line in lines if line.startswith("ttft.geomean")]
    assert "+50.0%" in ttft
    (cost,) = [line for line in lines if line.startswith("cost ")]
    assert " ".join(cost.split()) == "cost not priced"
    (why,) = [line for line in lines if line.startswith("note: not priced: ")]
    assert why.startswith("note: not priced: base-0: no price for the model tiny at 2026-11-30")
    assert "\x1b" not in shown.stdout
    found = json.loads(kvbench("compare", "base-*", "new-*", "--json").stdout)
    assert found["base"] == ["base-0", "base-1"]
    assert found["metrics"][0].keys() == {
        *("metric", "stat", "unit", "base", "new", "ratio", "difference", "low", "high", "of")
    }


def test_a_run_that_is_not_there(kvbench: Kvbench) -> None:
    done = kvbench("compare", "a", "b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no run of this id" in done.stderr


def test_a_result_file_has_no_turns_to_compare(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"completed": 1}')
    done = kvbench("compare", "result.json", "result.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "kvbench gate judges result files of other tools" in done.stderr
