"""Trajectories of SWE-agent, mini-SWE-agent and OpenHands: every answer is a call, all before it its prompt."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent_logs import prompts_of, sessions_of
from tests.imported import taken_for

from kvbench.errors import InputError
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
Obj = dict[str, Any]
ROLES = "unknown role; known: system, developer, user, assistant, tool, function"
CALLS = "expected an array of calls, each with a function"


def write(tmp_path: Path, value: Any, name: str = "t.traj", **style: Any) -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(value, **style))
    return path


def accounted(path: Path, messages: int) -> tuple[dict[str, int], dict[str, int]]:
    """Notes, and what was left out; every message or event is in one of them."""
    with open_workload(path) as opened:
        report = opened.imported
    assert report is not None
    used = sum(report.notes.get(code, 0) for code in ("answers", "prompts", "same_response"))
    left_out = sum(n for code, n in report.dropped.items() if code not in ("no_calls", "other_files"))
    assert report.units == used + left_out == messages
    return report.notes, report.dropped


def said(*roles: str) -> list[Obj]:
    return [{"role": role, "content": f"{role} {number}", "agent": "main"} for number, role in enumerate(roles)]


# ------------------------------------------------------------------------------------------------------- SWE-agent


def test_a_history_is_a_call_for_each_answer(tmp_path: Path) -> None:
    history = said("system", "user", "assistant", "tool", "assistant", "user")
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    history[2] |= {"thought": "t", "action": "ls", "tool_calls": [call], "message_type": "action"}
    history[3] |= {"tool_call_ids": ["c1"]}
    steps = [{"action": "ls", "execution_time": 1.5}, {"action": "x", "execution_time": 9.0}]
    path = write(tmp_path, {"history": history, "trajectory": steps, "environment": "e"}, indent=1)
    assert taken_for(path) == "swe-agent"
    (session,) = sessions_of(path).values()
    assert session.session_id == "t"
    assert [turn.delay_s for turn in session.turns] == [0.0, 1.5]
    # "assistant 2", "ls" and "{}" are 15 characters, "assistant 4" 11.
    assert [turn.output_tokens for turn in session.turns] == [4, 3]
    first, second = prompts_of(session)
    assert first == [{"role": "system", "content": "system 0"}, {"role": "user", "content": "user 1"}]
    assert second[2:] == [
        {"role": "assistant", "content": "assistant 2", "tool_calls": [call]},
        {"role": "tool", "content": "tool 3", "tool_call_id": "c1"},
    ]
    assert accounted(path, 6)[1] == {"unanswered": 1}


def test_queries_are_the_prompts_where_a_trajectory_has_them(tmp_path: Path) -> None:
    """The second leaves an observation out, as a history processor does; the third goes on from it."""
    history = said("system", "user", "assistant", "user", "assistant", "user", "assistant")
    short = [history[0], history[1], history[2], {"role": "user", "content": "(left out)"}]
    queries = [history[:2], history[:4], [*short, history[4], history[5]]]
    path = write(tmp_path, {"history": history, "trajectory": [{"query": query} for query in queries]})
    (session,) = sessions_of(path).values()
    assert [[each["content"] for each in prompt] for prompt in prompts_of(session)] == [
        ["system 0", "user 1"],
        ["system 0", "user 1", "assistant 2", "user 3"],
        ["system 0", "user 1", "assistant 2", "(left out)", "assistant 4", "user 5"],
    ]
    assert [turn.append is None for turn in session.turns] == [False, False, True]
    assert accounted(path, 7)[0]["queries"] == 3


def test_the_agents_own_totals_are_compared(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y"}]
    path = write(tmp_path, {"history": history, "info": {"model_stats": {"tokens_sent": 130}}})
    with open_workload(path) as opened:
        assert opened.imported is not None
        own = opened.imported.facts["the agent's own totals"]
    assert own.startswith("tokens_sent 130 over 1 calls, where the histories come to about 100 (estimated")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (5, "history[2]: a message is an object"),
        ({"content": "x"}, f"history[2].role: {ROLES}"),
        ({"role": "chief", "content": "x"}, f"history[2].role: {ROLES}"),
        ({"role": "user", "content": 5}, "history[2].content: expected text or an array of parts"),
        ({"role": "assistant", "tool_calls": "x"}, f"history[2].tool_calls: {CALLS}"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, f"history[2].tool_calls: {CALLS}"),
        ({"role": "tool", "tool_call_id": 5}, "history[2].tool_call_id: expected text"),
    ],
)
def test_a_bad_message_is_left_out_and_named(tmp_path: Path, bad: Any, reason: str) -> None:
    path = write(tmp_path, {"history": [*said("user", "assistant"), bad]})
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert [each.reason for each in opened.imported.dropped_lines] == [reason]
    assert accounted(path, 3)[1] == {"broken": 1}


def test_a_history_that_is_none_or_has_no_answer_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"history": 5, "trajectory": [], "environment": "e"})
    with pytest.raises(InputError, match="history: expected an array of messages"):
        open_workload(path)
    path = write(tmp_path, {"history": said("system", "user"), "trajectory": []})
    with pytest.raises(InputError, match="trajectories without an answer of the model: 1"):
        open_workload(path)
    path.write_text('{"history": [{"role": "user"')
    with pytest.raises(InputError, match="ends inside its JSON"):
        open_workload(path, format="swe-agent")


@needs_data
@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("function_calling_simple", 5),
        ("humanevalfix-python-0", 5),
        ("katy", 18),
        ("marshmallow-code__marshmallow-1867", 11),
        ("pydicom__pydicom-1458", 12),
    ],
)
def test_published_trajectories(name: str, turns: int) -> None:
    assert DATA is not None
    path = Path(DATA, "swe-agent", f"{name}.traj")
    obj = json.loads(path.read_text())
    (session,) = sessions_of(path).values()
    answers = [message for message in obj["history"] if message["role"] == "assistant"]
    assert len(session.turns) == len(answers) == turns
    last = [message["content"] for message in prompts_of(session)[-1]]
    at = max(index for index, message in enumerate(obj["history"]) if message["role"] == "assistant")
    assert last == [message["content"] for message in obj["history"][:at]]
    accounted(path, len(obj["history"]))
    assert not validate_workload(path).warnings, "every tool message answers an open call"


# -------------------------------------------------------------------------------------------------- mini-SWE-agent


def test_an_array_of_messages_is_a_trajectory(tmp_path: Path) -> None:
    path = write(tmp_path, said("system", "user", "assistant", "user", "assistant"), "a.traj.json", indent=1)
    assert taken_for(path) == "mini-swe-agent"
    (session,) = sessions_of(path).values()
    assert (session.session_id, [len(prompt) for prompt in prompts_of(session)]) == ("a", [2, 4])
    accounted(path, 5)


def test_responses_and_times_are_taken_where_they_are_there(tmp_path: Path) -> None:
    rows = said("system", "user", "assistant", "tool", "assistant", "exit")
    usage = {"prompt_tokens": 900, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 512}}
    for row, stamp in zip(rows, (100.0, 100.5, 103.0, 110.0, 112.0, 112.0), strict=True):
        row["extra"] = {"timestamp": 1_767_000_000 + stamp}
    rows[2]["extra"]["response"] = {"usage": usage, "created": 1}
    rows[4]["extra"]["response"] = {"usage": {"prompt_tokens": -4}}
    info = {"model_stats": {"api_calls": 2}, "config": {"model": {"model_name": "m"}}}
    whole = {"info": info, "messages": rows, "trajectory_format": "mini-swe-agent-1.1", "instance_id": "i-1"}
    path = write(tmp_path, whole, "x.traj.json", indent=2)
    (session,) = sessions_of(path).values()
    one, two = session.turns
    assert (session.session_id, one.model) == ("i-1", "m")
    assert (one.input_tokens, one.output_tokens, two.input_tokens, two.output_tokens) == (900, 40, None, 3)
    assert one.recorded is not None
    assert (one.recorded.e2e_s, one.recorded.cached_tokens) == (2.5, 512)
    assert two.delay_s == 7.0
    assert accounted(path, 6) == (
        {"answers": 2, "no_usage": 1, "prompts": 3, "usage_unreadable": 1},
        {"own_roles": 1},
    )


def test_only_the_time_of_a_response_bounds_the_pause(tmp_path: Path) -> None:
    rows = said("user", "assistant", "user", "assistant")
    for row, created in ((rows[1], 1_767_000_000), (rows[3], 1_767_000_009)):
        row["extra"] = {"response": {"created": created}}
    path = write(tmp_path, {"messages": rows, "info": {"mini_version": "1.0"}})
    assert [turn.delay_s for turn in sessions_of(path)["t"].turns] == [0.0, 9.0]
    assert accounted(path, 4)[0]["pauses_with_answer"] == 1


@needs_data
@pytest.mark.parametrize(("name", "turns", "messages"), [("github_issue", 10, 22), ("local", 2, 6)])
def test_published_mini_trajectories(name: str, turns: int, messages: int) -> None:
    assert DATA is not None
    path = Path(DATA, "mini-swe-agent", f"{name}.traj.json")
    rows = json.loads(path.read_text())
    (session,) = sessions_of(path).values()
    assert len(session.turns) == turns == sum(row["role"] == "assistant" for row in rows)
    assert prompts_of(session)[-1] == rows[: 2 * turns]
    accounted(path, messages)


# ------------------------------------------------------------------------------------------------------- OpenHands


def event(number: int, second: float, source: str, **fields: Any) -> Obj:
    return {"id": number, "timestamp": f"2026-01-05T10:00:{second:06.3f}", "source": source, "message": "", **fields}


def response(name: str, prompt_tokens: int, *calls: str) -> Obj:
    made = [{"id": call, "type": "function", "function": {"name": "run", "arguments": "{}"}} for call in calls]
    message = {"role": "assistant", "content": f"{name}.", "tool_calls": made or None, "function_call": None}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 7, "prompt_tokens_details": None}
    return {"id": name, "model": "m", "choices": [{"message": message}], "usage": usage}


def metadata(call: str, answer: Obj) -> Obj:
    return {"tool_call_metadata": {"function_name": "run", "tool_call_id": call, "model_response": answer}}


FIRST, SECOND, THIRD = response("r1", 300, "c1", "c2"), response("r2", 500, "c3"), response("r3", 200, "c4")
TOOLS = [{"type": "function", "function": {"name": "run"}}]
EVENTS = [
    event(0, 1, "agent", action="system", args={"content": "Be good.", "tools": TOOLS}),
    event(1, 1, "user", action="message", args={"content": "Fix it."}),
    event(2, 1, "environment", observation="agent_state_changed", content="", extras={"agent_state": "running"}),
    event(3, 4, "agent", action="run", args={"command": "ls"}, **metadata("c1", FIRST)),
    event(4, 5, "agent", observation="run", content="a.py", cause=3, **metadata("c1", FIRST)),
    event(5, 5, "agent", action="run", args={"command": "pwd"}, **metadata("c2", FIRST)),
    event(6, 6.5, "agent", observation="run", content="/w", cause=5, **metadata("c2", FIRST)),
    event(7, 9, "agent", action="edit", args={}, **metadata("c3", SECOND)),
    event(8, 9.5, "agent", observation="edit", content="done", cause=7, **metadata("c3", SECOND)),
    event(
        9,
        10,
        "agent",
        action="condensation",
        args={"forgotten_events_start_id": 3, "forgotten_events_end_id": 6, "summary": "Looked.", "summary_offset": 2},
    ),
    event(10, 12, "agent", action="finish", args={"final_thought": "ok"}, **metadata("c4", THIRD)),
]


def check_openhands(path: Path, name: str) -> None:
    assert taken_for(path) == "openhands"
    (session,) = sessions_of(path).values()
    assert session.session_id == name
    one, two, three = session.turns
    assert (one.tools, one.model) == (tuple(TOOLS), "m")
    assert [turn.input_tokens for turn in session.turns] == [300, 500, 200]
    assert (one.start_s, two.delay_s, three.delay_s) == (0.0, 2.5, 0.5)
    prompts = [[each["content"] for each in prompt] for prompt in prompts_of(session)]
    assert prompts == [
        ["Be good.", "Fix it."],
        ["Be good.", "Fix it.", "r1.", "a.py", "/w"],
        ["Be good.", "Fix it.", "Looked.", "r2.", "done"],
    ]
    assert [each.get("tool_call_id") for each in prompts_of(session)[1][3:]] == ["c1", "c2"]
    assert accounted(path, len(EVENTS))[1] == {"other_kinds": 2}


def test_actions_of_one_response_are_a_call(tmp_path: Path) -> None:
    check_openhands(write(tmp_path, EVENTS, "trajectory.json"), "trajectory")


def test_a_row_of_an_evaluation_holds_a_trajectory(tmp_path: Path) -> None:
    check_openhands(write(tmp_path, {"instance_id": "i-7", "history": EVENTS, "metrics": {}}, "output.jsonl"), "i-7")


def test_actions_without_their_response_are_put_together(tmp_path: Path) -> None:
    events = [
        event(0, 1, "user", action="message", args={"content": "Fix it."}),
        event(1, 2, "agent", action="run", args={"thought": "Look.", "command": "ls"}),
        event(2, 3, "agent", observation="run", content="a.py", cause=1),
        event(3, 4, "agent", action="message", args={"content": "Done."}),
        {"kind": "ActionEvent", "source": "agent"},
        event(4, 5, "agent", observation="run", content=None, cause=3),
    ]
    path = write(tmp_path, events, "t.json")
    (session,) = sessions_of(path).values()
    assert [each["content"] for each in prompts_of(session)[1]] == ["Fix it.", "Look.\nls", "a.py"]
    notes, dropped = accounted(path, 6)
    assert (notes["answer_guess"], dropped) == (1, {"broken": 2})


def test_logged_calls_are_sent_as_they_were(tmp_path: Path) -> None:
    """A file a call; what was sent is `messages`, whatever they were made from."""
    sent = said("user", "assistant", "user")
    for number, (messages, stamp) in enumerate(((sent[:1], 0.0), (sent, 9.0))):
        answer = {"message": {"role": "assistant", "content": sent[1]["content"] if number == 0 else "Done."}}
        usage = {"prompt_tokens": 100 + number, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
        call = {
            "messages": messages,
            "fncall_messages": said("system"),
            "response": {"model": "m", "choices": [answer], "usage": usage},
            "kwargs": {"tools": TOOLS},
            "timestamp": 1_767_000_000 + stamp,
        }
        (tmp_path / f"{9 - number}.json").write_text(json.dumps(call, indent=1))
    assert taken_for(tmp_path) == "openhands-completions"
    (session,) = sessions_of(tmp_path).values()
    assert [turn.input_tokens for turn in session.turns] == [100, 101]
    assert (session.turns[1].delay_s, session.turns[0].tools) == (9.0, tuple(TOOLS))
    assert [each["content"] for each in prompts_of(session)[1]] == ["user 0", "assistant 1", "user 2"]
    (tmp_path / "9.json").write_text('{"messages": 5, "response": {}, "kwargs": {}}')
    with pytest.raises(InputError, match=r"9\.json:1: messages: expected an array of messages"):
        open_workload(tmp_path)
