"""Bailian traces: whole requests linked by the chat they follow, in any order of the file."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import InputError
from kvbench.model import Session, TurnRef
from kvbench.traces.importing import open_workload, validate_workload


def row(chat: int, parent: int, at: float, tokens: int, ids: list[int], **fields: Any) -> dict[str, Any]:
    base = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": tokens, "output_length": 7}
    return {**base, "type": "text", "turn": 1, "hash_ids": ids, **fields}


# 10 <- 11 <- 13 is a session. 12 follows 10 too, later than 11; 14 goes on from there. 20 follows no chat of the file.
ROWS = [
    row(10, -1, 5.0, 40, [1, 2, 3]),
    row(11, 10, 9.5, 64, [1, 2, 4, 5]),
    row(12, 10, 12.0, 48, [1, 2, 6], type="search"),
    row(13, 11, 30.0, 65, [1, 2, 4, 5, 7]),
    row(14, 12, 31.25, 50, [1, 2, 6, 8], output_length=0),
    row(20, 99, 6.0, 16, [1]),
]


def write(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(obj) + "\n" for obj in rows))
    return path


def sessions_of(path: Path) -> dict[str, Session]:
    with open_workload(path) as opened:
        return {session.session_id: session for tree in opened.trees() for session in tree.sessions}


def test_rows_follow_the_chat_they_name(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    made = sessions_of(path)
    assert {name: len(session.turns) for name, session in made.items()} == {"chat10": 3, "chat12": 2, "chat20": 1}
    one, two, three = made["chat10"].turns
    assert (one.start_s, two.delay_s, three.delay_s) == (5.0, 4.5, 20.5)
    assert [turn.recorded and turn.recorded.at_s for turn in (one, two, three)] == [0.0, 4.5, 25.0]
    assert [(turn.keep_blocks, turn.hash_ids) for turn in (one, two, three)] == [
        (None, (1, 2, 3)),
        (2, (4, 5)),
        (4, (7,)),
    ]
    branch, after = made["chat12"].turns
    assert (branch.parent, branch.delay_s, branch.hash_ids) == (TurnRef("chat10", 0), 7.0, (1, 2, 6))
    assert (branch.extra, branch.line) == ({"type": "search"}, 3)
    assert (after.delay_s, after.keep_blocks, after.hash_ids, after.output_tokens) == (19.25, 3, (8,), 1)
    assert after.recorded is not None
    assert after.recorded.at_s == 26.25
    with open_workload(path) as opened:
        assert opened.header.block_size == 16
        report = opened.imported
    assert report is not None
    assert (report.units, report.turns, report.dropped) == (6, 6, {})
    assert report.notes == {
        "branches": 1,
        "no_parent": 1,
        "out_of_order": 1,
        "pauses_with_answer": 4,
        "zero_output": 1,
    }


def test_the_order_of_rows_and_of_keys_does_not_matter(tmp_path: Path) -> None:
    def what(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            name: [(turn.delay_s, turn.start_s, turn.parent, turn.keep_blocks, turn.hash_ids) for turn in session.turns]
            for name, session in sessions_of(write(tmp_path, rows)).items()
        }

    expected = what(ROWS)
    for seed in range(8):
        rows = [dict(sorted(obj.items(), key=lambda _: random.random())) for obj in ROWS]
        random.Random(seed).shuffle(rows)
        assert what(rows) == expected


def test_ids_that_stand_for_their_block_alone_are_made_to_stand_for_what_precedes_them_too(tmp_path: Path) -> None:
    """Block 9 after 1 and after 2 is twice the same text and not the same prefix."""
    path = write(
        tmp_path, [row(1, -1, 0.0, 48, [1, 9, 5]), row(2, -1, 1.0, 48, [2, 9, 5]), row(3, -1, 2.0, 32, [1, 9])]
    )
    first, second, third = (session.turns[0].hash_ids for session in sessions_of(path).values())
    assert first is not None
    assert second is not None
    assert third is not None
    assert not set(first) & set(second)
    assert third == first[:2]
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert "stands for its block alone" in opened.imported.facts["block ids"]
        assert opened.imported.units == 3


@pytest.mark.parametrize("far", [2**40, -7])
def test_ids_of_any_size(tmp_path: Path, far: int) -> None:
    path = write(tmp_path, [row(1, -1, 0.0, 32, [far, 3]), row(2, -1, 1.0, 48, [far, 3, far + 1])])
    first, second = (session.turns[0].hash_ids for session in sessions_of(path).values())
    assert (first, second) == ((far, 3), (far, 3, far + 1))


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        ({"hash_ids": [1]}, "hash_ids", "1 block ids for 40 input tokens of block size 16; expected 3"),
        ({"hash_ids": [1, 2, 3, 4]}, "hash_ids", "expected 3"),
        ({"input_length": 0}, "input_length", "expected int >= 1"),
        ({"timestamp": -1}, "timestamp", "expected float >= 0"),
        ({"chat_id": "x"}, "chat_id", "expected int"),
        ({"output_length": None}, "output_length", "expected int"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, Any], field: str, message: str) -> None:
    path = write(tmp_path, [ROWS[0], {**row(15, -1, 9.0, 40, [1, 2, 3]), **bad}])
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: {field}: ")
    assert message in str(caught.value)
    assert [(error.line, error.field) for error in validate_workload(path).errors] == [(2, field)]


def test_chats_that_follow_each_other_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [row(1, 2, 0.0, 16, [1]), row(2, 1, 1.0, 16, [1]), row(3, -1, 1.0, 16, [1])])
    found = validate_workload(path)
    assert sorted((error.line, error.field) for error in found.errors) == [(1, "parent_chat_id"), (2, "parent_chat_id")]


def test_a_chat_id_given_twice_and_a_row_without_its_tail_block_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, [row(1, -1, 0.0, 40, [1, 2]), row(1, -1, 1.0, 16, [1]), row(2, 1, 2.0, 16, [1])])
    assert {name: len(session.turns) for name, session in sessions_of(path).items()} == {"chat1": 2, "chat1-2": 1}
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert (opened.imported.notes["chat_again"], opened.imported.notes["whole_blocks"]) == (1, 1)


def test_two_files_of_one_directory_are_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps(ROWS[0]))
    with pytest.raises(InputError, match="a directory of several files"):
        open_workload(tmp_path)
