from __future__ import annotations

from pathlib import Path

from kvbench.traces.native import open_trace
from kvbench.traces.timeline import recorded_timeline, timeline


def lines(*rows: str) -> str:
    return "\n".join(('{"kvbench_trace": 1, "name": "t", "block_size": 4}', *rows)) + "\n"


def turn(name: str, number: int, more: str = "") -> str:
    return f'{{"session_id": "{name}", "turn": {number}, "append": [{{"role": "user", "content": "x"}}]{more}}}'


def test_pauses_answers_and_joins(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines(
            turn("r", 0, ', "start_s": 10, "recorded": {"e2e_s": 2}'),
            turn("r", 1, ', "delay_s": 1, "after": ["a", "b"]'),
            turn("a", 0, ', "delay_s": 0.5, "parent": {"session_id": "r", "turn": 0}, "recorded": {"e2e_s": 3}'),
            turn("a", 1, ', "delay_s": 4'),
            turn("b", 0, ', "delay_s": 0.25, "parent": {"session_id": "r", "turn": 0}, "recorded": {"e2e_s": 1}'),
        )
    )
    with open_trace(path) as trace:
        found = [(at.start_s, at.session, at.turn, at.end_s) for at in timeline(trace.read_tree(0))]
    # r0 10..12; b starts 12.25, a 12.5..15.5, then 4 s later its second turn at 19.5; r1 a second after that
    assert found == [(10, 0, 0, 12), (12.25, 2, 0, 13.25), (12.5, 1, 0, 15.5), (19.5, 1, 1, 19.5), (20.5, 0, 1, 20.5)]


def test_what_is_waited_for_comes_first_of_those_that_start_together(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines(
            turn("r", 0),
            turn("r", 1, ', "after": ["a"]'),
            turn("a", 0, ', "parent": {"session_id": "r", "turn": 0}'),
            turn("a", 1),
        )
    )
    with open_trace(path) as trace:
        assert [(at.session, at.turn) for at in timeline(trace.read_tree(0))] == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_the_sources_own_dates(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines(
            turn("r", 0, ', "start_s": 10, "recorded": {"at_s": 0, "e2e_s": 9}'),
            turn("r", 1, ', "delay_s": 7, "recorded": {"at_s": 4}'),
            turn("r", 2, ', "delay_s": 7, "recorded": {"at_s": 3}'),
            turn("a", 0, ', "parent": {"session_id": "r", "turn": 0}, "recorded": {"at_s": 2, "e2e_s": 5}'),
        )
    )
    with open_trace(path) as trace:
        found = recorded_timeline(trace.read_tree(0))
    # the third turn is dated before the second: it keeps its place in the session
    assert found == [(10, 0, 0, 19), (12, 1, 0, 17), (14, 0, 1, 14), (14, 0, 2, 14)]


def test_one_turn_without_a_date_is_enough_for_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines(turn("r", 0, ', "recorded": {"at_s": 0}'), turn("r", 1, ', "recorded": {"e2e_s": 1}')))
    with open_trace(path) as trace:
        assert recorded_timeline(trace.read_tree(0)) is None
