"""Logs of request bodies: sessions are found by content, times become starts and pauses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.imported import imported, lines, problems, said, taken_for, user
from tests.public_traces import data

from kvbench.errors import InputError
from kvbench.traces.importing import open_workload

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def record(timestamp: Any, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "body": {"model": "m", "messages": list(messages), "max_tokens": 99}, **fields}


def test_a_log_of_two_conversations(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "log.jsonl",
        record("2026-03-01T10:00:00Z", SYSTEM, user("a"), completion_tokens=7),
        record("2026-03-01T10:00:02.500Z", SYSTEM, user("x"), completion_tokens=8),
        record("2026-03-01T11:00:10+01:00", SYSTEM, user("a"), said("A"), user("b"), completion_tokens=0),
    )
    got = imported(path)
    assert got.sent("request1") == [[SYSTEM, user("a")], [SYSTEM, user("a"), said("A"), user("b")]]
    first, second = got.sessions["request1"].turns
    assert (first.start_s, first.output_tokens, first.model, first.line) == (0.0, 7, "m", 1)
    assert (second.delay_s, second.output_tokens, second.line) == (10.0, 1, 3), "11:00:10+01:00 is 10:00:10Z"
    assert got.sessions["request2"].turns[0].start_s == 2.5
    report = got.report
    assert (report.format, report.unit, report.units, report.sessions, report.turns) == (
        "request-log",
        "record",
        3,
        2,
        3,
    )
    assert report.notes == {"linked": 1, "pauses_with_answer": 1, "zero_output": 1}
    assert report.facts["fields of the bodies that are not sent again"] == "max_tokens"
    assert report.facts["timestamps"] == "taken as when a request was sent; text (UTC where it names no offset)"


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        ("2026-03-01T10:00:00Z", "2026-03-01T10:00:10Z", {}),
        (1_700_000_000.5, 1_700_000_010.5, {}),
        (1_700_000_000_500, 1_700_000_010_500, {}),
        (3, 13, {"usage": {"prompt_tokens": 9, "completion_tokens": 7}}),
        (3, 13, {"completion_tokens": 7}),
    ],
)
def test_a_body_may_stand_beside_the_logs_own_fields(
    tmp_path: Path, first: Any, second: Any, more: dict[str, Any]
) -> None:
    def flat(timestamp: Any, *messages: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": timestamp, "model": "m", "messages": list(messages), "temperature": 0, "id": "c1", **more}

    got = imported(lines(tmp_path / "log.jsonl", flat(first, user("a")), flat(second, user("a"), said("A"), user("b"))))
    assert got.report.format == "request-log"
    assert got.sent("request1") == [[user("a")], [user("a"), said("A"), user("b")]]
    one, two = got.sessions["request1"].turns
    assert (one.start_s, two.delay_s, one.model) == (0.0, 10.0, "m")
    assert one.output_tokens == (7 if more else None)
    assert got.report.facts["fields of the bodies that are not sent again"] == "id, temperature"


@pytest.mark.parametrize("field", ["input_length", "output_length", "hash_ids", "delay", "message_mode"])
def test_times_from_a_traces_start_are_mooncakes(tmp_path: Path, field: str) -> None:
    row = {"timestamp": 9000, "messages": [user("a")]}
    assert taken_for(lines(tmp_path / "rows.jsonl", row)) == "mooncake"
    assert taken_for(lines(tmp_path / "rows.jsonl", {**row, "timestamp": 1e12, field: None})) == "mooncake"


def test_answers_tell_apart_who_goes_on(tmp_path: Path) -> None:
    def answered(text: str) -> dict[str, Any]:
        usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
        return {"choices": [{"index": 0, "message": said(text)}], "usage": usage}

    path = lines(
        tmp_path / "log.jsonl",
        record(1.0, user("a"), response=answered("one")),
        record(2.0, user("a"), response=answered("two")),
        record(3.0, user("a"), said("one"), user("b")),
    )
    got = imported(path)
    assert [turn.line for turn in got.sessions["request1"].turns] == [1, 3]
    turn = got.sessions["request1"].turns[0]
    assert (turn.input_tokens, turn.output_tokens) == (20, 3)
    assert turn.recorded is not None
    assert (turn.recorded.cached_tokens, turn.recorded.e2e_s) == (16, None)


def test_anthropics_bodies(tmp_path: Path) -> None:
    body = {
        "model": "claude",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    }
    answer = [{"type": "text", "text": "Look."}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]
    usage = {"input_tokens": 4, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 9}
    again = {
        **body,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]},
        ],
    }
    path = lines(
        tmp_path / "log.jsonl",
        {"timestamp": 1, "body": body, "response": {"role": "assistant", "content": answer, "usage": usage}},
        {"timestamp": 5, "body": json.dumps(again)},
    )
    got = imported(path)
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert got.sessions["request1"].turns[1].append == (
        {"role": "assistant", "content": "Look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
    ), "a cache mark that moved on does not make it another conversation"
    first = got.sessions["request1"].turns[0]
    assert first.tools == (
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
    )
    assert (first.input_tokens, first.output_tokens) == (124, 9), "Anthropic's input_tokens leaves cached ones out"
    assert first.recorded is not None
    assert (first.recorded.cached_tokens, first.recorded.usage) == (100, usage)


def test_what_is_no_chat_is_left_out_with_its_line(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "log.jsonl", record(1, user("a")), {"timestamp": 2, "body": {"input": "text", "model": "e"}}
    )
    report = imported(path).report
    assert (report.units, report.turns, report.dropped) == (2, 1, {"no_messages": 1})
    assert [(each.line, each.reason) for each in report.dropped_lines] == [
        (2, "a body without messages; it has input, model")
    ]
    assert "left out, records whose body holds no messages, so no chat request: 1" in report.sentences()
    lines(path, {"timestamp": 2, "body": {"input": "text"}})
    with pytest.raises(InputError, match="left out, records whose body holds no messages"):
        open_workload(path)


def test_usage_that_cannot_be_is_not_believed(tmp_path: Path) -> None:
    def reported(at: int, **usage: Any) -> dict[str, Any]:
        return record(at, user(str(at)), usage=usage)

    cached = {"cached_tokens": 30}
    path = lines(
        tmp_path / "log.jsonl",
        reported(1, prompt_tokens=20, completion_tokens=5, prompt_tokens_details=cached),
        reported(2, prompt_tokens=0, completion_tokens=0),
        reported(3, prompt_tokens=20, completion_tokens=-1),
        reported(4, prompt_tokens=20, completion_tokens=5, prompt_tokens_details=None),
    )
    got = imported(path)
    turns = [got.sessions[f"request{number}"].turns[0] for number in (1, 2, 3, 4)]
    assert [(turn.input_tokens, turn.output_tokens) for turn in turns] == [(None, 5), (None, None), (20, None), (20, 5)]
    assert [turn.recorded.cached_tokens for turn in turns if turn.recorded] == [None] * 4
    assert got.report.notes == {
        "usage_cached_above_input": 1,
        "usage_placeholder": 1,
        "usage_unreadable": 1,
        "no_output_length": 2,
    }


GOOD = json.dumps(record(1, user("a")))


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ({"timestamp": "soon", "body": {"messages": [user("a")]}}, "timestamp", '"soon" is no time'),
        ({"timestamp": 2, "body": {"messages": "a"}}, "body.messages", "expected an array of messages"),
        ({"timestamp": 2, "body": {"messages": [user("a"), {"content": "b"}]}}, "body.messages[1]", "a message is"),
        (
            {"timestamp": 2, "body": {"messages": [{"role": "user", "content": 5}]}},
            "body.messages[0].content",
            "expected",
        ),
        (
            {"timestamp": 2, "body": {"messages": [user("a")], "tools": ["f"]}},
            "body.tools",
            "expected an array of objects",
        ),
        ({"timestamp": 2, "body": {"messages": [user("a")], "model": 4}}, "body.model", "expected a model's name"),
        ({"timestamp": 2, "body": "{"}, "body", "text that is no JSON"),
        ({"timestamp": 2, "body": []}, "body", "expected an object"),
        (
            {"timestamp": 2, "body": {"messages": [user("a")]}, "completion_tokens": -1},
            "completion_tokens",
            "expected int",
        ),
        ('{"timestamp": NaN, "body": {}}', None, "NaN is no JSON number"),
        ('{"timestamp": 2, "timestamp": 3, "body": {}}', "timestamp", "given twice"),
        ('{"timestamp": 2, "body": {"messages": [{"role": "user", "n": ' + "9" * 5000 + "}]}}", None, "out of range"),
        ('{"timestamp": 2, "body": {"messages": ' + "[" * 5000, None, "nested too deeply"),
        ('{"timestamp": 2, "body": {"mess', None, "ends inside its JSON"),
        ("[1]", None, "expected a JSON object"),
        ({"timestamp": 1e10, "body": {"messages": [user("b")]}}, None, "more than 31 years after"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, line: Any, field: str | None, message: str) -> None:
    path = lines(tmp_path / "log.jsonl", GOOD, line)
    ((number, where, what),) = problems(path)
    assert (number, where) == (2, field)
    assert message in what
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_hostile_names_and_text_are_data(tmp_path: Path) -> None:
    text = '{"timestamp": 1, "session_id": "../../x", "body": {"messages": [{"role": "user", "content": "\\ud83d!"}]}}'
    got = imported(lines(tmp_path / "log.jsonl", text))
    assert got.sent("../../x") == [[user("\ufffd!")]]
    assert got.report.notes["surrogates"] == 1


CASSETTES = {
    "test_deepseek_deferred_capability_with_thinking": [[563, 875, 976]],
    "test_mistral_history_uses_prompt_cache": [[253, 268]],
    "test_openai_chat_prompt_cache_e2e": [[4020], [4020]],
    "test_openrouter_usage": [[17], [17]],
}
"""Input tokens of each session's requests, as the recorded answers report them."""


@pytest.mark.parametrize("name", CASSETTES)
def test_recorded_calls_to_public_apis(tmp_path: Path, name: str) -> None:
    calls = yaml.safe_load(data("cassettes", f"{name}.yaml").read_text())["interactions"]
    path = lines(
        tmp_path / "log.jsonl",
        *(
            {
                "timestamp": call["response"]["parsed_body"]["created"],
                "body": call["request"]["parsed_body"],
                "response": call["response"]["parsed_body"],
            }
            for call in calls
        ),
    )
    got = imported(path)
    assert [[turn.input_tokens for turn in session.turns] for session in got.sessions.values()] == CASSETTES[name]
    sent = [prompt for session in got.sessions for prompt in got.sent(session)]
    assert [len(prompt) for prompt in sent] == [len(call["request"]["parsed_body"]["messages"]) for call in calls]
