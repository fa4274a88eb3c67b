"""Runs without noise: sessions of 4 turns, TTFT 200 ms on the first and 100 ms after it, answers of 20 ms more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.made_runs import make_run

from kvbench.analysis.compare.report import compare
from kvbench.analysis.slo import Slo
from kvbench.errors import RefusedError


def metrics(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["metric"] + (f".{row['stat']}" if row["stat"] else ""): row for row in report["metrics"]}


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tmp_path = tmp_path_factory.mktemp("runs")
    base = [make_run(tmp_path, f"b{i}", i, noise=0) for i in range(2)]
    new = [make_run(tmp_path, f"n{i}", 2 + i, noise=0, ttft=1.2, settings={"time_scale": 2.0}) for i in range(2)]
    return compare(base, new)


def test_every_turn_against_itself(slower: dict[str, Any]) -> None:
    found = metrics(slower)
    assert slower["paired"] is True
    assert slower["turns"] == {"common": 48, "left_out": 0}
    ttft = found["ttft.geomean"]
    assert (ttft["ratio"], ttft["low"], ttft["high"]) == pytest.approx((1.2, 1.2, 1.2))
    assert found["ttft.p95"]["base"] == pytest.approx(0.2)
    assert (found["ttft.p95"]["low"], found["ttft.p95"]["high"]) == pytest.approx((1.2, 1.2))
    assert found["tpot.geomean"]["base"] == pytest.approx(0.01)
    assert found["tpot.geomean"]["ratio"] == pytest.approx(1.0)
    # 18 sessions, as sub-agents are their own: 6 with 4 turns, 6 with 3, 6 with 1
    first, later = 260 / 220, 140 / 120
    by_session = [first**0.25 * later**0.75] * 6 + [first ** (1 / 3) * later ** (2 / 3)] * 6 + [later] * 6
    product = 1.0
    for value in by_session:
        product *= value ** (1 / 18)
    assert found["e2e.geomean"]["ratio"] == pytest.approx(product)
    # a job: four turns and three pauses of 50 ms
    assert found["job_latency.geomean"]["ratio"] == pytest.approx((260 + 3 * 140 + 150) / (220 + 3 * 120 + 150))


def test_shares_are_compared_by_their_difference(slower: dict[str, Any]) -> None:
    hits = metrics(slower)["hit_rate"]
    assert hits["base"] == pytest.approx((0 + 1 + 2 + 3) / (1 + 2 + 3 + 4))
    assert (hits["difference"], hits["low"], hits["high"]) == pytest.approx((0, 0, 0))
    assert (metrics(slower)["cost"]["base"], metrics(slower)["errors"]["new"]) == (None, 0)


def test_where_it_changed(slower: dict[str, Any]) -> None:
    groups = {(row["by"], row["group"]): row for row in slower["where"]}
    assert groups[("hit class", "full")]["turns"] == 36
    assert groups[("session", "sub-agent")]["turns"] == 6
    # sub-agents have a turn 0 of their own
    assert {group: row["turns"] for (by, group), row in groups.items() if by == "turn"} == {
        "0": 18,
        "1": 12,
        "2 to 4": 18,
    }
    assert groups[("context", "1,000 to 3,999 tokens")]["turns"] == 36
    assert all(row["ratio"] == pytest.approx(1.2) for row in slower["where"])


def test_what_else_is_different(slower: dict[str, Any]) -> None:
    assert slower["changed"] == [{"field": "settings.time_scale", "base": ["1.0"], "new": ["2.0"]}]


def test_turns_that_a_run_lacks_are_left_out_and_said(tmp_path: Path) -> None:
    base, new = make_run(tmp_path, "b", 0, noise=0), make_run(tmp_path, "n", 1, noise=0, failed=5)
    report = compare([base], [new])
    assert report["turns"] == {"common": 43, "left_out": 5}
    assert metrics(report)["ttft.geomean"]["ratio"] == pytest.approx(1.0)
    notes = "\n".join(report["notes"])
    assert "5 turns are left out" in notes
    assert "5 turns of n failed" in notes
    assert "a side is a single run" in notes
    assert metrics(report)["errors"]["difference"] == pytest.approx(5 / 48)


def test_different_traces_do_not_pair(tmp_path: Path) -> None:
    base = make_run(tmp_path, "b", 0, noise=0)
    new = make_run(tmp_path, "n", 1, noise=0, ttft=1.5, trace={"sha256": "b" * 64, "turns": 48})
    report = compare([base], [new])
    assert (report["paired"], report["turns"], report["where"]) == (False, None, [])
    ttft = metrics(report)["ttft.geomean"]
    assert ttft["ratio"] == pytest.approx(1.5)
    assert ttft["low"] < 1.45 < 1.55 < ttft["high"], "unpaired sessions differ from each other"
    assert any("do not replay the same turns" in note for note in report["notes"])


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    base, new = make_run(tmp_path, "b", 0), make_run(tmp_path, "n", 1, failed=48)
    with pytest.raises(RefusedError, match="n has no turn that succeeded"):
        compare([base], [new])


def test_every_figure_of_jobs_and_of_goals_is_compared(tmp_path: Path) -> None:
    """Session s00: turns at 0 (TTFT 0.2), 0.27, 0.44 (a sub-agent's) and 0.61 s, an answer 20 ms after its first token.
    Twice the TTFT: 0, 0.47, 0.74, 1.01."""
    base, new = make_run(tmp_path, "b", 0, noise=0), make_run(tmp_path, "n", 1, noise=0, ttft=2.0)
    found = metrics(compare([base], [new], slos=(Slo("ttft_s", 0.25),)))
    assert found["job_latency.geomean"]["base"] == pytest.approx(0.61 + 0.12)
    assert found["job_latency.geomean"]["new"] == pytest.approx(1.01 + 0.22)
    assert (found["ttfat.geomean"]["base"], found["ttfat.geomean"]["new"]) == pytest.approx((0.71, 1.21))
    assert found["ttfat.geomean"]["ratio"] == pytest.approx(1.21 / 0.71)
    assert found["jobs_per_h"]["base"] == pytest.approx(3600 / 0.73)
    assert (found["good_fraction"]["base"], found["good_fraction"]["new"]) == (1.0, 0.75)
    assert found["goodput"]["new"] is not None
    # 3 tokens in 0.22 and 0.12 s; of 48 turns 12 are the slow ones, so the 90th is one of these
    assert found["interactivity_p90"]["base"] == pytest.approx(3 / 0.22)
    # after the first token, 2 tokens in 20 ms
    assert found["active_decode_throughput"]["base"] == pytest.approx(100)
    assert found["eligible_hit_rate"]["base"] == pytest.approx(found["eligible_hit_rate"]["new"])
    assert "ttft_adjusted.p95" not in found, "nothing failed"
    failed = metrics(compare([base], [make_run(tmp_path, "f", 2, noise=0, failed=1)]))
    assert (failed["ttft_adjusted.p99"]["base"], failed["ttft_adjusted.p99"]["new"]) == (pytest.approx(0.2), None)
    assert "goodput" not in failed, "without an SLO nothing is good"


def test_too_few_sessions_for_an_interval_is_said(tmp_path: Path) -> None:
    """All but two turns failed, so that no more than two sessions are left."""
    base, new = make_run(tmp_path, "b", 0, noise=0), make_run(tmp_path, "n", 1, noise=0, failed=46)
    report = compare([base], [new])
    assert metrics(report)["ttft.geomean"]["low"] is None
    assert any(note.startswith("no intervals: ") and "it takes 5 on either side" in note for note in report["notes"])


def test_percentiles_are_those_of_the_run_itself(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, i, noise=0.4) for i, name in enumerate(("one", "other"))]
    found = metrics(compare(runs[:1], runs[1:]))
    for side, run in zip(("base", "new"), runs, strict=True):
        clocks = [json.loads(line)["clock"] for line in (run / "records.jsonl").read_text().splitlines()]
        ranked = sorted((clock["first_token"] - clock["sent"]) / 1e9 for clock in clocks)
        for stat, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            below, part = divmod(q * (len(ranked) - 1), 1)
            low, high = ranked[int(below)], ranked[int(below) + 1]
            assert found[f"ttft.{stat}"][side] == pytest.approx(low + part * (high - low), rel=1e-9)
