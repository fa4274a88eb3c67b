"""Request bodies, and what an answer's events mean, for each dialect."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.endpoints.dialects import openai, vllm
from kvbench.endpoints.dialects.openai import Answer
from kvbench.usage import normalise

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_chat_body_openai() -> None:
    body = openai.build_body(model="m", api="chat", stream=True, messages=MESSAGES, tools=TOOLS, output_tokens=7)
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "tools": TOOLS,
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat_body_vllm_fixes_the_length_and_salts_by_a_field() -> None:
    body = vllm.build_body(model="m", api="chat", stream=False, messages=MESSAGES, output_tokens=7, salt="s1")
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
        "stream": False,
        "cache_salt": "s1",
    }


@pytest.mark.parametrize("dialect", [openai, vllm])
def test_free_output_sends_no_length(dialect: Any) -> None:
    body = dialect.build_body(model="m", api="chat", stream=False, messages=MESSAGES, output_tokens=7, free_output=True)
    assert body == {"model": "m", "messages": MESSAGES, "stream": False}


def test_salt_without_a_field_comes_first_and_leaves_the_trace_alone() -> None:
    body = openai.build_body(model="m", api="chat", stream=False, messages=MESSAGES, salt="s1")
    assert body["messages"][0] == {"role": "system", "content": "[s1] be brief"}
    assert body["messages"][1] is MESSAGES[1]
    assert MESSAGES[0]["content"] == "be brief"
    parts = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert openai.salted_messages(parts, "s1")[0]["content"] == [
        {"type": "text", "text": "[s1]"},
        {"type": "text", "text": "x"},
    ]
    assert openai.salted_messages([{"role": "assistant", "content": None}], "s")[0]["content"] == "[s] "


def test_a_salted_text_begins_with_the_salt_and_no_id_is_guessed_for_token_ids() -> None:
    assert openai.salted_prompt("text", "a") == "[a] text"
    with pytest.raises(ValueError, match="carry its salt already"):
        openai.salted_prompt([5, 6], "a")


def test_completions_body_takes_token_ids() -> None:
    body = vllm.build_body(model="m", api="completions", stream=False, prompt=(1, 2, 3), output_tokens=1)
    assert body["prompt"] == [1, 2, 3]
    assert "messages" not in body


def test_tokenize_bodies() -> None:
    assert vllm.tokenize_body(model="m", messages=MESSAGES, prompt=None, tools=TOOLS) == {
        "model": "m",
        "messages": MESSAGES,
        "add_generation_prompt": True,
        "tools": TOOLS,
    }
    assert vllm.tokenize_body(model=None, messages=None, prompt="hi") == {"prompt": "hi"}


def read(*events: Any) -> Answer:
    answer = Answer()
    for index, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        answer.read_event(index, data)
    return answer


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def test_what_is_a_generated_chunk() -> None:
    answer = read(
        delta(role="assistant", content=""),
        delta(role="assistant", content=None),
        delta(),
        delta(content=""),
        {"choices": [], "usage": None},
        delta(reasoning="", reasoning_content=""),
        delta(reasoning="th"),
        delta(reasoning_content="ink"),
        delta(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        delta(content="a"),
        delta(finish="stop"),
        {"choices": [], "usage": {"prompt_tokens": 3}},
        b"[DONE]",
    )
    assert answer.chunks == [6, 7, 9, 10]
    assert answer.first_output_token == 9
    assert (answer.text, answer.reasoning) == ("a", "think")
    assert answer.tool_calls == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]
    assert (answer.finish_reason, answer.usage_raw, answer.done) == ("stop", {"prompt_tokens": 3}, True)
    assert (answer.response_id, answer.response_model) == ("r1", "m1")
    assert answer.error is None
    assert answer.invalid is None


def test_one_text_in_both_reasoning_fields_counts_once() -> None:
    assert read(delta(reasoning="x", reasoning_content="x")).reasoning == "x"


def test_reasoning_and_content_in_one_event() -> None:
    answer = read(delta(role="assistant"), delta(reasoning="why", content="a"), delta(content="b"))
    assert (answer.reasoning, answer.text, answer.chunks, answer.first_output_token) == ("why", "ab", [1, 2], 1)


def test_id_and_model_come_from_the_first_event_though_it_has_text() -> None:
    answer = read(delta(content="a"), delta(content="b"))
    assert (answer.response_id, answer.response_model, answer.chunks) == ("r1", "m1", [0, 1])


def test_parallel_tool_calls_are_joined_by_index() -> None:
    answer = read(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": "["}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": "]"}}]),
    )
    assert answer.tool_calls is not None
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in answer.tool_calls] == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]


def test_the_last_usage_that_is_not_null_wins_wherever_it_is() -> None:
    answer = read(
        delta(content="a") | {"usage": {"prompt_tokens": 1}},
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 2, "cached_tokens": 1}}]},
        {"choices": [], "usage": None},
    )
    assert answer.usage_raw == {"prompt_tokens": 2, "cached_tokens": 1}


def test_completions_stream() -> None:
    answer = read(
        {"choices": [{"index": 0, "text": ""}]},
        {"choices": [{"index": 0, "text": "ab", "finish_reason": "length"}]},
    )
    assert (answer.chunks, answer.text, answer.finish_reason) == ([1], "ab", "length")
    assert answer.complete


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "engine died", "code": 500}},
        {"error": "engine died"},
        {"object": "error", "message": "engine died"},
    ],
)
def test_error_objects(event: Any) -> None:
    answer = read(delta(content="a"), event, b"[DONE]")
    assert answer.error is not None
    assert "engine died" in answer.error
    assert answer.text == "a"


def test_named_error_events() -> None:
    answer = Answer()
    answer.read_event(0, b"out of memory", is_error=True)
    assert answer.error == "out of memory"
    answer = Answer()
    answer.read_event(0, b'{"type": "overloaded"}', is_error=True)
    assert answer.error is not None


@pytest.mark.parametrize("reason", ["abort", "insufficient_system_resource", "error"])
def test_a_finish_reason_that_is_a_failure(reason: str) -> None:
    answer = read(delta(content="a", finish=reason))
    assert answer.error is not None
    assert reason in answer.error


@pytest.mark.parametrize("data", [b"{", b"nonsense", b"[1]", b"[" * 100_000, b'{"a": \xff}'])
def test_invalid_events_are_named_and_do_not_raise(data: bytes) -> None:
    answer = read(delta(content="a"), data)
    assert answer.invalid is not None
    assert "event 2" in answer.invalid


@pytest.mark.parametrize(
    "event",
    [
        {"choices": None},
        {"choices": "x"},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 5, "tool_calls": [None, {"function": 3}]}}]},
        {"choices": [{"delta": {"tool_calls": {"index": 0}}}], "usage": [1], "id": 5},
    ],
)
def test_odd_shapes_are_no_token_and_do_not_raise(event: Any) -> None:
    answer = read(event)
    assert answer.chunks == []
    assert answer.text is None
    assert answer.usage_raw is None


def test_whole_answer() -> None:
    answer = Answer()
    answer.read_whole(
        {
            "id": "r",
            "model": "m",
            "choices": [
                {
                    "message": {
                        "content": "hi",
                        "reasoning": "why",
                        "tool_calls": [
                            {"id": "a", "function": {"name": "f", "arguments": "{}"}},
                            {"id": "b", "function": {"name": "g", "arguments": "{}"}},
                        ],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2},
        }
    )
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("hi", "why", "tool_calls")
    assert [c["id"] for c in answer.tool_calls or []] == ["a", "b"]
    assert answer.usage_raw == {"prompt_tokens": 4, "completion_tokens": 2}
    bad = Answer()
    bad.read_whole({"hello": 1})
    assert bad.invalid is not None


DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")


@needs_data
@pytest.mark.parametrize(
    ("name", "usage", "text_ends", "reasoning_starts", "tool"),
    [
        ("deepseek-reasoning", (18, 0, 219, 205), ".", "We need", None),
        ("deepseek-tool-call", (339, 320, 83, 39), None, None, "weather"),
        ("groq-tool-call", (210, None, 15, None), None, None, "weather"),
        ("moonshotai-stream", (9, None, 12, 7), "Hello!", "Thinking aloud. ", None),
        ("xai-text", (12, 11, 291, 290), "Hello", "First, the user said", None),
        ("xai-tool-call", (307, 306, 253, 227), None, "First", "weather"),
    ],
)
def test_recorded_streams(
    name: str, usage: tuple[int | None, ...], text_ends: str | None, reasoning_starts: str | None, tool: str | None
) -> None:
    lines = (Path(DATA or "") / "sse" / f"{name}.chunks.txt").read_bytes().splitlines()
    answer = read(*[line for line in lines if line.strip()])
    counts = normalise(answer.usage_raw)
    assert (counts.input_tokens, counts.cached_tokens, counts.output_tokens, counts.reasoning_tokens) == usage
    assert counts.problem is None
    assert answer.error is None
    assert answer.invalid is None
    assert answer.complete
    assert text_ends is None or (answer.text or "").endswith(text_ends)
    assert reasoning_starts is None or (answer.reasoning or "").startswith(reasoning_starts)
    if tool is not None:
        assert answer.tool_calls is not None
        assert answer.tool_calls[0]["function"]["name"] == tool
        json.loads(answer.tool_calls[0]["function"]["arguments"])


_TEXTS = st.sampled_from([None, "", "a", "ü\u2028", 5])
_DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": _TEXTS,
        "reasoning": _TEXTS,
        "reasoning_content": _TEXTS,
        "tool_calls": st.sampled_from([None, [], [{"index": 0, "function": {"arguments": "x"}}], [{"index": 1}]]),
    },
)
_CHOICES = st.fixed_dictionaries(
    {"delta": _DELTAS},
    optional={
        "index": st.just(0),
        "finish_reason": st.sampled_from([None, "stop", "abort", ""]),
        "usage": st.sampled_from([None, {"prompt_tokens": 3}]),
        "text": _TEXTS,
    },
)
_EVENTS = st.fixed_dictionaries(
    {"choices": st.lists(_CHOICES, max_size=2)},
    optional={
        "id": st.sampled_from([None, "r", 7]),
        "model": st.sampled_from([None, "m"]),
        "usage": st.sampled_from([None, {}, {"prompt_tokens": 4}]),
        "error": st.sampled_from([None, "", {"message": "no"}, "died"]),
    },
)


@given(st.lists(_EVENTS, max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_quick_way_reads_the_same_as_the_full_one(events: list[dict[str, Any]]) -> None:
    class Full(Answer):
        __slots__ = ()

        def _read_plain(self, index: int, data: bytes) -> bool:
            return False

    quick, full = Answer(), Full()
    for index, value in enumerate([delta(role="assistant"), *events]):
        data = json.dumps(value).encode()
        quick.read_event(index, data)
        full.read_event(index, data)
    for name in (*Answer.__slots__, "text", "reasoning", "tool_calls", "complete"):
        assert getattr(quick, name) == getattr(full, name), name
