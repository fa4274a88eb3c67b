"""Run directories as the gate finds and refuses them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.made_runs import make_abba, make_run

from kvbench.analysis.gate.evidence import from_run
from kvbench.analysis.gate.sources import expand, load_side, run_directories
from kvbench.analysis.gate.validity import refusals
from kvbench.analysis.metrics import BY_WORD
from kvbench.errors import InputError, UsageError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_abba(tmp_path / "runs", 5)
    return tmp_path / "runs"


def test_lists_globs_paths_and_ids(runs: Path) -> None:
    every = [f"base-{i}" for i in range(5)]
    assert [Path(name).name for name in expand(["base-*"])] == every
    assert expand(["base-0, base-1", "base-2"]) == every[:3]
    assert [Path(name).name for name in expand([str(runs / "base-*")])] == every
    labels = [run.label for run in load_side([str(runs / "new-1"), "runs/new-2", "new-3"])]
    assert labels == ["new-1", "new-2", "new-3"]
    with pytest.raises(InputError, match="matches no run"):
        expand(["nights-*"])


@pytest.mark.parametrize("empty", ["", ",", " , "])
def test_a_name_that_is_empty_is_no_run(runs: Path, empty: str) -> None:
    for read in (load_side, run_directories):
        with pytest.raises(UsageError, match="names no run"):
            read(["base-*", empty])
    assert load_side([]) == [], "no baseline at all is for the gates to judge"


def test_a_directory_of_runs_is_no_run(runs: Path) -> None:
    with pytest.raises(InputError, match="a directory of runs, not a run") as caught:
        load_side([f"{runs}/"])
    assert caught.value.hint == f"all that are in it: '{runs}/*'"
    assert len(load_side([f"{runs}/*"])) == 10


def test_a_run_as_evidence(runs: Path) -> None:
    run = from_run(make_run(runs, "exact", 0, noise=0.0))
    # 12 sessions: 200 ms on the first turn; the others' 100 ms, and the sub-agents of six are sessions of their own
    by_session = [(0.2 * 0.1 * 0.1 * 0.1) ** 0.25] * 6 + [(0.2 * 0.1 * 0.1) ** (1 / 3)] * 6 + [0.1] * 6
    product = 1.0
    for value in by_session:
        product *= value ** (1 / 18)
    assert run.value(BY_WORD["ttft"], "geomean") == pytest.approx(product)
    assert run.value(BY_WORD["hit_rate"], None) == pytest.approx((0 + 1 + 2 + 3) / (1 + 2 + 3 + 4))
    assert (run.completed, run.failed, run.requested, run.problems) == (48, 0, 48, ())
    assert run.facts["server.server"] == "vLLM 0.32.0"
    assert "environment.load_average_1min" not in run.facts


def test_what_no_two_runs_share_is_not_compared(runs: Path) -> None:
    simulated = {"preset": "tiny", "settings": {}, "time_scale": 0}
    one = make_run(runs, "one", 0, endpoint={"url": "http://127.0.0.1:1/v1", "simulated": simulated})
    other = make_run(runs, "other", 1, endpoint={"url": "http://127.0.0.1:2/v1", "simulated": simulated})
    assert from_run(one).facts == from_run(other).facts


def test_refusals_from_directories(runs: Path) -> None:
    def reasons(*new: str, allow_order: bool = False) -> list[str]:
        return refusals(load_side(["base-*"]), load_side(new), [], allow_order=allow_order)

    assert reasons("new-*") == []
    shutil.copytree(runs / "new-1", runs / "copied")
    file = runs / "copied" / "run.json"
    file.write_text(file.read_text().replace('"new-1"', '"copied"'))
    copies, together = reasons("new-*", "copied", allow_order=True)
    assert copies == "new-1 and copied are copies: 48 requests agree to the nanosecond; run again"
    assert "at the same time" in together
    make_run(runs, "torn", 20, status="interrupted")
    assert reasons("new-*", "torn", allow_order=True) == ["torn is INCOMPLETE (interrupted)"]
    make_run(runs, "late", 20, trust={"verdict": "degraded", "reasons": ["the client was late"]})
    assert reasons("new-*", "late", allow_order=True) == ["late is degraded: the client was late"]
    make_run(runs, "other", 20, trace={"sha256": "b" * 64, "turns": 48})
    assert any("different traces" in text for text in reasons("new-*", "other", allow_order=True))
    make_run(runs, "scaled", 20, settings={"time_scale": 0.5})
    assert any("settings.time_scale differs" in text for text in reasons("new-*", "scaled", allow_order=True))
    make_run(runs, "short", 20, trace={"sha256": "a" * 64, "turns": 60, "name": "made"})
    assert any("short has 48 of 60 turns" in text for text in reasons("new-*", "short", allow_order=True))
    for i in range(5):
        make_run(runs, f"after-{i}", 100 + i)
    assert len(reasons("after-*")) == 1
    assert "not interleaved (BBBBBNNNNN)" in reasons("after-*")[0]
