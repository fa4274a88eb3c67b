"""Requests with their full lists of messages become turns that send exactly those messages, at their times."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Session, TraceHeader, TurnRef
from kvbench.traces.context import ContextBuilder
from kvbench.traces.formats.base import Import, ImportOptions
from kvbench.traces.formats.calls import Call
from kvbench.traces.formats.conversation import Conversations
from kvbench.traces.formats.sink import NativeSink
from kvbench.traces.formats.thread import Thread
from kvbench.traces.index import index_trace
from kvbench.traces.native import TraceFile
from kvbench.traces.problems import ProblemLog

NOWHERE = Path("log.jsonl")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = [SYSTEM, user("one")]
SECOND = [*FIRST, said("1"), user("two")]
THIRD = [*SECOND, said("2"), user("three")]


def converted(*calls: Call) -> tuple[dict[str, Session], Import]:
    """Sessions by name, read back as a native trace under all of its rules."""
    log = ProblemLog(NOWHERE, strict=True)
    done = Import(NativeSink(), log, TraceHeader(name="t"), ImportOptions())
    conversations = Conversations(done)
    for call in calls:
        conversations.add(call)
    conversations.finish()
    done.sink.finish()
    index = index_trace(done.sink.stream, NOWHERE, log)
    with TraceFile(NOWHERE, done.sink.stream, index, [], source_lines=done.sink.source_lines) as opened:
        return {session.session_id: session for tree in opened.trees() for session in tree.sessions}, done


def sent(session: Session) -> list[list[dict[str, Any]]]:
    builder = ContextBuilder({})
    return [builder.next(turn).messages or [] for turn in session.turns]


def counted(done: Import) -> dict[str, int]:
    return {code: n for code, n in done.sink.notes.items() if n}


def test_a_named_session_appends_while_its_context_grows() -> None:
    sessions, done = converted(
        Call(line=1, session="s", messages=FIRST, start_s=1000.0, end_s=1002.0, output_tokens=5),
        Call(line=2, session="s", messages=SECOND, start_s=1005.5, end_s=1006.0, output_tokens=6),
        Call(line=3, session="s", messages=[SYSTEM, user("summary")], start_s=1006.25, end_s=1007.0, output_tokens=7),
    )
    first, second, third = sessions["s"].turns
    assert (first.start_s, first.append, first.output_tokens) == (0.0, tuple(FIRST), 5)
    assert (second.delay_s, second.append, second.messages) == (3.5, tuple(SECOND[2:]), None)
    assert (third.delay_s, third.append, third.messages) == (0.25, None, (SYSTEM, user("summary")))
    assert sent(sessions["s"]) == [FIRST, SECOND, [SYSTEM, user("summary")]]
    assert [turn.line for turn in sessions["s"].turns] == [1, 2, 3]
    assert first.recorded is not None
    assert first.recorded.e2e_s == 2.0
    assert counted(done) == {"replaced": 1}


def test_unnamed_requests_are_linked_by_what_they_go_on_from() -> None:
    other = [SYSTEM, user("else")]
    sessions, done = converted(
        Call(line=1, messages=FIRST, answer=said("1"), start_s=0.0, end_s=1.0),
        Call(line=2, messages=other, answer=said("x"), start_s=0.5, end_s=1.5),
        Call(line=3, messages=SECOND, answer=said("2"), start_s=4.0, end_s=5.0),
        Call(line=4, messages=[*other, said("x"), user("more")], start_s=4.5, end_s=6.0),
        Call(line=5, messages=THIRD, start_s=7.0, end_s=8.0),
    )
    assert {name: len(session.turns) for name, session in sessions.items()} == {"request1": 3, "request2": 2}
    assert sent(sessions["request1"]) == [FIRST, SECOND, THIRD]
    assert [turn.delay_s for turn in sessions["request1"].turns] == [0.0, 3.0, 2.0]
    assert (sessions["request2"].turns[0].start_s, sessions["request2"].turns[1].delay_s) == (0.5, 3.0)
    assert counted(done) == {"linked": 3, "no_output_length": 5}


def test_of_two_that_asked_the_same_the_one_whose_answer_is_in_the_history_goes_on() -> None:
    sessions, _ = converted(
        Call(line=1, messages=FIRST, answer=said("1 "), start_s=0.0, end_s=1.0),
        Call(line=2, messages=FIRST, answer=said("uno"), start_s=0.1, end_s=1.1),
        Call(line=3, messages=SECOND, start_s=2.0, end_s=3.0),
        Call(line=4, messages=[*FIRST, said("uno"), user("dos")], start_s=2.5, end_s=3.5),
    )
    assert [turn.line for turn in sessions["request1"].turns] == [1, 3]
    assert [turn.line for turn in sessions["request2"].turns] == [2, 4]


def test_another_answer_in_the_history_is_counted_and_so_is_a_history_without_a_beginning() -> None:
    sessions, done = converted(
        Call(line=1, messages=FIRST, answer=said("1"), start_s=0.0, end_s=1.0, output_tokens=1),
        Call(line=2, messages=[*FIRST, said("one"), user("two")], start_s=2.0, end_s=3.0, output_tokens=1),
        Call(line=3, messages=[SYSTEM, said("earlier"), user("on")], start_s=4.0, end_s=5.0, output_tokens=1),
    )
    assert [turn.line for turn in sessions["request1"].turns] == [1, 2]
    assert counted(done) == {"linked": 1, "answer_differs": 1, "mid_history": 1}


def test_of_those_that_asked_the_same_none_that_still_ran_goes_on() -> None:
    sessions, _ = converted(
        Call(line=1, messages=FIRST, answer=said("1"), start_s=0.0, end_s=1.0),
        Call(line=2, messages=FIRST, answer=said("1"), start_s=0.5, end_s=9.0),
        Call(line=3, messages=FIRST, answer=said("un"), start_s=0.5, end_s=9.0),
        Call(line=4, messages=[*FIRST, said("I"), user("two")], start_s=2.0, end_s=3.0),
    )
    assert [turn.line for turn in sessions["request1"].turns] == [1, 4]


def test_the_same_prompt_again_is_no_continuation_and_neither_is_an_older_state() -> None:
    sessions, done = converted(
        Call(line=1, messages=FIRST, start_s=0.0, end_s=1.0),
        Call(line=2, messages=FIRST, start_s=2.0, end_s=3.0),
        Call(line=3, messages=SECOND, start_s=4.0, end_s=5.0),
        Call(line=4, messages=[*FIRST, said("1"), user("other")], start_s=6.0, end_s=7.0),
        Call(line=5, messages=[*FIRST, said("1"), user("third")], start_s=8.0, end_s=9.0),
    )
    lines = {name: [turn.line for turn in session.turns] for name, session in sessions.items()}
    assert lines == {"request1": [1, 4], "request2": [2, 3], "request5": [5]}, "the latest first, then the one left"
    assert counted(done)["linked"] == 2


def test_requests_that_ran_at_once_are_sub_agents_that_the_next_one_waits_for() -> None:
    left, right = [SYSTEM, user("look left")], [SYSTEM, user("look right")]
    sessions, done = converted(
        Call(line=1, session="s", messages=FIRST, start_s=0.0, end_s=2.0),
        Call(line=2, session="s", messages=left, start_s=2.5, end_s=5.0),
        Call(line=3, session="s", messages=right, start_s=2.75, end_s=6.0),
        Call(line=4, session="s", messages=SECOND, start_s=7.0, end_s=8.0),
    )
    main, branch = sessions["s"], sessions["s.1"]
    assert sent(main) == [FIRST, left, SECOND]
    assert (branch.turns[0].parent, branch.turns[0].delay_s) == (TurnRef("s", 0), 0.75)
    assert (main.turns[2].after, main.turns[2].delay_s) == (("s.1",), 1.0), "7 s less the end of what ran longest, 6 s"
    assert {"branches": 1, "joined": 1, "replaced": 2}.items() <= counted(done).items()


def test_of_several_agents_in_a_session_the_first_is_the_session_and_the_others_its_sub_agents() -> None:
    ask = [{"role": "system", "content": "You look."}, user("look")]
    sessions, done = converted(
        Call(line=1, session="s", agent="lead", messages=FIRST, start_s=0.0, end_s=1.0),
        Call(line=2, session="s", agent="scout", messages=ask, start_s=2.0, end_s=3.0),
        Call(line=3, session="s", agent="scout", messages=[*ask, said("a"), user("more")], start_s=4.0, end_s=5.0),
        Call(line=4, session="s", agent="lead", messages=SECOND, start_s=7.0, end_s=8.0),
        Call(line=5, session="s", agent="scout", messages=ask, start_s=9.0, end_s=10.0),
    )
    assert sent(sessions["s"]) == [FIRST, SECOND]
    assert [turn.append for turn in sessions["s"].turns] == [tuple(FIRST), tuple(SECOND[2:])]
    assert (sessions["s"].turns[1].after, sessions["s"].turns[1].delay_s) == (("s.1",), 2.0)
    assert [turn.line for turn in sessions["s.1"].turns] == [2, 3]
    assert sessions["s.1"].turns[0].parent == TurnRef("s", 0)
    assert sessions["s.2"].turns[0].parent == TurnRef("s", 1), "what was waited for is not gone on with"
    assert counted(done) == {"branches": 2, "joined": 1, "not_joined": 1, "no_output_length": 5}


def test_a_sub_agent_starts_from_the_call_that_ended_last_and_is_joined_when_it_ended() -> None:
    ask = [SYSTEM, user("which?")]
    sessions, done = converted(
        Call(line=1, session="s", messages=FIRST, start_s=100.0, end_s=101.0),
        Call(line=2, session="a", parent="s", messages=ask, start_s=101.5, end_s=102.0),
        Call(line=3, session="a", parent="s", messages=[*ask, said("b"), user("sure?")], start_s=103.0, end_s=104.0),
        Call(line=4, session="s", messages=SECOND, start_s=104.5, end_s=105.0),
        Call(line=5, session="b", parent="s", messages=ask, start_s=105.5, end_s=110.0),
        Call(line=6, session="s", messages=THIRD, start_s=106.0, end_s=107.0),
        Call(line=7, session="c", parent="missing", messages=ask, start_s=108.0, end_s=109.0),
    )
    assert (sessions["a"].turns[0].parent, sessions["a"].turns[0].delay_s) == (TurnRef("s", 0), 0.5)
    assert [turn.after for turn in sessions["s"].turns] == [(), ("a",), ()]
    assert sessions["s"].turns[1].delay_s == 0.5
    assert sessions["b"].turns[0].parent == TurnRef("s", 1)
    assert sessions["c"].turns[0].start_s == 8.0
    assert {"joined": 1, "not_joined": 1, "own_root": 1}.items() <= counted(done).items()
    assert done.sink.sub_agents == 2


def test_weak_names_are_of_one_session_where_their_requests_go_on_from_each_other() -> None:
    sessions, done = converted(
        Call(line=1, session="t1", weak=True, messages=FIRST, start_s=0.0, end_s=1.0),
        Call(line=2, session="t2", weak=True, messages=SECOND, start_s=3.0, end_s=4.0),
        Call(line=3, session="t2", weak=True, messages=[user("title?")], start_s=4.5, end_s=5.0),
        Call(line=4, session="t3", weak=True, messages=[user("unrelated")], start_s=5.0, end_s=6.0),
    )
    assert {name: [turn.line for turn in session.turns] for name, session in sessions.items()} == {
        "t1": [1, 2, 3],
        "t3": [4],
    }
    assert counted(done)["linked"] == 1


def test_clocks_that_disagree_are_clipped_and_counted() -> None:
    sessions, done = converted(
        Call(line=1, session="s", messages=FIRST, start_s=0.0, end_s=3.0),
        Call(line=2, session="s", messages=SECOND, start_s=2.5, end_s=4.0),
    )
    assert [turn.delay_s for turn in sessions["s"].turns] == [0.0, 0.0]
    assert counted(done)["clipped_pauses"] == 1


def test_without_ends_a_pause_holds_the_answer_and_without_times_there_is_none() -> None:
    sessions, done = converted(
        Call(line=1, session="s", messages=FIRST, start_s=10.0),
        Call(line=2, session="s", messages=SECOND, start_s=25.0),
    )
    assert [turn.delay_s for turn in sessions["s"].turns] == [0.0, 15.0]
    assert counted(done)["pauses_with_answer"] == 1
    sessions, done = converted(Call(line=1, session="s", messages=FIRST), Call(line=2, session="s", messages=SECOND))
    assert sent(sessions["s"]) == [FIRST, SECOND]
    assert "none in the source" in done.facts["times"]
    assert counted(done).keys() == {"no_output_length"}


def test_lengths_without_text_share_nothing() -> None:
    sessions, done = converted(
        Call(line=1, session="s", input_tokens=130, output_tokens=9, start_s=0.0, end_s=1.0),
        Call(line=2, session="s", input_tokens=64, output_tokens=0, start_s=2.0, end_s=3.0),
        Call(line=3, input_tokens=65, output_tokens=1, start_s=2.5, end_s=3.0),
        Call(line=4, start_s=2.5, end_s=3.0),
    )
    assert [turn.hash_ids for turn in sessions["s"].turns] == [(1, 2, 3), (4,)]
    assert [turn.keep_blocks for turn in sessions["s"].turns] == [None, None]
    assert sessions["request3"].turns[0].hash_ids == (5, 6)
    assert done.block_size == 64
    assert counted(done) == {"no_text": 3, "zero_output": 1}
    assert (done.sink.dropped["no_prompt"], done.sink.dropped_lines[0].line) == (1, 4)


def test_tools_and_model_are_told_when_they_change() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    turned = {"function": {"name": "f"}, "type": "function"}
    sessions, _ = converted(
        Call(line=1, session="s", messages=FIRST, tools=[tool], model="m", start_s=0.0),
        Call(line=2, session="s", messages=SECOND, tools=[tool], model="m", start_s=1.0),
        Call(line=3, session="s", messages=THIRD, tools=[turned], model="n", start_s=2.0),
        Call(line=4, session="s", messages=[*THIRD, said("3"), user("four")], start_s=3.0),
    )
    tools = [turn.tools for turn in sessions["s"].turns]
    assert tools == [(tool,), None, (turned,), ()], "an endpoint may send them on in their order: a prompt of its own"
    assert json.dumps(tools[2]) == json.dumps((turned,))
    assert [turn.model for turn in sessions["s"].turns] == ["m", None, "n", None]


CONVERSATION = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)


@given(st.lists(CONVERSATION, min_size=1, max_size=12), st.randoms())
def test_every_request_is_sent_as_it_was_whatever_the_order_of_the_records_and_whoever_made_them(
    texts: list[list[str]], chance: random.Random
) -> None:
    parents = {"s": None, "t": "s", "u": "t", "w": "w", "x": "y", "y": "x"}
    calls = []
    for number, each in enumerate(texts):
        session = chance.choice([*parents, None])
        start_s = float(chance.randrange(8))
        calls.append(
            Call(
                line=number + 1,
                messages=[user(text) if at % 2 == 0 else said(text) for at, text in enumerate(each)],
                answer=said(chance.choice("abc")) if chance.random() < 0.5 else None,
                session=session,
                weak=session in ("u", "w"),
                parent=parents[session] if session is not None else None,
                agent=chance.choice(["lead", "scout", None]),
                start_s=start_s,
                end_s=start_s + chance.randrange(4) if chance.random() < 0.7 else None,
            )
        )
    wanted = Counter(json.dumps(call.messages) for call in calls)
    shuffled = list(calls)
    chance.shuffle(shuffled)
    results = []
    for order in (calls, shuffled):
        copies = [Call(**{name: getattr(call, name) for name in call.__struct_fields__}) for call in order]
        sessions, done = converted(*copies)
        assert Counter(json.dumps(prompt) for each in sessions.values() for prompt in sent(each)) == wanted
        notes = counted(done)
        notes.pop("out_of_order", None)
        results.append((sorted(len(each.turns) for each in sessions.values()), notes))
    assert results[0] == results[1]


def test_a_thread_may_be_written_turn_by_turn() -> None:
    thread, notes = Thread("s"), Counter[str]()
    first = thread.turn(Call(line=4, messages=FIRST), notes, start_s=1.5)
    second = thread.turn(Call(line=9, messages=SECOND), notes, delay_s=0.25, after=("a",))
    assert (first.turn, first.start_s, first.append) == (0, 1.5, tuple(FIRST))
    assert (second.turn, second.line, second.after, second.append) == (1, 9, ("a",), tuple(SECOND[2:]))
