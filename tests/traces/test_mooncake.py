"""Mooncake traces: rows become root sessions at their timestamps, with the ids as they are."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.model import Session
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
USER = [{"role": "user", "content": "go"}]


def row(ids: list[int], tail: int = 100, **fields: Any) -> dict[str, Any]:
    """Full blocks but for the last, which has `tail` tokens."""
    return {
        "timestamp": 0,
        "input_length": 512 * (len(ids) - 1) + tail,
        "output_length": 52,
        "hash_ids": ids,
        **fields,
    }


def write(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(obj) + "\n" for obj in rows))
    return path


def sessions_of(path: Path) -> list[Session]:
    with open_workload(path) as opened:
        return [session for tree in opened.trees() for session in tree.sessions]


def ids_of(session: Session) -> list[list[int]]:
    out: list[list[int]] = []
    for turn in session.turns:
        assert turn.hash_ids is not None
        out.append((out[-1][: turn.keep_blocks or 0] if out else []) + list(turn.hash_ids))
    return out


def test_a_row_is_a_session_at_its_timestamp(tmp_path: Path) -> None:
    path = write(tmp_path, row([0, 1], 143), row([0, 2, 3], 512, timestamp=27_500, output_length=0))
    one, two = sessions_of(path)
    assert [one.session_id, two.session_id] == ["row1", "row2"]
    (first,), (second,) = one.turns, two.turns
    assert (first.start_s, first.input_tokens, first.output_tokens, first.hash_ids) == (0.0, 655, 52, (0, 1))
    assert (second.start_s, second.input_tokens, second.output_tokens, second.hash_ids) == (27.5, 1536, 1, (0, 2, 3))
    assert (first.line, second.line) == (1, 2)
    with open_workload(path) as opened:
        assert opened.header.block_size == 512
        assert opened.imported is not None
        assert (opened.imported.format, opened.imported.units, opened.imported.sessions) == ("mooncake", 2, 2)
        assert opened.imported.notes == {"zero_output": 1}


def test_rows_out_of_order_are_counted_and_arrive_by_their_timestamps(tmp_path: Path) -> None:
    path = write(tmp_path, *(row([number], timestamp=ms) for number, ms in enumerate((0, 9000, 3000, 3000, 5000))))
    with open_workload(path) as opened:
        assert [entry.start_s for entry in opened.tree_entries] == [0.0, 9.0, 3.0, 3.0, 5.0], "the file's order is kept"
        assert opened.imported is not None
        assert opened.imported.notes == {"out_of_order": 1}, "3,000 after 9,000; the rows behind it are in order"


@pytest.mark.parametrize(
    ("rows", "chains", "tails"),
    [
        ([row([0, 1]), row([0, 1]), row([0, 2], 512), row([0, 2, 3])], None, None),
        ([row([0, 1], 512), row([2, 1], 512)], 1, None),
        ([row([0, 0], 512)], 1, None),
        ([row([0, 1], 100), row([0, 1], 101)], None, 1),
        ([row([0, 1], 100), row([0, 1], 512), row([0, 1, 2])], None, 2),
        ([row([0, 1], 512), row([0, 1], 100)], None, 1),
        ([row([0, 1], 100, session_id="s"), row([0, 1, 2], 100, session_id="s")], None, 1),
    ],
)
def test_ids_that_contradict_themselves_are_counted(
    tmp_path: Path, rows: list[dict[str, Any]], chains: int | None, tails: int | None
) -> None:
    """An id at two prefixes, or for blocks of two lengths: no row of the published traces has either."""
    with open_workload(write(tmp_path, *rows)) as opened:
        assert opened.imported is not None
        notes = opened.imported.notes
        assert (notes.get("chains_broken"), notes.get("tails_differ")) == (chains, tails)


def test_rows_of_a_session_follow_each_other(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row([0, 1, 2], 10, session_id="c", timestamp=1000, model="m"),
        row([7], session_id="d", timestamp=2000),
        row([0, 1, 3, 4], session_id="c", delay=2500, timestamp=None, model="m"),
        row([7, 8], session_id="d", timestamp=6000),
        row([7, 8], session_id="d", timestamp=None),
    )
    c, d = sessions_of(path)
    assert (c.session_id, d.session_id) == ("c", "d")
    assert [(turn.start_s, turn.delay_s) for turn in c.turns] == [(1.0, 0.0), (None, 2.5)]
    assert (c.turns[1].keep_blocks, c.turns[1].hash_ids) == (2, (3, 4))
    assert [turn.model for turn in c.turns] == ["m", None]
    assert [turn.delay_s for turn in d.turns] == [0.0, 4.0, 0.0]
    assert [turn.recorded and turn.recorded.at_s for turn in d.turns] == [0.0, 4.0, None]
    assert [turn.line for turn in d.turns] == [2, 4, 5]
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes == {"no_pause_known": 1, "pauses_with_answer": 1, "tails_differ": 1}


def test_the_order_of_a_source_is_that_of_its_timestamps(tmp_path: Path) -> None:
    # pauses leave out the 7 s that a's answer took: by them alone a's second row would come before b's
    path = write(
        tmp_path,
        row([0, 1], session_id="a", timestamp=1000),
        row([5, 6], session_id="b", timestamp=4000),
        row([0, 1, 2], session_id="a", timestamp=9000, delay=1000),
        row([5, 6, 7], session_id="b", timestamp=12000, delay=500),
    )
    with open_workload(path) as opened:
        by_source = [(r.start_s, r.session_id) for r, _ in BlockedTrace(opened, times="recorded").in_order()]
        by_pauses = [(r.start_s, r.session_id) for r, _ in BlockedTrace(opened).in_order()]
    assert by_source == [(1.0, "a"), (4.0, "b"), (9.0, "a"), (12.0, "b")]
    assert by_pauses == [(1.0, "a"), (2.0, "a"), (4.0, "b"), (4.5, "b")]


def test_messages_are_sent_as_they_are(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    path = write(
        tmp_path,
        {
            "timestamp": 500,
            "session_id": 5,
            "messages": USER,
            "tools": tools,
            "output_length": 9,
            "extra": {"top_k": 1},
        },
        {"delay": 100, "session_id": 5, "messages": USER * 3, "hash_ids": [1], "input_length": 40},
        {"delay": 100, "session_id": 5, "messages": USER, "message_mode": "append"},
        {"delay": 100, "session_id": 5, "messages": USER, "message_mode": "deltas_without_responses"},
    )
    (session,) = sessions_of(path)
    assert session.session_id == "5"
    assert [turn.messages and len(turn.messages) for turn in session.turns] == [1, 3, None, None]
    assert [turn.append and len(turn.append) for turn in session.turns] == [None, None, 1, 1]
    assert session.turns[0].tools == tuple(tools)
    assert session.turns[0].extra == {"extra": {"top_k": 1}}
    assert (session.turns[1].input_tokens, session.turns[1].hash_ids) == (40, None)
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes == {"answers_missing": 1, "hash_ids_left_out": 1, "row_extra": 1}
        assert opened.imported.block_size is None


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        ({"hash_ids": [0, 1, 2]}, "hash_ids", "3 block ids for 655 input tokens of block size 512; expected 2"),
        ({"hash_ids": [0]}, "hash_ids", "expected 2: the last block would be 655 tokens long"),
        ({"hash_ids": []}, "hash_ids", "0 block ids for 655 input tokens"),
        ({"hash_ids": None}, "hash_ids", "missing; a row has hash_ids or messages"),
        ({"hash_ids": [0, 1.5]}, "hash_ids[1]", "expected int, got float"),
        ({"input_length": None}, "input_length", "missing"),
        ({"input_length": 0}, "input_length", "expected int >= 1"),
        ({"output_length": -1}, "output_length", "expected int >= 0"),
        ({"timestamp": -5}, "timestamp", "expected float >= 0"),
        ({"messages": USER, "message_mode": "sideways"}, "message_mode", 'unknown mode "sideways"; known: replace'),
        ({"messages": [{"content": "x"}], "hash_ids": None}, "messages[0].role", 'a message has a "role"'),
        ({"session_id": "s", "messages": USER}, "messages", 'has messages, where the rows of session "s" before it'),
        ({"session_id": "s", "timestamp": 5}, "timestamp", 'earlier than the row before it in session "s" (10)'),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, Any], field: str, message: str) -> None:
    path = write(tmp_path, row([3, 4], session_id="s", timestamp=10), {**row([0, 1], 143), **bad})
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: {field}: ")
    assert message in str(caught.value)
    assert [(error.line, error.field) for error in validate_workload(path).errors] == [(2, field)]


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"timestamp": NaN}', b'{"timestamp": 1, "timestamp": 2}', b"\xff"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, row([1]))
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n")
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert (caught.value.path, caught.value.line) == (path, 3)


def test_all_bad_rows_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path, row([1]), row([1, 2, 3], -900), row([2]), row([5], hash_ids=None))
    found = validate_workload(path)
    assert [error.line for error in found.errors] == [2, 4]
    assert (found.sessions, found.turns) == (2, 2)


def test_another_block_size_is_made_out_only_where_it_fits_every_row(tmp_path: Path) -> None:
    rows = [{**row(ids), "input_length": tokens} for ids, tokens in (([0, 1, 2], 35), ([0], 16), ([0, 1, 2, 3, 4], 80))]
    path = write(tmp_path, *rows)
    with open_workload(path) as opened:
        assert opened.header.block_size == 16
        assert opened.imported is not None
        assert opened.imported.block_size == 16
        assert any("16 (made out: every row's ids fit it, and not 512)" in s for s in opened.imported.sentences())
        assert opened.turn_count == 3
    path = write(tmp_path, *rows, row([7, 8]))
    with pytest.raises(InputError, match="of block size 512; expected 1") as caught:
        open_workload(path)
    assert caught.value.line == 1
    assert [error.line for error in validate_workload(path).errors] == [1, 3]


def test_a_byte_order_mark_blank_lines_and_lone_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    text = json.dumps({"timestamp": 0, "messages": [{"role": "user", "content": "\ud83d cut"}]})
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row([1])).encode() + b"\r\n\r\n" + text.encode())
    one, two = sessions_of(path)
    assert one.turns[0].hash_ids == (1,)
    assert two.turns[0].messages is not None
    assert (two.turns[0].messages[0]["content"], two.turns[0].line) == ("\ufffd cut", 3)
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes == {"surrogates": 1}


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-3, 2**63 - 1), min_size=1, max_size=8),
            st.integers(1, 512),
            st.sampled_from([None, "a", "b"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_row_keeps_its_ids_and_its_length(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[list[int], int, str | None]]
) -> None:
    rows = [
        row(ids, tail, timestamp=1000 * number, **({} if name is None else {"session_id": name}))
        for number, (ids, tail, name) in enumerate(drawn)
    ]
    sessions = sessions_of(write(tmp_path_factory.mktemp("m"), *rows))
    made = {turn.line: (ids, turn.input_tokens) for s in sessions for turn, ids in zip(s.turns, ids_of(s), strict=True)}
    assert made == {number + 1: (obj["hash_ids"], obj["input_length"]) for number, obj in enumerate(rows)}


@needs_data
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("conversation_first400.jsonl", "mooncake_conversation_first400.json"),
        ("conversation_trace.jsonl", "mooncake_conversation_leaf-first.json"),
    ],
)
def test_published_rows_share_blocks_as_an_independent_count_says(name: str, reference: str) -> None:
    """The reference's row without a limit: an endless cache, rows by timestamp, then by file order."""
    assert DATA is not None
    path = Path(DATA) / "mooncake" / name
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    with open_workload(path) as opened:
        turns = [session.turns[0] for tree in opened.trees() for session in tree.sessions]
        assert opened.imported is not None
        assert opened.imported.notes == {}
    assert [turn.start_s for turn in turns] == [obj["timestamp"] / 1000 for obj in rows]
    assert [turn.input_tokens for turn in turns] == [obj["input_length"] for obj in rows]
    assert [turn.output_tokens for turn in turns] == [obj["output_length"] for obj in rows]
    expected = json.loads((Path(DATA) / "reference" / reference).read_text())
    endless = next(obj for obj in expected["rows"] if obj["cap"] is None)
    seen: set[int] = set()
    hits = hit_tokens = blocks = 0
    for turn in sorted(turns, key=lambda turn: turn.start_s or 0.0):
        assert turn.hash_ids is not None
        assert turn.input_tokens is not None
        known = next((i for i, block in enumerate(turn.hash_ids) if block not in seen), len(turn.hash_ids))
        hits += known
        hit_tokens += min(known * 512, turn.input_tokens)
        blocks += len(turn.hash_ids)
        seen.update(turn.hash_ids)
    assert (hits, hit_tokens, blocks) == (endless["hit_blocks"], endless["hit_tokens"], expected["blocks"])


def test_fields_that_are_not_taken_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    row = {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}
    path.write_text("\n".join(map(json.dumps, [row, row | {"priority": 3}, row | {"priority": 4, "user": "u"}])))
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes["other_fields"] == 2
