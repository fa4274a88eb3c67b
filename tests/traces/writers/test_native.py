"""Any source as native lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.public_traces import data

from kvbench.traces.bundled import resolve_trace
from kvbench.traces.importing import validate_workload


def test_the_bundled_trace_stays_as_it_is_byte_by_byte(convert: Any) -> None:
    source = resolve_trace("agent-trace.jsonl")
    made, report = convert(source, "native")
    assert made.read_bytes() == source.read_bytes()
    assert (report.units, report.sessions, report.turns) == (218, 18, 215)
    assert report.notes == report.lost == {}


@pytest.mark.parametrize("name", ["weka/trace_0274.json", "mooncake/conversation_first400.jsonl"])
def test_a_foreign_trace_becomes_a_native_one_that_stays(name: str, convert: Any) -> None:
    first, report = convert(data(*name.split("/")), "native")
    again, _ = convert(first, "native")
    assert again.read_bytes() == first.read_bytes()
    found = validate_workload(first)
    assert (found.errors, found.imported) == ((), None)
    assert (found.sessions, found.turns) == (report.sessions, report.turns)
    assert report.units == len(first.read_text().splitlines())


def test_what_a_reader_puts_right_is_written_right(convert: Any, tmp_path: Path) -> None:
    source = tmp_path / "loose.jsonl"
    source.write_bytes(
        b'\xef\xbb\xbf{"kvbench_trace":1,"mine":[1]}\r\n\r\n'
        b'{"session_id":"b","turn":0,"start_s":2,"append":[{"role":"user","content":"\\ud83d"}],"model":null}\r\n'
        b'{"session_id":"a","turn":0,"append":[{"role":"user","content":"\xc3\xa9"}],"my":{"x":1},'
        b'"recorded":{"e2e_s":1.5,"also":2}}\r\n'
        b'{"session_id":"b","turn":1,"delay_s":1,"append":[{"role":"user","content":"x"}]}'
    )
    made, report = convert(source, "native")
    assert [json.loads(line) for line in made.read_text().splitlines()] == [
        {"kvbench_trace": 1, "mine": [1]},
        {"session_id": "b", "turn": 0, "start_s": 2.0, "append": [{"role": "user", "content": "\ufffd"}]},
        {"session_id": "b", "turn": 1, "delay_s": 1.0, "append": [{"role": "user", "content": "x"}]},
        {
            "session_id": "a",
            "turn": 0,
            "append": [{"role": "user", "content": "é"}],
            "recorded": {"e2e_s": 1.5, "also": 2},
            "my": {"x": 1},
        },
    ]
    assert (report.input_tokens, report.output_tokens) == (None, None)
