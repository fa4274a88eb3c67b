"""Claude Code logs: one call a message.id, chains of uuids, sub-agents inline and in files of their own."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.agent_logs import prompts_of, sessions_of, write
from tests.imported import taken_for

from kvbench.errors import InputError
from kvbench.model import TurnRef
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
Obj = dict[str, Any]


def user(uuid: str, parent: str | None, second: float, content: Any, **fields: Any) -> Obj:
    return {
        "type": "user",
        "uuid": uuid,
        "parentUuid": parent,
        "timestamp": f"2026-01-05T10:00:{second:06.3f}Z",
        "sessionId": "s",
        "isSidechain": False,
        "message": {"role": "user", "content": content},
        **fields,
    }


def answer(uuid: str, parent: str | None, second: float, call: str, block: Obj, usage: Any, **fields: Any) -> Obj:
    stop = fields.pop("stop", "end_turn")
    counts = usage
    if isinstance(usage, tuple):
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        counts = dict(zip(names, usage, strict=True))
    message = {"id": call, "role": "assistant", "model": "m1", "content": [block], "stop_reason": stop, "usage": counts}
    return {**user(uuid, parent, second, None), "type": "assistant", "message": message, **fields}


def text(value: str) -> Obj:
    return {"type": "text", "text": value}


def tool(name: str, **given: Any) -> Obj:
    return {"type": "tool_use", "id": name, "name": "Do", "input": given}


def result(name: str, content: Any = "ok") -> list[Obj]:
    return [{"type": "tool_result", "tool_use_id": name, "content": content}]


# One call over three lines with two tools at once, whose results hang off the lines that called them.
SESSION = [
    {"type": "summary", "summary": "x", "leafUuid": "u3"},
    user("u1", None, 1, "Go."),
    {"type": "progress", "uuid": "p1", "parentUuid": "u1", "timestamp": "2026-01-05T10:00:01.5Z", "sessionId": "s"},
    answer("a1", "p1", 3, "m_1", {"type": "thinking", "thinking": "Hm."}, (3, 100, 20, 1), stop=None),
    answer("a2", "a1", 4, "m_1", tool("t1", x=1), (3, 100, 20, 1), stop=None),
    answer("a3", "a2", 5, "m_1", tool("t2"), (3, 100, 20, 44), stop="tool_use"),
    user("u2", "a2", 8, result("t1", "one")),
    user("u3", "a3", 6, result("t2", [text("two")])),
    answer("a4", "u3", 9.5, "m_2", text("Done."), (2, 123, 30, 5)),
    user("u4", "a4", 20, "Thanks."),
]


def accounted(path: Path) -> dict[str, int]:
    """What was left out; every line is in the trace or counted there."""
    with open_workload(path) as opened:
        report = opened.imported
    assert report is not None
    used = report.notes.get("answer_lines", 0) + report.notes.get("prompt_lines", 0)
    left_out = sum(n for code, n in report.dropped.items() if code != "other_files")
    files = [path] if path.is_file() else sorted(path.rglob("*.json*"))
    lines = sum(1 for file in files for line in file.read_bytes().splitlines() if line.strip())
    assert report.units == used + left_out == lines
    return report.dropped


def test_lines_of_one_message_id_are_one_call_and_the_last_has_its_usage(tmp_path: Path) -> None:
    path = write(tmp_path, SESSION)
    (session,) = sessions_of(path).values()
    one, two = session.turns
    assert (session.session_id, one.line, one.model, two.model) == ("s", 4, "m1", None)
    assert (one.input_tokens, one.output_tokens, two.input_tokens, two.output_tokens) == (123, 44, 155, 5)
    assert one.recorded is not None
    assert two.recorded is not None
    assert (one.recorded.cached_tokens, two.recorded.cached_tokens) == (100, 123)
    assert (one.recorded.usage or {})["cache_creation_input_tokens"] == 20
    first, second = prompts_of(session)
    assert first == [{"role": "user", "content": "Go."}]
    called = [
        {"id": "t1", "type": "function", "function": {"name": "Do", "arguments": '{"x":1}'}},
        {"id": "t2", "type": "function", "function": {"name": "Do", "arguments": "{}"}},
    ]
    assert second[1:] == [
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": called},
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "tool", "tool_call_id": "t2", "content": "two"},
    ]
    assert accounted(path) == {"other_kinds": 2, "unanswered": 1}


def test_a_call_starts_at_the_last_message_before_it(tmp_path: Path) -> None:
    (session,) = sessions_of(write(tmp_path, SESSION)).values()
    one, two = session.turns
    assert (one.start_s, two.delay_s) == (0.0, 3.0), "answered at 5 s, the last result at 8 s"
    assert one.recorded is not None
    assert two.recorded is not None
    assert (one.recorded.at_s, one.recorded.e2e_s, two.recorded.at_s, two.recorded.e2e_s) == (0.0, 4.0, 7.0, 1.5)


def test_order_keys_and_white_space_do_not_matter(tmp_path: Path) -> None:
    def what(lines: list[Obj], **style: Any) -> Any:
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(json.dumps(line, **style) for line in lines))
        return {
            name: [(turn.delay_s, turn.input_tokens, turn.output_tokens, turn.append) for turn in session.turns]
            for name, session in sessions_of(path).items()
        }

    expected = what(SESSION)
    for seed in range(6):
        lines = SESSION[1:]
        random.Random(seed).shuffle(lines)
        lines = [dict(random.Random(seed).sample(list(line.items()), len(line))) for line in [SESSION[0], *lines]]
        assert what(lines, indent=None, separators=(" , ", "  :  ")) == expected


def test_a_rewound_context_and_a_compacted_one_are_replaced(tmp_path: Path) -> None:
    more = [
        user("u5", "a4", 30, "Next."),
        answer("a5", "u5", 31, "m_3", text("No."), (1, 0, 0, 3)),
        user("u6", "a4", 40, "Rather this."),
        answer("a6", "u6", 41, "m_4", text("Yes."), (1, 0, 0, 3)),
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "c1",
            "parentUuid": None,
            "logicalParentUuid": "a6",
            "timestamp": "2026-01-05T10:00:50Z",
            "sessionId": "s",
        },
        user("u7", "c1", 51, "So far: ...", isCompactSummary=True),
        user("u8", "u7", 52, "On."),
        answer("a7", "u8", 53, "m_5", text("Ok."), (1, 0, 0, 3)),
    ]
    path = write(tmp_path, SESSION[:-1] + more)
    (session,) = sessions_of(path).values()
    assert [turn.append is None for turn in session.turns] == [False, False, False, True, True]
    prompts = prompts_of(session)
    assert [message["content"] for message in prompts[3]] == ["Go.", None, "one", "two", "Done.", "Rather this."]
    assert [message["content"] for message in prompts[4]] == ["So far: ...", "On."]
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes["replaced"] == 2
    accounted(path)


def sidechain(uuid: str, parent: str | None, second: float, content: Any, **fields: Any) -> Obj:
    return user(uuid, parent, second, content, isSidechain=True, **fields)


def agent_lines(**fields: Any) -> list[Obj]:
    return [
        sidechain("b1", None, 6.0, "Look.", **fields),
        answer("b2", "b1", 7, "m_a", tool("t9"), (5, 0, 50, 9), isSidechain=True, **fields),
        sidechain("b3", "b2", 7.5, result("t9"), **fields),
        answer("b4", "b3", 8.5, "m_b", text("Seen."), (5, 50, 5, 9), isSidechain=True, **fields),
    ]


CALLER = [
    user("u1", None, 1, "Go."),
    answer("a1", "u1", 5, "m_1", tool("t1", prompt="Look."), (5, 0, 0, 20)),
    user("u2", "a1", 9, result("t1", "Seen."), toolUseResult={"agentId": "x7"}),
    answer("a2", "u2", 10, "m_2", text("Good."), (5, 0, 0, 20)),
]


@pytest.mark.parametrize("place", ["inline", "file", "beside"])
def test_a_sub_agent_starts_after_the_call_that_made_it_and_is_waited_for(tmp_path: Path, place: str) -> None:
    if place == "inline":
        path, name = write(tmp_path, CALLER[:2] + agent_lines() + CALLER[2:]), "s.agent1"
    else:
        folder = "p/s/subagents/" if place == "file" else "p/"
        write(tmp_path, agent_lines(agentId="x7"), f"{folder}agent-x7.jsonl")
        write(tmp_path, CALLER, "p/s.jsonl")
        (tmp_path / folder / "agent-x7.meta.json").write_text('{"agentType": "Explore", "description": "d"}')
        (tmp_path / "p/sessions-index.json").write_text('{"version": 1, "entries": [{"sessionId": "s"}]}')
        path, name = tmp_path / "p", "s.x7"
    made = sessions_of(path)
    assert list(made) == ["s", name]
    root, agent = made["s"], made[name]
    assert (agent.turns[0].parent, agent.turns[0].delay_s) == (TurnRef("s", 0), 1.0)
    assert (root.turns[1].after, root.turns[1].delay_s) == ((name,), 0.5), "from the sub-agent's end, 8.5 s"
    assert prompts_of(agent)[0] == [{"role": "user", "content": "Look."}]
    assert agent.turns[1].recorded is not None
    assert agent.turns[1].recorded.at_s == 6.5, "since the tree began"
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert (opened.imported.sub_agents, opened.imported.notes["joined"]) == (1, 1)
    assert accounted(path) == ({} if place == "inline" else {"other_kinds": 2})


def test_a_sub_agent_that_outlives_its_result_is_not_waited_for(tmp_path: Path) -> None:
    late = [{**line, "timestamp": line["timestamp"].replace(":00:0", ":00:4")} for line in agent_lines()]
    made = sessions_of(write(tmp_path, CALLER + late))
    assert made["s"].turns[1].after == ()
    assert made["s.agent1"].turns[0].parent == TurnRef("s", 0)


def test_a_sub_agent_that_nobody_called_is_a_root(tmp_path: Path) -> None:
    path = write(tmp_path, SESSION + agent_lines())
    assert sessions_of(path)["s.agent1"].turns[0].parent is None
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert (opened.imported.sub_agents, opened.imported.notes["own_root"]) == (0, 1)


def test_an_answer_longer_than_its_count_was_counted_at_its_start(tmp_path: Path) -> None:
    lines = [user("u1", None, 1, "Go."), answer("a1", "u1", 2, "m", text("x" * 400), (5, 0, 0, 3), stop=None)]
    (session,) = sessions_of(write(tmp_path, lines)).values()
    assert session.turns[0].output_tokens == 100
    lines[1]["message"]["stop_reason"] = "end_turn"
    (session,) = sessions_of(write(tmp_path, lines)).values()
    assert session.turns[0].output_tokens == 3, "an answer logged after its end is believed"


def test_sessions_resumed_in_other_files_do_not_repeat_its_calls(tmp_path: Path) -> None:
    """Two copies of a session under other names, each of which goes on; the longest is the session."""
    write(tmp_path, SESSION, "p/a.jsonl")
    for name, second in (("b", 58), ("c", 50)):
        more = [
            user(f"u{name}", "a4", second, f"More {name}.", sessionId=name),
            answer(f"a{name}", f"u{name}", second + 1, f"m_{name}", text("M."), (1, 0, 0, 2), sessionId=name),
        ]
        write(tmp_path, [{**line, "sessionId": name} for line in SESSION[1:-1]] + more, f"p/{name}.jsonl")
    made = sessions_of(tmp_path / "p")
    assert {name: len(session.turns) for name, session in made.items()} == {"b": 3, "c": 1}
    said = [message["content"] for message in prompts_of(made["c"])[0]]
    assert said == ["Go.", None, "one", "two", "Done.", "More c."]
    assert [message["content"] for message in prompts_of(made["b"])[2]][-2:] == ["Done.", "More b."]
    # Answers of a and c, and the messages of a, which no other call needs.
    assert accounted(tmp_path / "p") == {"repeated_call": 4 + 4 + 3, "other_kinds": 4, "unanswered": 1}


def test_what_is_no_message_is_left_out_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, SESSION)
    broken: list[Any] = [
        [1],
        "text",
        {"type": "user", "message": "x"},
        {"type": "user", "message": {"role": "user", "content": 5}},
        user("u6", "a4", 1, [{"type": "tool_result", "tool_use_id": "t1", "content": 7}]),
        {**user("u5", None, 1, "x"), "timestamp": "yesterday"},
        {**answer("a9", "u4", 21, "e", text("API Error"), (0, 0, 0, 0)), "isApiErrorMessage": True},
        SESSION[8],
        answer("a10", "gone", 0, "m_0", text("first"), (1, 0, 0, 1), sessionId="t"),
    ]
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in broken) + '{"type": "user", "uu')
    assert accounted(path) == {
        "broken": 4,
        "no_object": 3,
        "no_prompt": 1,
        "other_kinds": 2,
        "repeated_line": 1,
        "synthetic": 1,
        "unanswered": 1,
    }
    with open_workload(path) as opened:
        assert opened.imported is not None
        told = {item.line: item.reason for item in opened.imported.dropped_lines}
    assert told[11] == "expected a JSON object, got array"
    assert told[14] == "message.content: neither text nor content blocks"
    assert told[15] == "message.content[0]: expected text or an array of content blocks"
    assert told[16].startswith('timestamp: "yesterday" is no time')
    assert told[20] == "the line ends inside its JSON"
    assert not validate_workload(path).errors


@pytest.mark.parametrize("usage", [None, {"input_tokens": -1}, {"input_tokens": 2.5}, {"input_tokens": None}])
def test_usage_that_says_nothing_is_not_reported(tmp_path: Path, usage: Any) -> None:
    lines = [user("u1", None, 1, "Go."), answer("a1", "u1", 2, "m", text("x" * 40), usage)]
    (session,) = sessions_of(write(tmp_path, lines)).values()
    assert (session.turns[0].input_tokens, session.turns[0].output_tokens) == (None, 10)


def test_lines_that_follow_each_other_in_a_circle_end(tmp_path: Path) -> None:
    lines = [
        user("u1", "a1", 1, "Go."),
        answer("a1", "u1", 2, "m", text("x"), (1, 0, 0, 1)),
        user("u2", "u2", 3, "On."),
        answer("a2", "u2", 4, "n", text("y"), (1, 0, 0, 1)),
    ]
    (session,) = sessions_of(write(tmp_path, lines)).values()
    assert [message["content"] for message in prompts_of(session)[-1]] == ["Go.", "x", "On."]


def test_calls_that_follow_each_other_in_a_circle_end(tmp_path: Path) -> None:
    """Each call's first line follows the other's second, and each second line nothing."""
    lines = [
        user("u1", None, 1, "Go."),
        answer("a1", "b2", 2, "m_a", text("a"), (1, 0, 0, 1)),
        answer("b1", "a2", 3, "m_b", text("b"), (1, 0, 0, 1)),
        answer("a2", "u1", 4, "m_a", text("c"), (1, 0, 0, 1)),
        answer("b2", "u1", 5, "m_b", text("d"), (1, 0, 0, 1)),
        user("u2", "b2", 6, "On."),
        answer("c1", "u2", 7, "m_c", text("e"), (1, 0, 0, 1)),
    ]
    (session,) = sessions_of(write(tmp_path, lines)).values()
    assert len(session.turns) == 3


def test_a_log_without_a_call_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [SESSION[0], SESSION[1]])
    assert taken_for(path) == "claude-code"
    with pytest.raises(InputError, match="no call to a model in it"):
        open_workload(path)


@needs_data
def test_rounds_derived_by_others_from_the_same_session() -> None:
    assert DATA is not None
    folder = Path(DATA, "tracelab")
    rounds = [json.loads(line) for line in (folder / "derived_round_trace.jsonl").read_text().splitlines()]
    truth = [obj for obj in rounds if obj["provider"] == "claude"]
    path = folder / "claude_session.jsonl"
    (session,) = sessions_of(path).values()
    assert [
        (turn.input_tokens, turn.output_tokens, turn.recorded.cached_tokens)
        for turn in session.turns
        if turn.recorded is not None
    ] == [(obj["input_tokens_total"], obj["output_tokens"], obj["prefix_tokens"]) for obj in truth]
    assert len(truth) == 10
    for turn, obj in zip(session.turns[1:], truth[1:], strict=True):
        results = [message for message in turn.append or () if message["role"] == "tool"]
        assert len(results) == obj["current_tool_result_count"]
    accounted(path)


@needs_data
@pytest.mark.parametrize(
    ("name", "sessions", "turns", "input_tokens"),
    [
        ("log/edge_cases.jsonl", 1, 3, 320),
        ("log/representative_messages.jsonl", 1, 5, 218),
        ("log/session_b.jsonl", 1, 1, 20),
        ("log/todowrite_examples.jsonl", 1, 6, 883),
        ("spotter/short.jsonl", 1, 1, 25_353),
        ("spotter/tool_heavy.jsonl", 1, 4, 105_981),
        ("viewer/1af7fc5e-8455-4414-9ccd-011d40f70b2a.jsonl", 1, 7, 116_010),
        ("viewer/5c0375b4-57a5-4f26-b12d-d022ee4e51b7.jsonl", 3, 20, 372_135),
    ],
)
def test_published_logs(name: str, sessions: int, turns: int, input_tokens: int) -> None:
    """Calls and tokens counted by their message ids alone: the last line's usage, cached tokens included."""
    assert DATA is not None
    path = Path(DATA, "claude-code", name)
    made = sessions_of(path)
    assert (len(made), sum(len(session.turns) for session in made.values())) == (sessions, turns)
    last: dict[str, Any] = {}
    for raw in path.read_text().splitlines():
        obj = json.loads(raw)
        if isinstance(obj, dict) and obj.get("type") == "assistant" and obj["uuid"] != "assistant_004":
            last[obj["message"]["id"]] = obj["message"]["usage"]
    if name.endswith("todowrite_examples.jsonl"):
        last["msg_004"] = {"input_tokens": 168}
    total = sum(
        usage["input_tokens"]
        + (usage.get("cache_read_input_tokens") or 0)
        + (usage.get("cache_creation_input_tokens") or 0)
        for usage in last.values()
    )
    assert sum(turn.input_tokens or 0 for session in made.values() for turn in session.turns) == total == input_tokens
    accounted(path)


@needs_data
def test_published_sub_agents_are_joined_where_their_results_are() -> None:
    assert DATA is not None
    made = sessions_of(Path(DATA, "claude-code", "viewer", "5c0375b4-57a5-4f26-b12d-d022ee4e51b7.jsonl"))
    root, one, two = made.values()
    assert (one.turns[0].parent, two.turns[0].parent) == (TurnRef(root.session_id, 2), TurnRef(root.session_id, 3))
    assert [turn.after for turn in root.turns if turn.after] == [(one.session_id,), (two.session_id,)]
    assert (root.turns[3].after, root.turns[4].after) == ((one.session_id,), (two.session_id,))
    assert one.turns[0].delay_s == pytest.approx(0.056)
