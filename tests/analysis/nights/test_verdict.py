"""A night's verdict: against stored runs, with a FAIL that a second set of runs has to confirm."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.made_runs import make_abba, make_run

from kvbench.analysis.gate.expression import parse_fail_if
from kvbench.analysis.gate.judge import Judged
from kvbench.analysis.gate.validity import Treatment
from kvbench.analysis.nights.spec import Goals
from kvbench.analysis.nights.verdict import confirmed, early_refusals, judge_sides, judge_stored

GOALS = Goals([parse_fail_if("ttft.geomean>+3%")], (), [])


def runs(out: Path, name: str, n: int, at_min: float, **changes: float) -> list[Path]:
    return [make_run(out, f"{name}{i}", at_min + 2 * i, **changes) for i in range(n)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [(1.2, 1.2, "fail"), (1.2, 1.0, "inconclusive"), (1.2, 0.8, "inconclusive")],
)
def test_a_fail_counts_when_a_second_set_fails_too(tmp_path: Path, first: float, second: float, verdict: str) -> None:
    stored = runs(tmp_path, "old", 20, -9000)
    one = judge_stored(stored, runs(tmp_path, "one", 3, 0, ttft=first), GOALS)
    assert one.verdict == "fail"
    assert any("5 to 7% of nights" in note for note in one.notes)
    both = confirmed(one, judge_stored(stored, runs(tmp_path, "two", 3, 60, ttft=second), GOALS))
    assert both.verdict == verdict
    assert both.gates[0]["verdict"] == verdict
    assert ("it did" if verdict == "fail" else "not confirmed") in both.notes[-1]


def test_two_gates_that_fail_once_each_confirm_nothing(tmp_path: Path) -> None:
    goals = Goals([parse_fail_if("ttft.geomean>+3%"), parse_fail_if("errors>5%")], (), [])
    stored = runs(tmp_path, "old", 20, -9000)
    one = judge_stored(stored, runs(tmp_path, "one", 3, 0, ttft=1.2), goals)
    two = judge_stored(stored, runs(tmp_path, "two", 3, 60, failed=24), goals)
    assert one.gates[0]["verdict"] == "fail"
    assert two.gates[1]["verdict"] == "fail"
    assert confirmed(one, two).verdict == "inconclusive"


def test_a_gate_that_failed_once_is_no_fail_beside_one_that_is_confirmed() -> None:
    def judged(*verdicts: str) -> Judged:
        gates = [{"expr": expr, "verdict": v, "reason": None} for expr, v in zip("abcd", verdicts, strict=True)]
        return Judged("fail", gates, [], [])

    both = confirmed(judged("fail", "pass", "fail", "pass"), judged("fail", "fail", "pass", "pass"))
    assert both.verdict == "fail"
    assert [gate["verdict"] for gate in both.gates] == ["fail", "inconclusive", "inconclusive", "pass"]
    assert both.notes[-1].endswith("it did (a)")


def test_what_the_treatment_names_may_differ_from_night_to_night(tmp_path: Path) -> None:
    old = runs(tmp_path, "old", 4, -9000)
    old += [
        make_run(tmp_path, f"mid{i}", -2000 + i * 2, server={"server": "vLLM 0.33.0", "model": "tiny"})
        for i in range(4)
    ]
    new = [make_run(tmp_path, f"new{i}", i * 2, server={"server": "vLLM 0.34.0", "model": "tiny"}) for i in range(3)]
    assert judge_stored(old, new, GOALS).verdict == "refused"
    declared = Goals(GOALS.gates, (), [Treatment("server.server")])
    assert judge_stored(old, new, declared).verdict == "pass"


def test_a_switch_that_did_not_happen_is_found_after_one_run_a_side(tmp_path: Path) -> None:
    make_abba(tmp_path, 1)
    sides = (tmp_path / "base-0", tmp_path / "new-0")
    assert early_refusals(*sides, GOALS) == []
    (reason,) = early_refusals(*sides, Goals(GOALS.gates, (), [Treatment("server.server")]))
    assert "was the server switched?" in reason


def test_tonight_against_tonight(tmp_path: Path) -> None:
    make_abba(tmp_path, 5, ttft=1.2)
    sides = ([tmp_path / f"{side}-{i}" for i in range(5)] for side in ("base", "new"))
    judged = judge_sides(*sides, GOALS)
    assert (judged.verdict, judged.notes) == ("fail", [])
