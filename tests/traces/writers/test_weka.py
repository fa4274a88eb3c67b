"""Weka traces: written from trees, and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.native_lines import objects, same_sharing, starts_s, turns
from tests.native_trees import trees
from tests.public_traces import data

from kvbench.errors import InputError
from kvbench.traces.importing import open_workload
from kvbench.traces.writers.convert import Conversion

NAMES = ["0014", "0026", "0057", "0091", "0274", "0277", "0291", "0326", "0422", "0553"]


def requests(trace: dict[str, Any], *, dated_by_end: bool) -> list[tuple[str, float, dict[str, Any]]]:
    """(agents on the way, seconds from the trace's start, request), agent by agent in the order of their names."""

    def level(entries: list[dict[str, Any]], path: str, base_s: float) -> list[tuple[str, float, dict[str, Any]]]:
        found = []
        for entry in entries:
            if entry["type"] == "subagent":
                start_s = base_s + entry["t"] - (entry["duration_ms"] / 1000 if dated_by_end else 0.0)
                found += level(entry["requests"], f"{path}/{entry['agent_id']}", start_s)
            else:
                found.append((path, base_s + entry["t"], entry))
        return found

    return sorted(level(trace["requests"], "", 0.0), key=lambda request: request[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_weka_trace_comes_back(name: str, convert: Any) -> None:
    """But for answers of 0 tokens, and for the rounding of its own times, which add up over its requests."""
    source = json.loads(data("weka", f"trace_{name}.json").read_text())
    native, _ = convert(data("weka", f"trace_{name}.json"), "native")
    made, report = convert(native, "weka")
    (result,) = objects(made)
    assert (report.notes, report.lost) == ({}, {"dates": report.turns})
    for field in ("id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens"):
        assert result[field] == source[field], field
    a, b = requests(source, dated_by_end=True), requests(result, dated_by_end=False)
    assert [path for path, _, _ in a] == [path for path, _, _ in b]
    ids = [[block for _, _, request in side for block in request["hash_ids"]] for side in (a, b)]
    assert same_sharing(*ids)
    empty = 0
    for (_, at_s, x), (_, now_s, y) in zip(a, b, strict=True):
        empty += x["out"] == 0
        assert y["out"] == max(x["out"], 1)
        assert abs(now_s - at_s) < 5.0
        for field in ("type", "model", "in", "api_time", "ttft", "stop", "input_types", "output_types"):
            assert y.get(field) == x.get(field), field
    totals = source["totals"]
    totals["parent_tokens"]["output"] += empty
    totals["combined_tokens"]["output"] += empty
    assert result["totals"] == totals
    agents = [entry for entry in source["requests"] if entry["type"] == "subagent"]
    for entry in result["requests"]:
        if entry["type"] == "subagent":
            (same,) = [agent for agent in agents if agent["agent_id"] == entry["agent_id"]]
            for field in ("subagent_type", "status", "models"):
                assert entry[field] == same[field]
            assert 0 <= same["duration_ms"] - entry["duration_ms"] < 10_000
    again, _ = convert(made, "native")
    before, after = turns(native), turns(again)
    assert before.keys() == after.keys()
    assert same_sharing(*([block for key in before for block in side[key].ids] for side in (before, after)))


def test_an_object_worked_out_by_hand(write: Any, convert: Any) -> None:
    """Blocks of 4. The sub-agent runs from 2.5 s to 13.5 s after the root's start and calls one of its own."""
    source = write(
        {
            "session_id": "r", "turn": 0, "start_s": 100, "input_tokens": 9, "output_tokens": 5, "model": "big",
            "hash_ids": [50, 60, 70], "recorded": {"e2e_s": 2.0, "ttft_s": 0.5},
        },
        {
            "session_id": "r", "turn": 1, "after": ["r.a"], "delay_s": 1.0, "input_tokens": 12, "output_tokens": 7,
            "keep_blocks": 2, "hash_ids": [80], "stop": "end_turn", "streamed": False, "mine": 1,
        },
        {
            "session_id": "r.a", "turn": 0, "parent": {"session_id": "r", "turn": 0}, "delay_s": 0.5, "model": "small",
            "input_tokens": 4, "output_tokens": 1, "hash_ids": [50], "recorded": {"e2e_s": 1.0},
            "subagent_type": "Plan",
        },
        {"session_id": "r.a", "turn": 1, "delay_s": 10, "input_tokens": 8, "output_tokens": 2, "keep_blocks": 1,
         "hash_ids": [90]},
        {
            "session_id": "deep", "turn": 0, "parent": {"session_id": "r.a", "turn": 0}, "delay_s": 0.25,
            "input_tokens": 3, "output_tokens": 1, "hash_ids": [],
        },
        {"session_id": "lone", "turn": 0, "input_tokens": 8, "output_tokens": 1, "hash_ids": [50, 61]},
    )  # fmt: skip
    made, report = convert(source, "weka")
    first, second = objects(made)
    assert first == {
        "id": "r",
        "models": ["big"],
        "block_size": 4,
        "hash_id_scope": "local",
        "requests": [
            {
                "t": 0.0, "type": "s", "model": "big", "in": 9, "out": 5, "hash_ids": [1, 2], "api_time": 2.0,
                "think_time": 0.0, "ttft": 0.5,
            },
            {
                "t": 2.5, "type": "subagent", "agent_id": "a", "subagent_type": "Plan", "duration_ms": 11000,
                "status": "completed", "models": ["small"],
                "requests": [
                    {
                        "t": 0.0, "type": "n", "model": "small", "in": 4, "out": 1, "hash_ids": [1], "api_time": 1.0,
                        "think_time": 0.0,
                    },
                    {
                        "t": 1.25, "type": "subagent", "agent_id": "deep", "subagent_type": "unknown",
                        "duration_ms": 0, "status": "async_launched", "models": [],
                        "requests": [
                            {"t": 0.0, "type": "n", "in": 3, "out": 1, "hash_ids": [], "think_time": 0.0}
                        ],
                    },
                    {
                        "t": 11.0, "type": "n", "model": "small", "in": 8, "out": 2, "hash_ids": [1, 4],
                        "think_time": 10.0,
                    },
                ],
            },
            {
                "t": 14.5, "type": "n", "model": "big", "in": 12, "out": 7, "hash_ids": [1, 2, 3],
                "think_time": 12.5, "stop": "end_turn",
            },
        ],
        "totals": {
            "parent_tokens": {"input": 21, "output": 12},
            "subagent_tokens": {"input": 15, "output": 4},
            "combined_tokens": {"input": 36, "output": 16},
            "subagent_count": 2,
        },
    }  # fmt: skip
    assert (second["id"], second["models"], second["requests"][0]["hash_ids"]) == ("lone", [], [1, 2])
    # The block 50 is in both traces, the id 70 stands for one token, and "mine" has no place.
    assert report.lost == {"tails": 1, "shared": 1, "starts": 1, "extra": 1}
    # "deep" ends before the next request of "r.a", so that a reader lets that wait for it.
    assert report.notes == {"no_model": 2, "joins_seen": 1}
    assert (report.units, report.sessions, report.turns) == (2, 4, 6)


def test_an_entry_is_dated_so_that_its_start_is_found_again(write: Any, convert: Any, tmp_path: Path) -> None:
    """The sub-agent starts 5 s after its caller's end, and its length leads back to the end of an earlier request:
    whoever takes the entry's time for the end finds a call nearer to it."""
    lines = [
        {"session_id": "r", "turn": 0, "input_tokens": 4, "output_tokens": 1, "hash_ids": [1]},
        {"session_id": "r", "turn": 1, "delay_s": 20, "input_tokens": 4, "output_tokens": 1, "hash_ids": [1]},
        {"session_id": "r.a", "turn": 0, "parent": {"session_id": "r", "turn": 1}, "delay_s": 5, "input_tokens": 4,
         "output_tokens": 1, "hash_ids": [1], "recorded": {"e2e_s": 24.9}},
        {"session_id": "r", "turn": 2, "delay_s": 100, "input_tokens": 4, "output_tokens": 1, "hash_ids": [1]},
    ]  # fmt: skip
    lines[0]["recorded"] = lines[1]["recorded"] = {"e2e_s": 0.1}
    made, _ = convert(write(*lines), "weka")
    entry = objects(made)[0]["requests"][2]
    assert entry["type"] == "subagent"
    assert (entry["t"], entry.get("duration_ms")) == (50.1, 24900)  # its end: 25.2 s and 24.9 s later
    back, _ = convert(made, "native")
    assert turns(back)["r.a", 0].fields["parent"] == {"session_id": "r", "turn": 1}
    assert turns(back)["r.a", 0].fields["delay_s"] == pytest.approx(5.0)


def test_an_answer_of_unknown_length_is_refused_with_its_line(write: Any, convert: Any) -> None:
    source = write(
        {"session_id": "s", "turn": 0, "input_tokens": 4, "output_tokens": 1, "hash_ids": [1]},
        {"session_id": "s", "turn": 1, "input_tokens": 4, "hash_ids": [1]},
    )
    with pytest.raises(InputError, match=r"source1.jsonl:3: output_tokens: turn 1 of session \"s\""):
        convert(source, "weka")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=trees())
def test_times_come_back_whatever_the_tree_and_what_is_read_otherwise_is_counted(
    lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    source, made, back = (tmp_path / name for name in ("source.jsonl", "made.jsonl", "back.jsonl"))
    head = {"kvbench_trace": 1, "name": "t", "block_size": 4}
    source.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    with open_workload(source) as trace, made.open("wb") as out:
        report = Conversion(trace, "weka").write(out.write)
    with open_workload(made) as trace, back.open("wb") as out:
        Conversion(trace, "native").write(out.write)
    before = {key: line.fields for key, line in turns(source).items()}
    after = {key: line.fields for key, line in turns(back).items()}
    assert before.keys() == after.keys()
    starts, read = starts_s(before), starts_s(after)
    # A reader takes a caller to have ended up to 1 s after its sub-agent began, and moves that to its end.
    slack_s = float(len({name for name, _ in before}) - 1) if report.notes else 0.0
    for key, start_s in starts.items():
        assert abs(read[key] - start_s) <= slack_s + 1e-4, key
    joins = [{(key, name) for key, line in side.items() for name in line.get("after", ())} for side in (before, after)]
    callers = [{key[0]: line["parent"] for key, line in side.items() if "parent" in line} for side in (before, after)]
    assert report.lost.get("joins", 0) == len(joins[0] - joins[1])
    assert report.notes.get("joins_seen", 0) == len(joins[1] - joins[0])
    assert report.notes.get("callers", 0) == sum(callers[0][name] != callers[1][name] for name in callers[0])
