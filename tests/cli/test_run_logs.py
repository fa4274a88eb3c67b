"""A log of each format, as its tool writes it, replayed on the simulated endpoint over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.imported import lines, said, user

from kvbench.sim.process import SimProcess

FAST = {
    "frontend_s": 0,
    "prefill_base_s": 0,
    "prefill_s_per_token": 0,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.0002,
    "decode_s_per_request": 0,
}
SYSTEM = {"role": "system", "content": "You are a coding agent. " * 40}
FIRST = [SYSTEM, user("Fix the test.")]
CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
SECOND = [
    *FIRST,
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


def chat(number: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.tool.definitions": json.dumps(TOOLS),
        "gen_ai.usage.output_tokens": 5,
    }
    times = {"start_time": f"2026-01-01T00:00:0{number}Z", "end_time": f"2026-01-01T00:00:0{number}.5Z"}
    return {"trace_id": "t", "span_id": str(number), "attributes": attributes, **times}


def payload(number: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
    times = {"startTime": 10.0 * number, "endTime": 10.0 * number + 1}
    return {"id": f"l{number}", "messages": messages, "completion_tokens": 5, "prompt_tokens": 99, **times}


def body(number: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"timestamp": number, "completion_tokens": 5, "body": {"messages": messages, "tools": TOOLS}}


def sharegpt(*said: str) -> dict[str, Any]:
    roles = ("system", "human", "gpt", "human")
    return {"conversations": [{"from": role, "value": text} for role, text in zip(roles, said, strict=True)]}


LOGS: dict[str, list[dict[str, Any]]] = {
    "openai-messages": [{"messages": [*SECOND, said("Done.")], "tools": TOOLS}],
    "sharegpt": [sharegpt(SYSTEM["content"], "Fix the test.", "Done.", "And the other?")],
    "request-log": [body(1, FIRST), body(2, SECOND)],
    "litellm": [payload(1, FIRST), payload(2, SECOND)],
    "otel": [chat(1, FIRST), chat(2, SECOND)],
    "aiperf": [
        {"session_id": "a", "turns": [{"messages": FIRST, "max_tokens": 5, "forks": ["b"]}]},
        {"session_id": "b", "turns": [{"messages": [user("Go on.")], "max_tokens": 5}]},
    ],
}
"""Two requests each, of which the second begins with all of the first."""


@pytest.fixture(scope="module")
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("vllm-small", settings=FAST) as process:
        yield process


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_each_format_runs(kvbench: Kvbench, sim: SimProcess, tmp_path: Path, name: str) -> None:
    path = lines(tmp_path / "log.jsonl", *LOGS[name])
    done = kvbench("run", path, "--endpoint", sim.url, "--time-scale", "0", "--json")
    assert done.returncode in (0, 3), done.stderr
    assert f"{name}: " in done.stderr
    got = json.loads(done.stdout)
    assert got["requests"] == {"ok": 2, "failed": 0, "skipped": 0, "retried": 0}
    rows = [json.loads(line) for line in (tmp_path / got["run"] / "records.jsonl").read_text().splitlines()]
    first, second = (row["usage"] for row in sorted(rows, key=lambda row: int(row["usage"]["input_tokens"])))
    assert first["cached_tokens"] == 0
    block = 32
    shared = first["input_tokens"] - 8  # The template opens an answer behind the last message.
    assert second["cached_tokens"] >= shared // block * block - block > 0, "the second goes on from the first"
