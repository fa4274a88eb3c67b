"""TraceLab's rows: lengths and hits of rounds, in any order."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import InputError
from kvbench.model import Session
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")


def row(session: str, index: int, tokens: int, prefix: int, start: float, end: float, **fields: Any) -> dict[str, Any]:
    events = [
        {"event_type": "user_message", "timestamp": 1_767_000_000 + start},
        {"event_type": "text", "timestamp": 1_767_000_000 + end},
        {"event_type": "tool_result", "timestamp": 1_767_000_000 + end + 1},
        {"event_type": "usage_report", "timestamp": 1_767_000_000 + end + 2},
    ]
    base = {"session_id": session, "round_index": index, "input_tokens_total": tokens, "prefix_tokens": prefix}
    return {**base, "output_tokens": 9, "model": "m", "timing_events": events, **fields}


ROWS = [
    row("a", 0, 200, 128, 10.0, 12.0),
    row("a", 1, 330, 150, 15.0, 16.0),
    row("a", 2, 400, 400, 15.5, 18.0, output_tokens=0),
    row("b", 0, 60, 0, 5.0, 6.0, model="n"),
    row("a", 3, 100, 0, 18.0, 19.0, timing_events=[]),
]


def write(tmp_path: Path, rows: list[Any]) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def sessions_of(path: Path) -> dict[str, Session]:
    with open_workload(path) as opened:
        return {session.session_id: session for tree in opened.trees() for session in tree.sessions}


def test_a_prompt_shares_what_was_hit_of_the_one_before(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    made = sessions_of(path)
    assert list(made) == ["b", "a"], "in the order of their first rounds"
    turns = made["a"].turns
    # 150 // 64 blocks of the first prompt's 3; then 400 // 64 = 6, of which there were 330 // 64 = 5.
    assert [turn.keep_blocks for turn in turns] == [None, 2, 5, None]
    assert [len(turn.hash_ids or ()) for turn in turns] == [3, 3, 1, 1]
    ids = [block for session in made.values() for turn in session.turns for block in turn.hash_ids or ()]
    assert len(ids) == len(set(ids)), "what was not hit is new"
    assert [turn.delay_s for turn in turns] == [0.0, 3.0, 0.0, 0.0]
    assert (turns[0].start_s, made["b"].turns[0].start_s, turns[2].output_tokens) == (5.0, 0.0, 1)
    assert [turn.recorded and (turn.recorded.at_s, turn.recorded.cached_tokens) for turn in turns] == [
        (0.0, 128),
        (5.0, 150),
        (5.5, 400),
        (None, 0),
    ]
    with open_workload(path) as opened:
        report = opened.imported
    assert report is not None
    assert (report.units, report.turns) == (5, 5)
    assert report.notes == {
        "clipped_pauses": 1,
        "no_time": 1,
        "other_prefix": 1,
        "prefix_beyond": 1,
        "zero_output": 1,
    }


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    def what(rows: list[dict[str, Any]]) -> Any:
        return {
            name: [(turn.input_tokens, turn.keep_blocks, turn.delay_s, turn.start_s) for turn in session.turns]
            for name, session in sessions_of(write(tmp_path, rows)).items()
        }

    expected = what(ROWS)
    for seed in range(6):
        assert what(random.Random(seed).sample(ROWS, len(ROWS))) == expected


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"input_tokens_total": 0}, "input_tokens_total"),
        ({"prefix_tokens": -1}, "prefix_tokens"),
        ({"session_id": None}, "session_id"),
        ({"timing_events": [{"event_type": "text", "timestamp": "noon"}]}, "timing_events[0].timestamp"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, Any], field: str) -> None:
    path = write(tmp_path, [ROWS[0], {**ROWS[1], **bad}])
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: {field}: ")
    assert [(error.line, error.field) for error in validate_workload(path).errors] == [(2, field)]


@needs_data
def test_rounds_agree_with_the_logs_they_were_derived_from() -> None:
    """Lengths, hits, pauses and durations, from the session's own log and from the rows that others made of it."""
    assert DATA is not None
    folder = Path(DATA, "tracelab")
    derived = sessions_of(folder / "derived_round_trace.jsonl")
    assert sum(len(session.turns) for session in derived.values()) == 19
    for log, name in (("claude_session.jsonl", "claude:"), ("codex_session_head.jsonl", "codex:")):
        (session,) = sessions_of(folder / log).values()
        (rounds,) = (each.turns for key, each in derived.items() if key.startswith(name))
        assert len(session.turns) > 2
        for turn, same in zip(session.turns, rounds, strict=False):
            assert turn.recorded is not None
            assert same.recorded is not None
            assert (turn.input_tokens, turn.output_tokens) == (same.input_tokens, same.output_tokens)
            assert turn.recorded.cached_tokens == same.recorded.cached_tokens
            assert turn.delay_s == pytest.approx(same.delay_s, abs=0.05)
            assert turn.recorded.e2e_s == pytest.approx(same.recorded.e2e_s, abs=0.05)
