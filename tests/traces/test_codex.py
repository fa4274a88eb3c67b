"""Codex rollouts and exec events: a call ends at its token count; lengths are the last usage's."""

import json
import os
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


def line(second: float, kind: str, **payload: Any) -> Obj:
    return {"timestamp": f"2026-01-05T10:00:{second:06.3f}Z", "type": kind, "payload": payload}


def item(second: float, kind: str, **payload: Any) -> Obj:
    return line(second, "response_item", type=kind, **payload)


def said(second: float, role: str, text: str) -> Obj:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(second, "message", role=role, content=[{"type": kind, "text": text}])


def counted(second: float, total: tuple[int, int, int], last: tuple[int, int, int]) -> Obj:
    names = ("input_tokens", "cached_input_tokens", "output_tokens")
    usage = [dict(zip(names, counts, strict=True)) for counts in (total, last)]
    return line(
        second, "event_msg", type="token_count", info={"total_token_usage": usage[0], "last_token_usage": usage[1]}
    )


META = line(1, "session_meta", id="S", base_instructions={"text": "Be good."})
ROLLOUT = [
    META,
    line(1, "turn_context", model="m1"),
    said(1, "user", "Go."),
    line(1, "event_msg", type="user_message", message="Go."),
    item(3, "reasoning", summary=[{"type": "summary_text", "text": "s"}], content=None, encrypted_content="x"),
    said(4, "assistant", "I look."),
    item(5, "function_call", name="sh", arguments='{"c":1}', call_id="c1"),
    item(5, "custom_tool_call", name="patch", input="*** Begin", call_id="c2"),
    counted(5.5, (100, 0, 20), (100, 0, 20)),
    counted(5.6, (100, 0, 20), (100, 0, 20)),
    item(6, "function_call_output", call_id="c1", output="one"),
    item(9, "custom_tool_call_output", call_id="c2", output=json.dumps({"output": "two"})),
    said(12, "assistant", "Done."),
    counted(12.5, (260, 96, 25), (160, 96, 5)),
]


def accounted(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Notes, and what was left out; every line is in one of them."""
    with open_workload(path) as opened:
        report = opened.imported
    assert report is not None
    used = sum(report.notes.get(f"{what}_lines", 0) for what in ("answer", "prompt", "setting", "usage"))
    assert report.units == used + sum(report.dropped.values()) == len(path.read_text().splitlines())
    return report.notes, report.dropped


def test_a_call_is_what_came_back_until_its_token_count(tmp_path: Path) -> None:
    path = write(tmp_path, ROLLOUT)
    (session,) = sessions_of(path).values()
    one, two = session.turns
    assert (session.session_id, one.model, one.line, two.line) == ("S", "m1", 5, 13)
    assert (one.input_tokens, one.output_tokens, two.input_tokens, two.output_tokens) == (100, 20, 160, 5)
    assert (one.start_s, two.delay_s) == (0.0, 4.0)
    assert two.recorded is not None
    assert (two.recorded.at_s, two.recorded.e2e_s, two.recorded.cached_tokens) == (8.0, 3.0, 96)
    first, second = prompts_of(session)
    assert first == [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Go."}]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": '{"c":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "patch", "arguments": '{"input":"*** Begin"}'}},
    ]
    assert second[2:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": '{"output": "two"}'},
    ]
    notes, dropped = accounted(path)
    assert dropped == {"other_kinds": 2}
    assert notes == {
        "answer_lines": 5,
        "prompt_lines": 3,
        "setting_lines": 2,
        "thinking_hidden": 1,
        "usage_lines": 2,
    }


def test_results_that_come_before_the_count_belong_to_the_next_call(tmp_path: Path) -> None:
    early = [*ROLLOUT[:8], ROLLOUT[10], ROLLOUT[8], ROLLOUT[11], *ROLLOUT[12:]]
    made = sessions_of(write(tmp_path, early))["S"]
    assert prompts_of(made) == prompts_of(sessions_of(write(tmp_path, ROLLOUT))["S"])
    assert [turn.input_tokens for turn in made.turns] == [100, 160]


def test_a_log_without_counts_has_a_call_wherever_something_was_sent(tmp_path: Path) -> None:
    path = write(tmp_path, [each for each in ROLLOUT if each["payload"].get("type") != "token_count"])
    (session,) = sessions_of(path).values()
    assert [turn.input_tokens for turn in session.turns] == [None, None]
    # "I look." and two calls: 7 + 2 + 7 + 5 + 21 characters; "Done.": 5.
    assert [turn.output_tokens for turn in session.turns] == [11, 2]
    assert accounted(path)[0]["no_usage"] == 2


def test_a_compacted_context_is_replaced(tmp_path: Path) -> None:
    history = [said(0, "user", "Go.")["payload"], said(0, "user", "So far: looked.")["payload"]]
    more = [
        counted(13, (300, 96, 30), (40, 0, 5)),
        line(14, "compacted", message="", replacement_history=history),
        said(15, "user", "On."),
        said(16, "assistant", "Ok."),
        counted(17, (330, 96, 31), (30, 0, 1)),
        line(18, "compacted", message="Summary."),
        said(19, "user", "More."),
        said(20, "assistant", "Ok."),
        counted(21, (350, 96, 32), (20, 0, 1)),
    ]
    path = write(tmp_path, ROLLOUT + more)
    prompts = prompts_of(sessions_of(path)["S"])
    assert [each["content"] for each in prompts[2]] == ["Be good.", "Go.", "So far: looked.", "On."]
    assert [each["content"] for each in prompts[3]] == ["Be good.", "Summary.", "More."]
    notes, dropped = accounted(path)
    assert (notes["replaced"], notes["compacted_guess"], dropped["usage_only"]) == (2, 1, 1)


def test_turns_that_were_rolled_back_are_gone(tmp_path: Path) -> None:
    def asked(second: float, text: str) -> list[Obj]:
        return [said(second, "user", text), line(second, "event_msg", type="user_message", message=text)]

    more = [
        *asked(20, "Wrong."),
        said(21, "assistant", "No."),
        counted(21, (360, 96, 26), (100, 0, 1)),
        line(22, "event_msg", type="thread_rolled_back", num_turns=1),
        *asked(23, "Right."),
        said(24, "assistant", "Yes."),
        counted(24, (460, 96, 27), (100, 0, 1)),
    ]
    path = write(tmp_path, ROLLOUT + more)
    assert [each["content"] for each in prompts_of(sessions_of(path)["S"])[3]][-2:] == ["Done.", "Right."]
    accounted(path)


def test_totals_that_grow_by_more_than_the_last_call_tell_of_calls_that_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path, [*ROLLOUT[:-1], counted(12.5, (900, 96, 25), (160, 96, 5))])
    assert accounted(path)[0]["usage_gaps"] == 1
    assert [turn.input_tokens for turn in sessions_of(path)["S"].turns] == [100, 160]


def test_more_cached_than_sent_is_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path, [*ROLLOUT[:-1], counted(12.5, (260, 200, 25), (160, 200, 5))])
    _, two = sessions_of(path)["S"].turns
    assert two.recorded is not None
    assert (two.input_tokens, two.recorded.cached_tokens, two.output_tokens) == (None, None, 5)
    assert accounted(path)[0]["usage_cached_above_input"] == 1


def test_a_sub_agents_rollout_starts_after_a_call_of_its_parents(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "S"}}}
    agent = [
        line(6, "session_meta", id="A", source=source, base_instructions={"text": "Help."}),
        said(6.5, "user", "Look."),
        said(8, "assistant", "Seen."),
        counted(8, (9, 0, 2), (9, 0, 2)),
    ]
    write(tmp_path, agent, "s/2026/a.jsonl")
    write(tmp_path, ROLLOUT, "s/2026/z.jsonl")
    made = sessions_of(tmp_path / "s")
    assert (made["A"].turns[0].parent, made["A"].turns[0].delay_s) == (TurnRef("S", 0), 1.5)
    with open_workload(tmp_path / "s") as opened:
        assert opened.imported is not None
        assert (opened.imported.sub_agents, opened.imported.files) == (1, 2)


def test_a_fork_does_not_repeat_the_calls_it_copied(tmp_path: Path) -> None:
    """A copy of all lines under a name of its own, written later, which goes on."""
    later = [{**each, "timestamp": each["timestamp"].replace("10:00", "10:05")} for each in ROLLOUT[1:]]
    fork = [
        line(299, "session_meta", id="F", forked_from_id="S", base_instructions={"text": "Be good."}),
        *later,
        said(320, "user", "More."),
        said(321, "assistant", "Ok."),
        counted(321, (400, 96, 26), (140, 0, 1)),
    ]
    for each in (fork[0], *fork[-3:]):
        each["timestamp"] = each["timestamp"].replace("10:00:299", "10:04:59").replace("10:00:32", "10:05:2")
    write(tmp_path, ROLLOUT, "s/b.jsonl")
    path = write(tmp_path, fork, "s/a.jsonl")
    made = sessions_of(tmp_path / "s")
    assert {name: len(session.turns) for name, session in made.items()} == {"S": 2, "F": 1}
    said_ = [each["content"] for each in prompts_of(made["F"])[0]]
    assert said_ == ["Be good.", "Go.", "I look.", "one", '{"output": "two"}', "Done.", "More."]
    with open_workload(tmp_path / "s") as opened:
        report = opened.imported
    assert report is not None
    # Five items that came back, three that were sent, two counts.
    assert report.dropped["repeated_call"] == 10
    used = sum(report.notes[f"{what}_lines"] for what in ("answer", "prompt", "setting", "usage"))
    assert report.units == used + sum(report.dropped.values()) == len(ROLLOUT) + len(fork)
    (alone,) = sessions_of(path).values()
    assert len(alone.turns) == 3, "without the session it was forked from, its calls are its own"


def test_what_is_not_as_expected_is_left_out_with_its_line(tmp_path: Path) -> None:
    negative = {"input_tokens": -1}
    bad: list[Any] = [
        [],
        {"timestamp": "noon", "type": "response_item", "payload": {}},
        {"timestamp": None, "type": "response_item", "payload": "x"},
        item(30, "message", role=5, content=[]),
        item(30, "message", role="user", content=7),
        item(30, "ghost_snapshot"),
        line(
            30,
            "event_msg",
            type="token_count",
            info={"total_token_usage": negative, "last_token_usage": {}},
        ),
        said(31, "user", "Bye."),
        item(32, "reasoning", summary=[], content=None),
    ]
    path = write(tmp_path, ROLLOUT + bad)
    with path.open("a") as file:
        file.write('{"timestamp": "2026-01-05T10:')
    _, dropped = accounted(path)
    assert dropped == {"broken": 5, "no_object": 2, "other_kinds": 3, "unanswered": 1, "unfinished": 1}
    with open_workload(path) as opened:
        assert opened.imported is not None
        told = {each.line: each.reason for each in opened.imported.dropped_lines}
    assert told[15] == "expected a JSON object, got array"
    assert told[16].startswith('timestamp: "noon" is no time')
    assert told[19] == "payload.content: expected text or an array of parts"
    assert told[21] == "payload.info.total_token_usage.input_tokens: expected a number of tokens"
    assert told[24] == "the line ends inside its JSON"


def test_a_rollout_without_a_call_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ROLLOUT[:4])
    assert taken_for(path) == "codex"
    with pytest.raises(InputError, match="no call to a model in it"):
        open_workload(path)


# ------------------------------------------------------------------------------------------------------ exec events


def test_exec_turns_of_one_call_keep_their_lengths(tmp_path: Path) -> None:
    usage = {"input_tokens": 130, "cached_input_tokens": 64, "output_tokens": 9}
    tool = {"type": "item.completed", "item": {"type": "command_execution", "command": "ls"}}
    path = write(
        tmp_path,
        [
            {"type": "thread.started", "thread_id": "T"},
            {"type": "turn.started"},
            {"type": "item.completed", "item": {"type": "agent_message", "text": "4"}},
            {"type": "turn.completed", "usage": usage},
            {"type": "turn.started"},
            tool,
            {"type": "turn.completed", "usage": {**usage, "input_tokens": 900}},
            {"type": "turn.started"},
            {"type": "turn.completed", "usage": {**usage, "input_tokens": 200}},
        ],
    )
    assert taken_for(path) == "codex-exec"
    (session,) = sessions_of(path).values()
    assert session.session_id == "T"
    assert [(turn.turn, turn.input_tokens, turn.hash_ids) for turn in session.turns] == [
        (0, 130, (1, 2, 3)),
        (1, 200, (4, 5, 6, 7)),
    ]
    _, dropped = accounted(path)
    assert dropped == {"other_kinds": 6, "several_calls": 1}


@needs_data
def test_rounds_derived_by_others_from_the_same_rollout() -> None:
    """The sample is the head of a session: three whole rounds of nine."""
    assert DATA is not None
    folder = Path(DATA, "tracelab")
    rounds = [json.loads(raw) for raw in (folder / "derived_round_trace.jsonl").read_text().splitlines()]
    truth = [obj for obj in rounds if obj["provider"] == "codex"][:3]
    path = folder / "codex_session_head.jsonl"
    (session,) = sessions_of(path).values()
    assert [
        (turn.input_tokens, turn.recorded.cached_tokens, turn.output_tokens) for turn in session.turns if turn.recorded
    ] == [(obj["input_tokens_total"], obj["prefix_tokens"], obj["output_tokens"]) for obj in truth]
    for turn, obj in zip(session.turns[1:], truth[1:], strict=True):
        results = [message for message in turn.append or () if message["role"] == "tool"]
        assert len(results) == obj["current_tool_result_count"]
    notes, dropped = accounted(path)
    assert dropped == {"other_kinds": 5, "unanswered": 1, "unfinished": 1}
    assert "usage_gaps" not in notes


@needs_data
@pytest.mark.parametrize(
    ("name", "tokens", "why"),
    [
        ("thread_basic", (12, 9), None),
        ("thread_auto_run_step1", (8, 1), None),
        ("thread_error_retry_then_completed", (8, 5), None),
        ("thread_early_exit", None, "0 failed, 1 without usage"),
        ("thread_error_rate_limit", None, "1 failed, 0 without usage"),
    ],
)
def test_published_exec_threads(name: str, tokens: tuple[int, int] | None, why: str | None) -> None:
    assert DATA is not None
    path = Path(DATA, "codex", f"{name}.jsonl")
    if tokens is None:
        with pytest.raises(InputError, match=f"no turn that is one call: {why}"):
            open_workload(path)
        assert len(validate_workload(path).errors) == 1
    else:
        (session,) = sessions_of(path).values()
        assert [(turn.input_tokens, turn.output_tokens) for turn in session.turns] == [tokens]
        accounted(path)
