"""GenAI spans: requests become turns, agents and parallel requests sub-agents, old and new names alike."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.imported import Imported, imported, lines, problems, said, user
from tests.public_traces import data

from kvbench.model import TurnRef

SYSTEM = {"role": "system", "content": "Be brief."}


def span(number: int, start: float, end: float, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "trace_id": "t1",
        "span_id": f"s{number}",
        "parent_span_id": None,
        "name": "chat m",
        "start_time": f"2026-02-25T10:00:{start:09.6f}Z",
        "end_time": f"2026-02-25T10:00:{end:09.6f}Z",
        "attributes": attributes,
        **fields,
    }


def chat(*messages: dict[str, Any], **usage: int) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(messages),
        **{f"gen_ai.usage.{name}": count for name, count in usage.items()},
    }


def written(tmp_path: Path, *spans: dict[str, Any]) -> Path:
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"trace_id": "t1", "spans": spans}, indent=1))
    return path


def turns_by_session(got: Imported) -> dict[str, int]:
    return {name: len(session.turns) for name, session in got.sessions.items()}


def test_a_conversation(tmp_path: Path) -> None:
    parts = [
        {"role": "user", "parts": [{"type": "text", "content": "a"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Look first."},
                {"type": "text", "content": "I look."},
                {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"x": 1}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"y": 2}}]},
    ]
    instructions = json.dumps([{"type": "text", "content": "Be brief."}])
    tools = json.dumps([{"type": "function", "name": "f", "parameters": {"type": "object"}}])
    more = {"gen_ai.system_instructions": instructions, "gen_ai.tool.definitions": tools}
    cached = {"gen_ai.usage.cache_read.input_tokens": 64, "gen_ai.response.time_to_first_chunk": 0.25}
    first = chat(*parts[:1], input_tokens=80, output_tokens=9) | more
    second = chat(*parts, input_tokens=120, output_tokens=0) | more | cached
    got = imported(written(tmp_path, span(2, 5.25, 6, second), span(1, 1, 3, first)))
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    answer = {"role": "assistant", "content": "I look.", "reasoning_content": "Look first.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": '{"y":2}'}
    assert got.sent("t1") == [[SYSTEM, user("a")], [SYSTEM, user("a"), answer, result]]
    one, two = got.sessions["t1"].turns
    assert (one.start_s, one.input_tokens, one.output_tokens) == (0.0, 80, 9)
    assert one.tools == ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)
    assert (two.delay_s, two.input_tokens, two.output_tokens, two.tools) == (2.25, 120, 1, None)
    assert two.recorded is not None
    assert (two.recorded.ttft_s, two.recorded.e2e_s, two.recorded.cached_tokens) == (0.25, 0.75, 64)
    assert two.recorded.usage == {"input_tokens": 120, "output_tokens": 0, "cache_read.input_tokens": 64}
    report = got.report
    assert (report.format, report.unit, report.units, report.turns) == ("otel", "span", 2, 2)
    assert report.notes == {"out_of_order": 1, "zero_output": 1}
    assert report.facts["sessions"] == "requests of one trace (2)"


def numbered(*messages: dict[str, Any]) -> dict[str, Any]:
    """As OpenLLMetry writes them."""
    out: dict[str, Any] = {
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 30,
        "gen_ai.usage.completion_tokens": 4,
    }
    for number, message in enumerate(messages):
        for name in ("role", "content", "tool_call_id"):
            if message.get(name) is not None:
                out[f"gen_ai.prompt.{number}.{name}"] = message[name]
        for index, call in enumerate(message.get("tool_calls", [])):
            at = f"gen_ai.prompt.{number}.tool_calls.{index}"
            out |= {f"{at}.id": call["id"], f"{at}.name": call["function"]["name"]}
            out[f"{at}.arguments"] = call["function"]["arguments"]
    return out


def events(*messages: dict[str, Any]) -> dict[str, Any]:
    """As the conventions before 1.37 have them."""
    made = []
    for message in messages:
        attributes: dict[str, Any] = {"content": message["content"]}
        if message["role"] == "tool":
            attributes["id"] = message["tool_call_id"]
        if "tool_calls" in message:
            attributes["tool_calls"] = json.dumps(message["tool_calls"])
        made.append({"name": f"gen_ai.{message['role']}.message", "attributes": attributes})
    usage = {"gen_ai.usage.prompt_tokens": 30, "gen_ai.usage.completion_tokens": 4}
    return {"attributes": {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **usage}, "events": made}


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HISTORY = [
    SYSTEM,
    user("a"),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
]
CONTENT_PROMPT = {
    "attributes": {"gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 30, "gen_ai.usage.completion_tokens": 4},
    "events": [{"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": json.dumps(HISTORY)}}],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": chat(*HISTORY, prompt_tokens=30, completion_tokens=4)},
        {"attributes": chat(*HISTORY, input_tokens=30, output_tokens=4)},
        {"attributes": numbered(*HISTORY)},
        events(*HISTORY),
        CONTENT_PROMPT,
    ],
    ids=["messages", "new-usage", "numbered", "events", "content-prompt"],
)
def test_old_and_new_names(tmp_path: Path, fields: dict[str, Any]) -> None:
    got = imported(written(tmp_path, {**span(1, 0, 1, {}), **fields}))
    assert got.sent("t1") == [HISTORY]
    (turn,) = got.sessions["t1"].turns
    assert (turn.model, turn.input_tokens, turn.output_tokens) == ("m", 30, 4)


def otlp(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    def value(of: Any) -> dict[str, Any]:
        if isinstance(of, list):
            return {"arrayValue": {"values": [value(each) for each in of]}}
        if isinstance(of, dict):
            return {"kvlistValue": {"values": otlp(of)}}
        return {"stringValue": of} if isinstance(of, str) else {"intValue": str(of)}

    return [{"key": name, "value": value(of)} for name, of in attributes.items()]


def test_otlp_json_lines(tmp_path: Path) -> None:
    """The collector's file exporter: an export a line, times in ns as text, attributes as a list of typed values."""

    def export(number: int, start_ms: int, attributes: dict[str, Any]) -> dict[str, Any]:
        one = {
            "traceId": "t1",
            "spanId": f"s{number}",
            "parentSpanId": "",
            "name": "chat m",
            "startTimeUnixNano": f"{1_700_000_000_000 + start_ms}000000",
            "endTimeUnixNano": f"{1_700_000_001_000 + start_ms}000000",
            "attributes": otlp(attributes),
            "status": {"code": 1},
        }
        resource = {"attributes": otlp({"service.name": "agent"})}
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": [one]}]}]}

    structured = chat(user("a"), said("A"), user("b"), input_tokens=50) | {
        "gen_ai.input.messages": [user("a"), said("A"), user("b")]
    }
    path = lines(
        tmp_path / "o.jsonl",
        export(1, 0, chat(user("a"), input_tokens=40, output_tokens=2)),
        export(2, 2500, structured),
    )
    got = imported(path)
    assert got.sent("t1") == [[user("a")], [user("a"), said("A"), user("b")]]
    first, second = got.sessions["t1"].turns
    assert (first.input_tokens, first.output_tokens, second.input_tokens) == (40, 2, 50)
    assert second.delay_s == 1.5
    assert second.line == 2


def test_spans_of_agents_are_sessions(tmp_path: Path) -> None:
    def agent(number: int, start: float, end: float, parent: str | None) -> dict[str, Any]:
        operation = {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 999}
        return span(number, start, end, operation, parent_span_id=parent, name="invoke_agent")

    tool = span(5, 3, 9, {"gen_ai.operation.name": "execute_tool"}, parent_span_id="s1", name="execute_tool ask")
    path = written(
        tmp_path,
        agent(1, 0, 20, None),
        span(2, 1, 2, chat(user("go")), parent_span_id="s1"),
        tool,
        agent(6, 3, 8, "s5"),
        span(7, 3.5, 4, chat(SYSTEM, user("look")), parent_span_id="s6"),
        span(8, 5, 6, chat(SYSTEM, user("look"), said("b"), user("more")), parent_span_id="s6"),
        span(9, 10, 11, chat(user("go"), said("found"), user("and?")), parent_span_id="s1"),
    )
    got = imported(path)
    assert turns_by_session(got) == {"t1": 2, "t1.s6": 2}
    main, sub = got.sessions["t1"].turns, got.sessions["t1.s6"].turns
    assert (sub[0].parent, sub[0].delay_s, sub[1].delay_s) == (TurnRef("t1", 0), 1.5, 1.0)
    assert (main[1].after, main[1].delay_s) == (("t1.s6",), 4.0)
    report = got.report
    assert report.dropped == {"other_spans": 3}
    assert report.units == 7 == report.turns + 3
    assert report.notes["joined"] == 1
    assert "agents" in report.facts


def test_requests_of_a_tool_and_agents_side_by_side(tmp_path: Path) -> None:
    """Below a span that is no agent: what a tool asks is its own, and a second agent is no turn of the first."""

    def agent(number: int, start: float, end: float, name: str) -> dict[str, Any]:
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        return span(number, start, end, attributes, parent_span_id="s1")

    tool = span(4, 3, 5, {"gen_ai.operation.name": "execute_tool"}, parent_span_id="s2")
    path = written(
        tmp_path,
        span(1, 0, 30, {}, name="workflow"),
        agent(2, 0, 10, "lead"),
        span(3, 1, 2, chat(user("go")), parent_span_id="s2"),
        tool,
        span(5, 3.5, 4, chat(user("summarise")), parent_span_id="s4"),
        span(6, 6, 7, chat(user("go"), said("s"), user("on")), parent_span_id="s2"),
        agent(7, 11, 20, "critic"),
        span(8, 12, 13, chat(user("judge")), parent_span_id="s7"),
    )
    got = imported(path)
    assert turns_by_session(got) == {"t1": 2, "t1.s4": 1, "t1.1": 1}
    assert got.sessions["t1"].turns[1].append == (said("s"), user("on"))
    assert (got.sessions["t1"].turns[1].after, got.sessions["t1"].turns[1].delay_s) == (("t1.s4",), 2.0)
    assert (got.sessions["t1.1"].turns[0].parent, got.sessions["t1.1"].turns[0].delay_s) == (TurnRef("t1", 1), 5.0)
    assert got.report.dropped == {"other_spans": 4}


def test_a_request_below_another_goes_on_from_it_or_is_a_sub_agents(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        span(1, 1, 2, chat(user("go"))),
        span(2, 3, 4, chat(user("look")), parent_span_id="s1"),
        span(3, 4.5, 5, chat(user("look"), said("b"), user("more")), parent_span_id="s2"),
        span(4, 6, 7, chat(user("go"), said("found"), user("on")), parent_span_id="s1"),
        span(5, 8, 9, chat(user("anew"))),
    )
    got = imported(path)
    assert turns_by_session(got) == {"t1": 3, "t1.1": 2}
    assert (got.sessions["t1.1"].turns[0].parent, got.sessions["t1.1"].turns[0].delay_s) == (TurnRef("t1", 0), 1.0)
    main = got.sessions["t1"].turns
    assert [turn.after for turn in main] == [(), ("t1.1",), ()]
    assert (main[1].append, main[2].messages) == ((said("found"), user("on")), (user("anew"),))


def test_spans_that_are_each_others_parents(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        span(1, 1, 2, chat(user("a")), parent_span_id="s2"),
        span(2, 3, 4, {}, parent_span_id="s1", name="step"),
        span(3, 5, 6, chat(user("b")), parent_span_id="s3"),
    )
    assert imported(path).report.turns == 2


def test_what_is_no_request_of_its_own_is_left_out(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        span(1, 0, 5, chat(user("a")), name="ChatModel"),
        span(2, 1, 4, chat(user("a")), parent_span_id="s1"),
        span(3, 6, 7, chat(user("b")), status={"code": 2, "message": "overloaded"}),
        span(4, 8, 9, chat(user("c")), parent_span_id="s2"),
        span(4, 8, 9, chat(user("c"))),
        span(5, 8, 9, {"http.request.method": "POST"}, name="POST"),
    )
    report = imported(path).report
    assert report.dropped == {"wrapping": 1, "failed": 1, "again": 1, "other_spans": 1}
    assert (report.units, report.turns) == (6, 2)
    assert 'span "ChatModel" holds the span of the same request' in [each.reason for each in report.dropped_lines]


def test_without_messages_lengths_are_kept(tmp_path: Path) -> None:
    usage = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 130, "gen_ai.usage.output_tokens": 7}
    got = imported(written(tmp_path, span(1, 0, 1, usage), span(2, 2, 3, usage), span(3, 4, 5, chat())))
    assert [turn.hash_ids for turn in got.sessions["t1"].turns] == [(1, 2, 3), (4, 5, 6)]
    assert (got.report.notes["no_text"], got.report.dropped) == (2, {"no_prompt": 1})


@pytest.mark.parametrize(
    ("broken", "field", "message"),
    [
        ({"span_id": None}, "spans[1].span_id", "missing"),
        ({"start_time": "soon"}, "spans[1].start_time", '"soon" is no time'),
        ({"attributes": 5}, "spans[1].attributes", "expected an array"),
        (
            {"attributes": chat() | {"gen_ai.input.messages": "[{"}},
            "spans[1].attributes.gen_ai.input.messages",
            "no JSON",
        ),
        ({"attributes": chat({"content": "a"})}, "spans[1].attributes.gen_ai.input.messages[0]", "a message is"),
        ({"attributes": [{"value": {}}]}, "spans[1].attributes", "expected"),
    ],
)
def test_bad_spans_are_named(tmp_path: Path, broken: dict[str, Any], field: str, message: str) -> None:
    path = tmp_path / "spans.jsonl"
    lines(path, {"spans": [span(1, 0, 1, chat(user("a"))), {**span(2, 1, 2, chat(user("b"))), **broken}]}, "")
    ((line, where, what),) = problems(path)
    assert (line, where) == (1, field)
    assert message in what


# ------------------------------------------------------------------------------------------------------ real samples

SAMPLES = {
    "simple_chain": {"session": 3},
    "simple_chain_alt": {"session": 3},
    "parallel_requests": {"session_002": 4, "session_002.1": 1},
    "fan_in_dependencies": {"session_003": 3, "session_003.1": 1},
    "multi_agent_research": {"session_004": 5, **{f"session_004.{n}": 1 for n in range(1, 8)}},
    "code_review_workflow": {"session_005": 6, **{f"session_005.{n}": 1 for n in range(1, 10)}},
    "customer_support_escalation": {"session_006": 5, **{f"session_006.{n}": 1 for n in range(1, 5)}},
    "software_architecture_review": {"session_007": 6, **{f"session_007.{n}": 1 for n in range(1, 10)}},
    "prefix_sharing_example": {
        "independent_trace_1": 1,
        "independent_trace_2": 1,
        "conversation_trace": 4,
        "independent_trace_3": 1,
    },
}
"""Turns by session: the coordinator's, and one for each call of another agent."""


@pytest.mark.parametrize("name", SAMPLES)
def test_published_samples(name: str) -> None:
    path = data("otel", f"{name}.json")
    spans = json.loads(path.read_text())["spans"]
    got = imported(path)
    assert turns_by_session(got) == SAMPLES[name]
    assert got.report.units == len(spans) == got.report.turns
    prompts = [json.dumps(prompt) for session in got.sessions for prompt in got.sent(session)]
    assert sorted(prompts) == sorted(
        json.dumps(json.loads(each["attributes"]["gen_ai.input.messages"])) for each in spans
    )


def test_a_fan_out_is_joined() -> None:
    got = imported(data("otel", "parallel_requests.json"))
    branch, main = got.sessions["session_002.1"].turns[0], got.sessions["session_002"].turns
    assert (branch.parent, branch.delay_s) == (TurnRef("session_002", 0), 1.0)
    assert [turn.after for turn in main] == [(), (), ("session_002.1",), ()]
    assert [turn.delay_s for turn in main] == [0.0, 0.5, 0.5, 0.5]


def test_usage_of_the_published_sample() -> None:
    path = data("otel", "prefix_sharing_example.json")
    spans = json.loads(path.read_text())["spans"]
    turns = [turn for session in imported(path).sessions.values() for turn in session.turns]
    for name, of in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        wanted = sorted(each["attributes"][f"gen_ai.usage.{name}"] for each in spans)
        assert sorted(getattr(turn, of) for turn in turns) == wanted


def test_the_same_spans_in_two_files_are_taken_once(tmp_path: Path) -> None:
    for name in ("simple_chain", "simple_chain_alt"):
        (tmp_path / f"{name}.json").write_bytes(data("otel", f"{name}.json").read_bytes())
    report = imported(tmp_path).report
    assert (report.files, report.units, report.turns, report.dropped) == (2, 6, 3, {"again": 3})
    assert {each.file for each in report.dropped_lines} == {str(tmp_path / "simple_chain_alt.json")}
