"""Whatever a log has in place of what is expected, it is read or refused: no traceback, no record unaccounted for."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.imported import said, user

from kvbench.errors import KvbenchError
from kvbench.traces.import_report import ImportReport
from kvbench.traces.importing import open_workload, validate_workload

ODD: list[Any] = [
    None, True, 0, -1, 2.5, 1e300, 10**30, "", "x", "\ud800", "[{", "[]", "{}", "2026-01-01",
    [], [[]], [None], ["x"], {}, {"x": []}, {"role": None}, [{"type": 5}], [{"type": "text"}],
]  # fmt: skip

TEXT = {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}
BLOCKS = [
    {"role": "user", "content": [TEXT, {"type": "image", "source": {"type": "base64", "data": "aa"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "h"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [TEXT]}]},
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "s"},
    user("a"),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 4}}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}, {"type": "function", "function": {"name": "g"}}]
RESPONSE = {"choices": [{"message": said("A")}], "usage": USAGE}
SPAN = {
    "span_id": "b",
    "trace_id": "t",
    "parent_span_id": "a",
    "start_time": "2026-01-01T00:00:01Z",
    "end_time": 1767225605.5,
    "status": {"code": 1},
    "resource_attributes": {"service.name": "x"},
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "a"}, {"type": "blob"}]}],
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "name": "f"}]}]),
        "gen_ai.tool.definitions": TOOLS,
        "gen_ai.system_instructions": [{"type": "text", "content": "s"}],
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.conversation.id": "k",
    },
}
OLD_SPAN = {
    "spanId": "c",
    "traceId": "t",
    "startTimeUnixNano": "1767225602000000000",
    "attributes": [
        {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
        {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "a"}},
        {"key": "gen_ai.prompt.0.tool_calls.0.name", "value": {"stringValue": "f"}},
        {"key": "n", "value": {"arrayValue": {"values": [{"intValue": "5"}, {"kvlistValue": {"values": []}}]}}},
    ],
    "events": [{"name": "gen_ai.user.message", "attributes": {"content": "a", "tool_calls": "[]"}}],
}
RECORDS: dict[str, list[dict[str, Any]]] = {
    "openai-messages": [{"messages": CHAT, "tools": TOOLS, "id": 5, "model": "m"}, {"messages": BLOCKS}],
    "sharegpt": [
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '[{"name": "f", "arguments": {}}]'},
                {"from": "observation", "value": "r"},
            ],
            "tools": json.dumps(TOOLS),
            "system": "s",
        }
    ],
    "request-log": [
        {
            "timestamp": 1767225601,
            "session_id": "s",
            "completion_tokens": 3,
            "usage": USAGE,
            "body": {"messages": CHAT, "tools": TOOLS, "model": "m"},
        },
        {"timestamp": "2026-01-01T00:00:00Z", "body": {"system": [TEXT], "messages": BLOCKS}, "response": RESPONSE},
    ],
    "litellm": [
        {
            "id": "a",
            "trace_id": "t",
            "call_type": "completion",
            "status": "success",
            "startTime": 1.0,
            "endTime": 3.0,
            "completionStartTime": 2.0,
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "model": "m",
            "messages": CHAT,
            "response": RESPONSE,
            "metadata": {"usage_object": USAGE},
            "model_parameters": {"tools": TOOLS},
        }
    ],
    "otel": [
        {"spans": [SPAN, {**SPAN, "span_id": "a", "attributes": {"gen_ai.operation.name": "invoke_agent"}}]},
        {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [OLD_SPAN]}]}]},
    ],
    "aiperf": [
        {
            "session_id": "r",
            "turns": [
                {
                    "messages": CHAT,
                    "max_tokens": 4,
                    "delay": 5,
                    "tools": TOOLS,
                    "spawns": ["a", {"children": ["b"], "join_at": 1}],
                },
                {"messages": [user("x")], "forks": [{"child": "c", "background": True}], "extra": {"t": 1}},
            ],
            "pre_session_spawns": ["b"],
        },
        *({"session_id": name, "turns": [{"messages": [user(name)]}]} for name in "abc"),
    ],
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", RECORDS)
def test_any_value_anywhere(tmp_path: Path, name: str, strict: bool) -> None:
    """Each place of each record with an odd value, or left out."""
    path = tmp_path / "log.jsonl"
    chance = random.Random(f"{name} {strict}")
    for at in range(sum(1 for _ in places(RECORDS[name]))):
        records = copy.deepcopy(RECORDS[name])
        container, key = list(places(records))[at]
        odd = chance.choice([*ODD, ...])
        if odd is ...:
            del container[key]
        else:
            container[key] = odd
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        report = read(path, name, strict)
        if report is None:
            continue
        left_out = sum(report.dropped.values())
        if name in ("openai-messages", "sharegpt"):
            assert report.units == report.sessions + left_out, (at, odd)
        elif name != "aiperf":
            assert report.units == report.turns + left_out, (at, odd)


def read(path: Path, name: str, strict: bool) -> ImportReport | None:
    """None: refused, by an error that names the file."""
    if not strict:
        found = validate_workload(path, format=name)
        return None if found.errors else found.imported
    try:
        with open_workload(path, format=name) as opened:
            return opened.imported
    except KvbenchError as error:
        refusal = str(error)
    assert refusal.startswith(str(path))
    return None


def test_the_records_themselves_are_read_whole(tmp_path: Path) -> None:
    """Else the test above would try faults in what is not read."""
    path = tmp_path / "log.jsonl"
    turns = {"openai-messages": 4, "sharegpt": 2, "request-log": 2, "litellm": 1, "otel": 2, "aiperf": 6}
    for name, records in RECORDS.items():
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        with open_workload(path, format=name) as opened:
            assert opened.turn_count == turns[name], name
