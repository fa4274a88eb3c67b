"""Mooncake rows: written from what has ids, and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.native_lines import hits, objects, same_sharing, starts_s, turns, whole
from tests.native_trees import trees
from tests.public_traces import data

from kvbench.traces.importing import open_workload
from kvbench.traces.writers.convert import Conversion


def test_rows_worked_out_by_hand(write: Any, convert: Any) -> None:
    """Blocks of 4. Session p runs 10 to 12 s and 15.5 s; its sub-agent from 12.25 s; q in between."""
    source = write(
        {
            "session_id": "p", "turn": 0, "start_s": 10, "input_tokens": 9, "output_tokens": 5, "hash_ids": [1, 2],
            "recorded": {"e2e_s": 2.0, "usage": {"prompt_tokens": 9}}, "model": "m",
        },
        {
            "session_id": "p", "turn": 1, "after": ["p.a"], "delay_s": 0.5, "input_tokens": 14, "output_tokens": 6,
            "keep_blocks": 2, "hash_ids": [3], "tools": [{"type": "x"}], "mine": 1,
        },
        {
            "session_id": "p.a", "turn": 0, "parent": {"session_id": "p", "turn": 0}, "delay_s": 0.25,
            "input_tokens": 8, "hash_ids": [1, 9], "recorded": {"e2e_s": 2.75},
        },
        {"session_id": "q", "turn": 0, "start_s": 12.1234567, "input_tokens": 3, "output_tokens": 1, "hash_ids": [7]},
        {"session_id": "q", "turn": 1, "delay_s": 0.001, "input_tokens": 4, "output_tokens": 1, "hash_ids": [8]},
    )  # fmt: skip
    made, report = convert(source, "mooncake")
    assert objects(made) == [
        {
            "timestamp": 10000,
            "input_length": 9,
            "output_length": 5,
            "hash_ids": [1, 2, 10],
            "session_id": "p",
        },
        {"timestamp": 12123.457, "input_length": 3, "output_length": 1, "hash_ids": [7], "session_id": "q"},
        {"timestamp": 12124.457, "input_length": 4, "output_length": 1, "hash_ids": [8], "session_id": "q", "delay": 1},
        {"timestamp": 12250, "input_length": 8, "hash_ids": [1, 9], "session_id": "p.a"},
        {
            "timestamp": 15500,
            "input_length": 14,
            "output_length": 6,
            "hash_ids": [1, 2, 3, 11],
            "session_id": "p",
            "delay": 3500,
        },
    ]
    assert report.notes == {"tails": 2, "no_output": 1}
    assert report.lost == {"tools": 1, "parents": 1, "joins": 1, "models": 2, "times": 2, "usage": 1, "extra": 1}
    assert (report.units, report.input_tokens, report.output_tokens) == (5, 38, None)
    assert "10" not in report.facts["block size"]
    assert report.facts["block size"].startswith("4, not Mooncake's own 512")
    assert report.facts["ids"] == "the trace's own"


def test_the_conversation_trace_comes_back_row_by_row(convert: Any) -> None:
    source = data("mooncake", "conversation_trace.jsonl")
    native, _ = convert(source, "native")
    made, report = convert(native, "mooncake")
    assert objects(made) == objects(source)
    assert report.notes == {}
    assert report.lost == {"session_names": 12031}


def test_sessions_come_back_with_their_order_pauses_lengths_and_sharing(convert: Any) -> None:
    """A native trace with sub-agents and joins, from a Weka one whose blocks of 64 have no tails."""
    native, _ = convert(data("weka", "trace_0277.json"), "native")
    rows, report = convert(native, "mooncake")
    back, _ = convert(rows, "native")
    source, result = turns(native), turns(back)
    assert sorted(source) == sorted(result)
    assert report.notes == {"tails": sum(line.fields["input_tokens"] % 64 > 0 for line in source.values())}
    keys = list(source)
    pairs = [(source[key].fields, result[key].fields) for key in keys]
    for field in ("input_tokens", "output_tokens"):
        assert [a[field] for a, _ in pairs] == [b[field] for _, b in pairs]
    blocks = [(whole(source[key], 64), whole(result[key], 64)) for key in keys]
    assert same_sharing([i for a, _ in blocks for i in a], [i for _, b in blocks for i in b])
    assert hits(a for a, _ in blocks) == hits(b for _, b in blocks)
    assert sum(hits(a for a, _ in blocks)) > 10_000
    for key, (a, b) in zip(keys, pairs, strict=True):
        if key[1] and "after" not in a:
            assert abs(a.get("delay_s", 0.0) - b.get("delay_s", 0.0)) < 1e-6, key
    # Where a turn joined sub-agents, the pause is the whole time since its own session's answer.
    joined = [key for key, (a, _) in zip(keys, pairs, strict=True) if "after" in a]
    assert len(joined) == report.lost["joins"] == 2
    starts = {(row["session_id"], row["timestamp"]) for row in objects(rows)}
    assert len(starts) == len(keys)
    times = [row["timestamp"] for row in objects(rows)]
    assert times == sorted(times)


def test_a_prompt_that_ends_with_a_block_needs_no_tail(write: Any, convert: Any) -> None:
    made, report = convert(
        write({"session_id": "s", "turn": 0, "input_tokens": 8, "output_tokens": 1, "hash_ids": [5, 3]}), "mooncake"
    )
    assert objects(made) == [{"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [5, 3]}]
    assert report.notes == {}


def test_texts_are_cut_into_mooncakes_blocks_unless_others_are_asked_for(write: Any, convert: Any) -> None:
    text = [{"role": "user", "content": "abcd" * 600}]
    source = write({"session_id": "s", "turn": 0, "output_tokens": 1, "append": text}, header={"block_size": None})
    for asked, ids in ((None, 2), (64, 10)):
        made, report = convert(source, "mooncake", block_size=asked)
        (row,) = objects(made)
        assert (row["input_length"], row["hash_ids"]) == (600, list(range(1, ids + 1)))
        assert report.block_size == (asked or 512)
        assert report.lost["texts"] == 1


def test_rows_of_one_moment_keep_the_files_order(write: Any, convert: Any, tmp_path: Path) -> None:
    lines = [
        {"session_id": name, "turn": 0, "start_s": at, "input_tokens": size, "output_tokens": 1, "hash_ids": []}
        for name, at, size in (("a", 2, 1), ("b", 1, 2), ("c", 2, 3), ("d", 1, 3))
    ]
    made, report = convert(write(*lines), "mooncake")
    assert [row["input_length"] for row in objects(made)] == [2, 3, 1, 3]
    assert [row["hash_ids"] for row in objects(made)] == [[0], [1], [2], [3]]
    assert report.lost == {"session_names": 4}


@settings(max_examples=60, deadline=None)
@given(lines=trees())
def test_rows_are_dated_and_paused_by_the_formats_rules(
    lines: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, made = (tmp_path_factory.mktemp("t") / name for name in ("source.jsonl", "made.jsonl"))
    head = {"kvbench_trace": 1, "name": "t", "block_size": 4}
    source.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    with open_workload(source) as trace, made.open("wb") as out:
        Conversion(trace, "mooncake").write(out.write)
    fields = {key: line.fields for key, line in turns(source).items()}
    starts = starts_s(fields)
    rows = objects(made)
    assert [row["timestamp"] for row in rows] == sorted(start_s * 1000 for start_s in starts.values())
    several = len({name for name, _ in fields}) < len(fields)
    assert all(("session_id" in row) == several for row in rows)
    seen: dict[str, int] = {}
    for row in rows if several else ():
        name = row["session_id"]
        key = (name, seen.get(name, 0))
        seen[name] = key[1] + 1
        assert row["timestamp"] == starts[key] * 1000
        before = (name, key[1] - 1)
        ended_s = starts[before] + fields[before].get("recorded", {}).get("e2e_s", 0.0) if key[1] else None
        assert row.get("delay") == (None if ended_s is None else (starts[key] - ended_s) * 1000)
