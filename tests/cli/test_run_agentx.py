"""`kvbench run --rules agentx` over HTTP against a simulated endpoint, in windows of seconds."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.cli.test_run import lines, records, turn

from kvbench.analysis.gate.evidence import from_run
from kvbench.analysis.summary import summarise
from kvbench.cli.run import exit_code
from kvbench.endpoints.profile import EndpointProfile
from kvbench.model import Record
from kvbench.replay.run import Plan, replay
from kvbench.replay.settings import RunSettings
from kvbench.runs import agentx
from kvbench.runs.reader import load_run
from kvbench.sim.process import SimProcess
from kvbench.traces.native import open_trace

WORDS = "what was found there " * 20


def tree(name: str) -> list[dict[str, Any]]:
    """Six turns, a sub-agent of three that the fourth waits for; pauses of half a second, and one of a minute."""
    root = [turn(name, 0, WORDS, start_s=0.0)]
    root += [turn(name, k, f"{name} {k} {WORDS}", delay_s=60.0 if k == 5 else 0.5) for k in range(1, 6)]
    root[3]["after"] = [f"{name}.x"]
    child = [turn(f"{name}.x", 0, f"{name}.x {WORDS}", parent={"session_id": name, "turn": 1}, delay_s=0.25)]
    child += [turn(f"{name}.x", k, f"{k} {WORDS}", delay_s=0.25) for k in (1, 2)]
    return [*root, *child]


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    path = tmp_path / "trees.jsonl"
    path.write_text(lines(*(line for name in "abc" for line in tree(name))))
    return path


def test_sessions_go_on_from_their_start_points_and_hit_what_warmed_them(
    kvbench: Kvbench, trees: Path, tmp_path: Path
) -> None:
    options = ["--rules", "agentx", "--sessions", "6", "--duration", "3", "--seed", "3"]
    done = kvbench("run", trees, "--endpoint", "sim:tiny", *options, "--json")
    assert done.returncode == 3, done.stderr
    got = json.loads(done.stdout)
    assert (got["rules"], got["valid"]) == ("agentx", False)
    assert got["invalid_reasons"] == ["window 3 s < 900 s (--duration)"]
    assert "not valid by the agentx rules: window 3 s < 900 s (--duration)" in done.stderr
    info = json.loads((tmp_path / got["run"] / "run.json").read_text())
    assert info["rules"] == {"name": "agentx", "valid": False, "reasons": got["invalid_reasons"]}
    assert (info["settings"]["rules"], info["settings"]["salt"], info["settings"]["max_pause_s"]) == (
        "agentx",
        "tree",
        10.0,
    )
    assert got["window_s"] == got["steady_window_s"] == pytest.approx(3)
    # What is hit follows exactly from what was sent before, warm-up included, though most turns were never sent.
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0
    assert got["expected_hit_rate"]["exact"] == got["turns"] > 0

    rows = records(got["run"], tmp_path)
    events = [json.loads(line) for line in (tmp_path / got["run"] / "events.jsonl").read_text().splitlines()]
    (measuring,) = (event for event in events if event["kind"] == "measuring")
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_session[row["session_id"]].append(row)
    warmed = [turns for turns in by_session.values() if turns[0]["phase"] == "warmup"]
    assert len(warmed) == got["warmup_turns"] >= 3
    for before, *after in warmed:
        assert before["clock"]["end"] <= measuring["at_ns"]
        assert [row["turn"] for row in after] == list(range(before["turn"] + 1, before["turn"] + 1 + len(after)))
        assert {row["phase"] for row in after} <= {"measure"}
        for row in after[:1]:
            # All whole blocks of the prompt before, which the warm-up put there.
            assert row["usage"]["cached_tokens"] >= before["usage"]["input_tokens"] // 32 * 32
    assert all(row["clock"]["scheduled"] >= measuring["at_ns"] for row in rows if row["phase"] == "measure")
    # Each play has a cache of its own: the first prompts, the same in all trees, never hit another's.
    openings = [turns[0] for turns in by_session.values() if turns[0]["turn"] == 0 and "." not in turns[0]["root_id"]]
    assert all(row["usage"]["cached_tokens"] == 0 for row in openings if row["session_id"] == row["root_id"])
    shown = kvbench("show", got["run"]).stdout
    assert "rules      agentx: NOT VALID\n  - window 3 s < 900 s (--duration)" in shown
    assert "not valid by agentx" in kvbench("runs").stdout


def test_whatever_overrides_a_rule_is_named_and_so_is_a_context_that_is_too_small(
    kvbench: Kvbench, trees: Path
) -> None:
    options = ["--rules", "agentx", "--sessions", "4", "--duration", "2", "--salt", "run", "--retries", "1"]
    done = kvbench("run", trees, "--endpoint", "sim:tiny?max_model_len=700", *options, "--time-scale", "0.25", "--json")
    assert done.returncode == 3, done.stderr
    reasons = json.loads(done.stdout)["invalid_reasons"]
    assert reasons[:4] == [
        "window 2 s < 900 s (--duration)",
        "pauses were scaled by 0.25 (--time-scale)",
        "plays shared a cache (--salt run)",
        "failed requests were sent again (--retries 1)",
    ]
    assert any(text.startswith("context overflow on ") for text in reasons[4:])


class Silent:
    def start(self) -> None: ...
    def record(self, record: Record) -> None: ...
    def tick(self, in_flight: int, lag_s: float, sessions_done: int) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


def test_a_run_that_keeps_to_the_rules_is_valid(trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentx, "MIN_WINDOW_S", 2.0)
    settings = RunSettings.of(rules="agentx", sessions=8, duration_s=2.0)
    with SimProcess.start("tiny") as sim, open_trace(trees) as trace:
        plan = Plan(trace, EndpointProfile(url=sim.url), settings, tmp_path / "runs")
        path = asyncio.run(replay(plan, Silent()))
    run = load_run(path)
    assert run.info.rules is not None
    assert (run.info.rules.valid, run.info.rules.reasons) == (True, ())
    summary = summarise(run)
    assert exit_code(summary) == (0 if summary.trust.verdict == "ok" else 3)
    assert not any("agentx" in text for text in from_run(path).problems)


def test_a_usage_error_says_what_to_add(kvbench: Kvbench, trees: Path) -> None:
    done = kvbench("run", trees, "--endpoint", "sim:tiny", "--rules", "agentx")
    assert done.returncode == 2
    assert "add --sessions N" in done.stderr
