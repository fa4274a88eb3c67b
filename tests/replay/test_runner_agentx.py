"""Trees opened in their midst, against a sender without a network; when turns are due is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.replay.test_runner import FAN_OUT, MS, Observer, Replay, line

from kvbench.errors import UsageError
from kvbench.replay.opening import start_point_s
from kvbench.replay.schedule import Arrival
from kvbench.replay.settings import RunSettings


def agentx(**given: Any) -> RunSettings:
    return RunSettings.of(rules="agentx", **{"sessions": 1, "duration_s": 0.4, **given})


def seed_for(tmp_path: Path, lines: list[dict[str, Any]], low_s: float, high_s: float) -> int:
    """A seed whose start point in the first tree lies in [low_s, high_s)."""
    with Replay(tmp_path, lines, agentx()).trace as trace:
        tree = trace.read_tree(0)
    return next(s for s in range(1000) if low_s <= start_point_s(tree, Arrival(0, 0, None), s, 10.0) < high_s)


async def opened(tmp_path: Path, low_s: float, high_s: float) -> tuple[Replay, Observer, int]:
    """FAN_OUT's tree a opened between these: its turns start at 0, 0.02 (calling a.x and a.y), a.y 0.02, a.x 0.05 and
    0.06, a/2 0.08. With the start point in ns."""
    seed = seed_for(tmp_path, FAN_OUT, low_s, high_s)
    replay = Replay(tmp_path, FAN_OUT, agentx(seed=seed))
    at_s = start_point_s(replay.trace.read_tree(0), Arrival(0, 0, None), seed, 10.0)
    return replay, await replay.run(), round(at_s * 1e9)


async def test_the_turn_before_is_warm_up_and_the_next_is_due_what_was_left_of_its_pause(tmp_path: Path) -> None:
    replay, got, at_ns = await opened(tmp_path, 0.021, 0.049)
    warm = [(r.session_id, r.turn) for r in got.records if r.phase == "warmup"]
    # a.y was called and has ended; a.x was called and is not due yet: only a is under way
    assert warm == [("a", 1)]
    assert [m["content"] for m in replay.sender.bodies["a", 1]["messages"]] == ["a/0", "recorded a/0", "a/1"]
    assert got.measuring_ns is not None
    assert got.of("a.x", 0).clock.scheduled == pytest.approx(got.measuring_ns + 50 * MS - at_ns, abs=1)
    end = got.of("a.x", 0).clock.end
    assert end is not None
    assert got.of("a.x", 1).clock.scheduled == end + 10 * MS
    joined = got.of("a.x", 1).clock.end
    assert joined is not None
    assert got.of("a", 2).clock.scheduled == joined + 20 * MS
    assert ("a.y", 0) not in {(r.session_id, r.turn) for r in got.records}
    bodies = {key[0]: body["salt"] for key, body in replay.sender.bodies.items() if "~" not in key[0]}
    assert bodies["a"] == bodies["a.x"] != bodies["b"]


async def test_a_turn_whose_waits_are_all_done_is_due_from_the_start_point(tmp_path: Path) -> None:
    _, got, at_ns = await opened(tmp_path, 0.061, 0.079)
    first = [r for r in got.records if r.root_id == "a"]
    assert [(r.session_id, r.turn, r.phase) for r in first] == [("a", 1, "warmup"), ("a", 2, "measure")]
    assert got.measuring_ns is not None
    assert first[1].clock.scheduled == pytest.approx(got.measuring_ns + 80 * MS - at_ns, abs=1)


async def test_sessions_under_way_are_all_warm_before_any_goes_on(tmp_path: Path) -> None:
    _, got, _ = await opened(tmp_path, 0.051, 0.059)
    warm = [r for r in got.records if r.phase == "warmup"]
    assert {(r.session_id, r.turn) for r in warm} == {("a", 1), ("a.x", 0)}
    measured = [r for r in got.records if r.phase == "measure"]
    assert got.measuring_ns is not None
    assert all((r.clock.end or 0) <= got.measuring_ns for r in warm)
    assert all(r.clock.scheduled >= got.measuring_ns for r in measured)
    assert [(r.session_id, r.turn) for r in measured[:2]] == [("a.x", 1), ("a", 2)]


async def test_an_ended_tree_is_replaced_by_the_next_from_its_beginning_until_the_window_ends(tmp_path: Path) -> None:
    lines = [line("a", 0), line("a", 1, delay_s=0.02), line("b", 0), line("b", 1, delay_s=0.02)]
    replay = Replay(tmp_path, lines, agentx(sessions=3))
    got = await replay.run()
    assert got.trees[:5] == ["a", "b", "a~1", "b~1", "a~2"]
    assert got.measuring_ns is not None
    # the plays after the three that were live at the beginning
    for root in got.trees[3:]:
        assert [r.turn for r in got.records if r.root_id == root] in ([0, 1], [0], []), "from the beginning"
    assert all(r.clock.scheduled < got.measuring_ns + 400 * MS for r in got.records)
    assert len({body["salt"] for body in replay.sender.bodies.values()}) == len({r.root_id for r in got.records})


async def test_a_session_that_no_longer_fits_the_context_ends(tmp_path: Path) -> None:
    lines = [line("a", 0), *(line("a", k, delay_s=0.001) for k in range(1, 4)), line("b", 0)]
    seed = seed_for(tmp_path, lines, 0.0, 0.001)
    replay = Replay(tmp_path, lines, agentx(sessions=2, duration_s=0.1, seed=seed))
    replay.sender.fail["a", 1, 0] = ("context_overflow", None)
    got = await replay.run()
    outcome = {r.turn: r.error_class for r in got.records if r.session_id == "a" and r.turn}
    assert outcome == {1: "context_overflow", 2: "skipped", 3: "skipped"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sessions": None}, "add --sessions N"),
        ({"sessions": None, "rate": 2.0}, "add --sessions N"),
        ({"warmup": 3}, "leave --warmup out"),
        ({"history": "live"}, "leave --history out"),
    ],
)
def test_what_cannot_be_together_with_the_rules(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        agentx(**given)
    assert said in str(error.value.hint)


def test_the_rules_fill_in_what_was_not_given() -> None:
    settings = RunSettings.of(rules="agentx", sessions=4)
    assert (settings.max_pause_s, settings.salt, settings.duration_s, settings.time_scale) == (10.0, "tree", 900.0, 1.0)
    other = RunSettings.of(rules="agentx", sessions=4, salt="run", max_pause_s=0.0, duration_s=5.0)
    assert (other.max_pause_s, other.salt, other.duration_s) == (0.0, "run", 5.0)
    assert RunSettings.of(sessions=4).salt == "run"
