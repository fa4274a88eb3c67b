"""History: keys, what is left out, values of nights, and which runs can be a baseline."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import pytest
from tests.analysis.nights.nights import make_night
from tests.made_runs import make_run

from kvbench.analysis.gate.validity import Treatment
from kvbench.analysis.nights.history import baseline, history, stored_runs
from kvbench.errors import InputError
from kvbench.model import Trust
from kvbench.runs.reader import load_info


def test_a_value_a_night_and_nights_in_order(tmp_path: Path) -> None:
    for day, ttft in enumerate((1.0, 1.2, 1.5)):
        make_night(tmp_path, day, ttft=ttft, verdict="fail" if day == 2 else "pass")
    (key,) = history(tmp_path)["keys"]
    assert (key["side"], key["trace"], key["model"]) == ("candidate", "made", "tiny")
    assert [night["verdict"] for night in key["nights"]] == ["pass", "pass", "fail"]
    ttft = [night["values"]["ttft.geomean"] for night in key["nights"]]
    # 100 ms, and 200 on a session's first turn; a sub-agent's turn is a session of its own: 12 sessions of which every
    # second has turns of 200, 100, 100 and a child of 100, the others 200, 100, 100, 100.
    parent, plain, child = math.log(2) / 3, math.log(2) / 4, 0.0
    expected = 0.1 * math.exp((6 * parent + 6 * plain + 6 * child) / 18)
    assert ttft == pytest.approx([expected, expected * 1.2, expected * 1.5], rel=0.03)
    assert key["nights"][0]["runs"] == 3
    # Turn t sends 1000 (t + 1) tokens of which the first 1000 t hit.
    assert key["nights"][0]["values"]["hit_rate"] == pytest.approx(0.6)


def test_other_configurations_and_models_are_other_histories(tmp_path: Path) -> None:
    make_night(tmp_path, 0)
    make_night(tmp_path, 1, settings={"time_scale": 0.5})
    make_night(tmp_path, 2, server={"server": "vLLM 0.32.0", "model": "large"})
    # A new version of the server is what the history is about, not another one.
    make_night(tmp_path, 3, server={"server": "vLLM 0.33.0", "model": "tiny"})
    keys = history(tmp_path)["keys"]
    assert [[night["night"] for night in key["nights"]] for key in keys] == [
        ["night-00", "night-03"],
        ["night-01"],
        ["night-02"],
    ]
    assert keys[0]["servers"] == ["vLLM 0.32.0", "vLLM 0.33.0"]


def test_plain_runs_are_nights_by_their_day(tmp_path: Path) -> None:
    make_run(tmp_path, "a", 0)
    make_run(tmp_path, "b", 10)
    make_run(tmp_path, "c", 1440)
    (key,) = history(tmp_path)["keys"]
    assert [(night["night"], night["runs"]) for night in key["nights"]] == [("2026-11-30", 2), ("2026-12-01", 1)]


def test_what_was_changed_afterwards_or_is_not_whole_is_left_out_with_its_reason(tmp_path: Path) -> None:
    changed = make_night(tmp_path, 0) / "runs" / "n00-1" / "records.jsonl"
    changed.write_bytes(changed.read_bytes().replace(b"s00", b"s99"))
    make_run(tmp_path, "x-incomplete", 5, status="interrupted")
    make_run(tmp_path, "y-degraded", 9, trust=Trust(verdict="degraded", reasons=("send lag",)))
    settings = {"rules": "agentx", "time_scale": 1.0}
    make_run(tmp_path, "z-invalid", 12, settings=settings)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "night.json").write_text("{")
    found = history(tmp_path)
    reasons = {Path(row["run"]).name: row["reason"] for row in found["left_out"]}
    assert reasons["n00-1"] == "its records are not those that the night wrote"
    assert "INCOMPLETE" in reasons["x-incomplete"]
    assert "degraded" in reasons["y-degraded"]
    assert reasons["z-invalid"].startswith("is not valid by the agentx rules: window not set < 900 s")
    assert "not a night" in reasons["broken"]
    assert [night["runs"] for key in found["keys"] for night in key["nights"]] == [2]


def test_a_baseline_leaves_out_failed_nights_and_what_is_too_old(tmp_path: Path) -> None:
    make_night(tmp_path, 0)
    make_night(tmp_path, 1, verdict="fail", ttft=1.5)
    make_night(tmp_path, 2, verdict="inconclusive", server={"server": "vLLM 0.33.0", "model": "tiny"})
    make_night(tmp_path, 3, verdict=None)
    runs = stored_runs(tmp_path)
    like = load_info(tmp_path / "night-00" / "runs" / "n00-0")

    def names(most: int = 20, since: date | None = None) -> list[str]:
        return [path.name for path in baseline(runs, like, [], most=most, since=since)]

    assert names() == ["n00-0", "n00-1", "n00-2", "n02-0", "n02-1", "n02-2"]
    assert names(most=4) == ["n00-2", "n02-0", "n02-1", "n02-2"]
    assert names(since=date(2026, 12, 1)) == ["n02-0", "n02-1", "n02-2"]
    other = make_run(tmp_path / "elsewhere", "z", 0, settings={"time_scale": 0.5})
    assert baseline(runs, load_info(other), [], most=20, since=None) == []
    # What the treatment names is no part of the key.
    assert len(baseline(runs, load_info(other), [Treatment("settings.time_scale")], most=20, since=None)) == 6


def test_no_directory_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        history(tmp_path / "none")
