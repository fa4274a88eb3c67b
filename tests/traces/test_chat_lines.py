"""Whole conversations: each answer was a request that sent all before it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.imported import imported, lines, problems, said, user

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}


def test_the_kth_request_sends_what_stands_before_the_kth_answer(tmp_path: Path) -> None:
    messages = [SYSTEM, user("a"), said("A"), user("b"), CALL, RESULT, said("B")]
    got = imported(lines(tmp_path / "o.jsonl", {"messages": messages, "tools": [TOOL]}, {"messages": [user("x")]}))
    assert got.sent("conversation1") == [messages[:2], messages[:4], messages[:6]]
    assert got.sent("conversation2") == [[user("x")]]
    turns = got.sessions["conversation1"].turns
    assert [turn.tools for turn in turns] == [(TOOL,), None, None]
    assert [(turn.start_s, turn.delay_s, turn.output_tokens) for turn in turns] == [
        (0.0, 0.0, None),
        (None, 0.0, None),
        (None, 0.0, None),
    ]
    report = got.report
    assert (report.format, report.units, report.sessions, report.turns) == ("openai-messages", 2, 2, 4)
    assert report.notes == {"answer_lengths": 3, "unanswered": 1}


@pytest.mark.parametrize(
    ("messages", "prompts", "notes"),
    [
        ([user("a"), said("A"), said("AA"), user("b"), said("B")], [1, 4], {"answer_lengths": 2, "answer_in_parts": 1}),
        ([SYSTEM, said("Hi!"), user("a"), said("A")], [3], {"answer_lengths": 1, "opening": 1}),
        ([user("a"), SYSTEM, said("A")], [2], {"answer_lengths": 1}),
        ([SYSTEM, CALL, RESULT, said("A")], [1, 3], {"answer_lengths": 2}),
    ],
)
def test_odd_orders(tmp_path: Path, messages: list[dict[str, Any]], prompts: list[int], notes: dict[str, int]) -> None:
    got = imported(lines(tmp_path / "o.jsonl", {"messages": messages}))
    assert got.sent("conversation1") == [messages[:length] for length in prompts]
    assert got.report.notes == notes


def test_a_conversation_that_asks_nothing_is_left_out(tmp_path: Path) -> None:
    path = lines(tmp_path / "o.jsonl", {"messages": [SYSTEM]}, {"messages": []}, {"messages": [user("a")]})
    report = imported(path).report
    assert (report.units, report.sessions, report.dropped) == (3, 1, {"no_request": 2})
    assert [each.line for each in report.dropped_lines] == [1, 2]


def sharegpt(*said: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": what} for who, what in said], **fields}


def test_sharegpt(tmp_path: Path) -> None:
    one = sharegpt(
        ("system", "Be brief."),
        ("human", "a"),
        ("gpt", "A"),
        ("human", "b"),
        ("function_call", '{"name": "f", "arguments": {"x": 1}}'),
        ("observation", "42"),
        ("gpt", "B"),
        id="s1",
        tools=json.dumps([TOOL]),
    )
    two = {**sharegpt(("user", "x"), ("assistant", "X"), ("tool", "seen"), ("chatgpt", "Y")), "system": "Be kind."}
    path = tmp_path / "s.json"
    path.write_text(json.dumps([one, two], indent=1))
    got = imported(path)
    called = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]
    history = [
        SYSTEM,
        user("a"),
        said("A"),
        user("b"),
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    assert got.sent("s1") == [history[:2], history[:4], history]
    kind = {"role": "system", "content": "Be kind."}
    assert got.sent("conversation2") == [[kind, user("x")], [kind, user("x"), said("X"), user("seen")]]
    assert got.sessions["s1"].turns[0].tools == (TOOL,)
    assert (got.report.format, got.report.units) == ("sharegpt", 2)
    assert got.report.notes == {"answer_lengths": 5, "call_ids": 1, "tool_as_user": 1}


def test_unknown_roles_are_named(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        sharegpt(("human", "a"), ("gpt", "A")),
        sharegpt(("human", "a"), ("narrator", "Meanwhile")),
        sharegpt(("stage", "dark"), ("gpt", "A")),
    )
    report = imported(path).report
    assert (report.units, report.sessions, report.dropped) == (3, 1, {"unknown_role": 2})
    assert report.facts["unknown roles"] == '"narrator" (1), "stage" (1)'
    assert [each.line for each in report.dropped_lines] == [2, 3]
    assert report.dropped_lines[0].reason.startswith('conversations[1].from: unknown role "narrator"')


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        (sharegpt(("human", None)), "conversations[0].value", "expected text"),
        ({"conversations": [{"value": "a"}]}, "conversations[0].from", "missing"),
        ({"conversations": ["a"]}, "conversations[0]", "expected an object"),
        ({"conversations": "a"}, "conversations", "expected an array"),
        (sharegpt(("function_call", "f(1)")), "conversations[0].value", "text that is no JSON"),
        (sharegpt(("human", "a"), tools="f"), "tools", "text that is no JSON"),
        ('{"conversations": [', None, "ends inside its JSON"),
    ],
)
def test_bad_sharegpt_is_named(tmp_path: Path, line: Any, field: str | None, message: str) -> None:
    path = lines(tmp_path / "s.jsonl", sharegpt(("human", "a")), line)
    ((number, where, what),) = problems(path)
    assert (number, where) == (2, field)
    assert message in what


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ({"messages": user("a")}, "messages", "expected an array"),
        ({"messages": [user("a")], "tools": 5}, "tools", "expected an array"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0]", "a part is"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": {}}]}, "messages[0].tool_calls", "expected"),
    ],
)
def test_bad_messages_are_named(tmp_path: Path, line: Any, field: str, message: str) -> None:
    path = lines(tmp_path / "o.jsonl", {"messages": [user("a")]}, line)
    ((number, where, what),) = problems(path)
    assert (number, where) == (2, field)
    assert message in what
