"""One small file of each format, written from its description: converted to native lines, it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.imported import taken_for
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.sim.process import SimProcess
from kvbench.traces.formats import FORMAT_NAMES

ASKED = {"role": "user", "content": "Which test fails?"}
SAID = {"role": "assistant", "content": "test_sum fails."}
THANKED = {"role": "user", "content": "Fix it."}


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def span(number: int, messages: list[Any], start: str, end: str) -> dict[str, Any]:
    attributes = {
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 5,
    }
    ids = {"span_id": f"s{number}", "trace_id": "t", "name": "chat m"}
    return {
        **ids,
        "start_time": f"2026-01-05T10:00:{start}Z",
        "end_time": f"2026-01-05T10:00:{end}Z",
        "attributes": attributes,
    }


def claude(kind: str, number: int, message: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": kind, "uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None, "sessionId": "c",
        "timestamp": f"2026-01-05T10:00:0{number}.000Z", "isSidechain": False, "message": message,
    }  # fmt: skip


SAMPLES: dict[str, tuple[str, int, str]] = {
    "native": (
        "jsonl", 2,
        lines(
            {"kvbench_trace": 1, "name": "n"},
            {"session_id": "a", "turn": 0, "append": [ASKED], "output_tokens": 4},
            {"session_id": "a", "turn": 1, "append": [SAID, THANKED], "output_tokens": 4},
        ),
    ),
    "weka": (
        "json", 2,
        lines({"id": "w", "block_size": 64, "hash_id_scope": "local", "models": [], "requests": [
            {"t": 0.0, "type": "n", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 1.0, "think_time": 0.0},
            {"t": 3.0, "type": "n", "in": 200, "out": 9, "hash_ids": [1, 2, 3], "api_time": 1.0, "think_time": 2.0},
        ]}),
    ),
    "mooncake": (
        "jsonl", 2,
        lines(*({"timestamp": at, "input_length": 600, "output_length": 5, "hash_ids": [0, at]} for at in (1, 2))),
    ),
    "bailian": (
        "jsonl", 2,
        lines(
            {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 5,
             "type": "text", "turn": 1, "hash_ids": [1, 2]},
            {"chat_id": 2, "parent_chat_id": 1, "timestamp": 9.5, "input_length": 33, "output_length": 5,
             "type": "text", "turn": 2, "hash_ids": [1, 3, 4]},
        ),
    ),
    "aiperf": (
        "jsonl", 3,
        lines(
            {"session_id": "root", "turns": [
                {"messages": [ASKED], "max_tokens": 4, "spawns": ["a"]},
                {"messages": [THANKED], "max_tokens": 4, "delay": 5},
            ]},
            {"session_id": "a", "turns": [{"messages": [ASKED], "max_tokens": 4}]},
        ),
    ),
    "otel": (
        "json", 2,
        lines({"spans": [span(1, [ASKED], "00", "01"), span(2, [ASKED, SAID, THANKED], "04", "05")]}),
    ),
    "openai-messages": ("jsonl", 2, lines({"messages": [ASKED, SAID, THANKED, SAID]})),
    "sharegpt": (
        "json", 1, json.dumps([{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}]),
    ),
    "request-log": (
        "jsonl", 2,
        lines(
            {"timestamp": 5.0, "body": {"messages": [ASKED]}, "completion_tokens": 4},
            {"timestamp": 9.0, "body": {"messages": [ASKED, SAID, THANKED]}, "completion_tokens": 4},
        ),
    ),
    "litellm": (
        "jsonl", 2,
        lines(*(
            {"id": f"l{at}", "trace_id": "t", "startTime": 10.0 + at, "endTime": 11.0 + at, "model": "m",
             "prompt_tokens": 9, "completion_tokens": 4, "messages": messages}
            for at, messages in ((0, [ASKED]), (5, [ASKED, SAID, THANKED]))
        )),
    ),
    "claude-code": (
        "jsonl", 2,
        lines(*(
            claude("user", at, ASKED) if at % 2 == 0 else claude("assistant", at, {
                "id": f"m{at}", "model": "m", "role": "assistant", "content": [{"type": "text", "text": "Looking."}],
                "usage": {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 0},
            }) for at in range(4)
        )),
    ),
    "azure": ("csv", 1, lines("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,480,10")),
    "splitwise": ("csv", 1, lines("arrived_at,num_prefill_tokens,num_decode_tokens", "0.0,374,44")),
    "burstgpt": (
        "csv", 1,
        lines("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,472,18,490,Chat log"),
    ),
}  # fmt: skip
"""By format: the file's ending, how many requests it holds, its text."""


def documented() -> dict[str, tuple[str, int, str]]:
    """The examples in the documents on formats; each section has the file first, then its report."""
    found = {}
    for path in (Path(__file__).parents[2] / "docs").glob("formats-*.md"):
        for section in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
            (kind, text), (_, report) = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[:2]
            turns = re.search(r"(\d+) turns?$", report, re.MULTILINE)
            assert turns is not None
            found[section.partition("\n")[0]] = (kind, int(turns[1]), text)
    return found


@pytest.fixture(scope="module")
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("tiny") as process:
        yield process


def call(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code in (0, 3), (done.exit_code, done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_file_of_each_format_becomes_native_lines_that_run(
    name: str, sim: SimProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SAMPLES | documented()
    if name not in found:
        pytest.skip("no sample of it here or in the documents")
    monkeypatch.chdir(tmp_path)
    suffix, turns, text = found[name]
    Path(f"source.{suffix}").write_text(text)
    assert taken_for(Path(f"source.{suffix}")) == name
    report = call("trace", "convert", f"source.{suffix}", "made.jsonl")
    assert report["export"]["turns"] == turns
    assert (report["import"] is None) == (name == "native")
    assert call("trace", "validate", "made.jsonl")["valid"]
    summary = call("run", "made.jsonl", "--endpoint", sim.url, "--model", "tiny", "--time-scale", 0)
    assert (summary["requests"]["ok"], summary["requests"]["failed"]) == (turns, 0)
