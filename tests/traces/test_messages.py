"""Messages of other APIs in the one shape that is sent, and times."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.traces.test_conversation import user

from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.messages import chat_messages, chat_tools, digests
from kvbench.traces.lines import LineError


def test_anthropics_content_blocks() -> None:
    notes = Counter[str]()
    made = chat_messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "Fix it.", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look first.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "ls", "input": {"dir": "."}},
                    {"type": "tool_use", "id": "t2", "name": "pwd", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.py"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "/src", "is_error": True},
                    {"type": "text", "text": "Go on."},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
                ],
            },
        ],
        notes,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    )
    call_1 = {"id": "t1", "type": "function", "function": {"name": "ls", "arguments": '{"dir":"."}'}}
    call_2 = {"id": "t2", "type": "function", "function": {"name": "pwd", "arguments": "{}"}}
    assert made == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Look first.",
            "tool_calls": [call_1, call_2],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a.py"},
        {"role": "tool", "tool_call_id": "t2", "content": "/src"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Go on."},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
            ],
        },
    ]
    assert {code: n for code, n in notes.items() if n} == {"cache_marks": 2, "thinking_hidden": 1, "tool_errors": 1}


def test_tool_schemas() -> None:
    notes = Counter[str]()
    parameters = {"type": "object"}
    wanted = [{"type": "function", "function": {"name": "ls", "parameters": parameters}}]
    assert chat_tools([{"name": "ls", "input_schema": parameters}], notes) == wanted
    assert chat_tools(wanted, notes) == wanted
    assert chat_tools([], notes) is None


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ({"role": "user"}, "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "hello"}], "messages[0]"),
        ([{"role": "user", "content": [{"type": "tool_result"}, "x"]}], "messages[0].content[1]"),
    ],
)
def test_what_is_no_message_is_named(messages: Any, field: str) -> None:
    with pytest.raises(LineError) as caught:
        chat_messages(messages, Counter())
    assert caught.value.field == field


def test_equal_messages_have_equal_digests_whatever_their_spelling() -> None:
    parts = {"content": [{"text": "a", "type": "text"}], "role": "user", "name": None}
    assert digests([parts, user("b")]) == digests([user("a"), user("b")])
    assert digests([user("a"), user("b")]) != digests([user("ab")])
    assert digests([user("a"), user("b")])[1] != digests([user("b")])[0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1.5, 1.5),
        (1_700_000_000, 1.7e9),
        (1_700_000_000_500, 1_700_000_000.5),
        (1_700_000_000_500_000, 1_700_000_000.5),
        ("1700000000500000000", 1_700_000_000.5),
        ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T01:01:00.2500000+01:00", 60.25),
        ("1970-01-01 00:01:00.123456789Z", 60.123456),
        (None, None),
    ],
)
def test_times(value: Any, seconds: float | None) -> None:
    assert time_s(value, "t") == seconds


@pytest.mark.parametrize("value", ["yesterday", True, -1, [], "2026-13-01", float("inf")])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(LineError):
        time_s(value, "t")
