"""LiteLLM's logging payloads: chats that reached the endpoint, at their times, with the provider's usage."""

from pathlib import Path
from typing import Any

import pytest
from tests.imported import imported, lines, problems, said, user


def payload(number: int, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "trace_id": f"trace-{number}",
        "call_type": "acompletion",
        "status": "success",
        "startTime": 1_700_000_000.0 + 10 * number,
        "endTime": 1_700_000_003.0 + 10 * number,
        "completionStartTime": 1_700_000_000.5 + 10 * number,
        "prompt_tokens": 100 * number,
        "completion_tokens": 7,
        "response_cost": 0.01,
        "model": "m",
        "messages": list(messages),
        **fields,
    }


def test_calls_of_a_trace_and_those_that_go_on_from_it(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    path = lines(
        tmp_path / "l.jsonl",
        payload(1, user("a"), response={"choices": [{"message": said("A")}], "usage": usage}),
        payload(2, user("a"), said("A"), user("b"), completionStartTime=1_700_000_023.0),
        payload(3, user("title?"), trace_id="trace-2"),
        payload(4, user("other")),
    )
    got = imported(path)
    assert {name: [turn.line for turn in session.turns] for name, session in got.sessions.items()} == {
        "trace-1": [1, 2, 3],
        "trace-4": [4],
    }
    first, second, third = got.sessions["trace-1"].turns
    assert first.recorded is not None
    assert (first.recorded.ttft_s, first.recorded.e2e_s, first.recorded.cached_tokens) == (0.5, 3.0, 64)
    assert second.recorded is not None
    assert (second.recorded.ttft_s, second.recorded.cached_tokens) == (None, None), "not streamed: TTFT is not known"
    assert (second.delay_s, second.append) == (7.0, (said("A"), user("b")))
    assert (third.delay_s, third.messages) == (7.0, (user("title?"),))
    assert (first.input_tokens, first.output_tokens) == (100, 7)
    assert got.report.notes == {"linked": 1, "replaced": 1}


def test_what_never_reached_the_endpoint_is_left_out(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "l.jsonl",
        payload(1, user("a")),
        payload(2, user("b"), call_type="aembedding"),
        payload(3, user("c"), status="failure"),
        payload(4, user("d"), cache_hit=True),
        payload(1, user("a")),
        payload(6, prompt_tokens=0),
        {"standard_logging_object": payload(7, user("e"))},
    )
    report = imported(path).report
    assert report.dropped == {"other_calls": 1, "failed": 1, "answered_by_cache": 1, "again": 1, "no_prompt": 1}
    assert report.units == 7 == report.turns + sum(report.dropped.values())
    assert [each.line for each in report.dropped_lines] == [2, 3, 4, 5, 6]


def test_without_text_the_lengths_are_kept(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "l.jsonl",
        payload(1, messages="redacted-by-litellm"),
        payload(2, user("redacted-by-litellm"), prompt_tokens=65),
    )
    got = imported(path)
    (first,), (second,) = (session.turns for session in got.sessions.values())
    assert (first.input_tokens, first.hash_ids) == (100, (1, 2))
    assert (second.input_tokens, second.hash_ids) == (65, (3, 4))
    assert got.report.notes == {"no_text": 2}
    assert got.report.block_size == 64
    assert any("share nothing" in sentence for sentence in got.report.sentences())


def test_zeros_in_place_of_a_report(tmp_path: Path) -> None:
    got = imported(lines(tmp_path / "l.jsonl", payload(1, user("a"), prompt_tokens=0, completion_tokens=0)))
    (turn,) = got.sessions["trace-1"].turns
    assert (turn.input_tokens, turn.output_tokens) == (None, None)
    assert got.report.notes == {"usage_placeholder": 1, "no_output_length": 1}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"startTime": "soon"}, "startTime", '"soon" is no time'),
        ({"prompt_tokens": "many"}, "prompt_tokens", "expected int"),
        ({"messages": [{"content": "a"}]}, "messages[0]", "a message is"),
        ({"model_parameters": {"tools": 5}}, "model_parameters.tools", "expected an array"),
    ],
)
def test_bad_payloads_are_named(tmp_path: Path, fields: dict[str, Any], field: str, message: str) -> None:
    path = lines(tmp_path / "l.jsonl", payload(1, user("a")), payload(2, user("b"), **fields))
    ((line, where, what),) = problems(path)
    assert (line, where) == (2, field)
    assert message in what
