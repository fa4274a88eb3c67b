"""What a turn sends: append, messages, shared prompts, tools, models, block ids, live history."""

from typing import Any

from kvbench.model import Message, SharedPrompt, Turn
from kvbench.traces.context import ContextBuilder

SYSTEM: Message = {"role": "system", "content": "be brief"}
TOOL_A = {"type": "function", "function": {"name": "a"}}
TOOL_B = {"type": "function", "function": {"name": "b"}}
PREFIXES = {
    "p": SharedPrompt(name="p", messages=(SYSTEM,), tools=(TOOL_A,)),
    "q": SharedPrompt(name="q", messages=({"role": "system", "content": "be long"},)),
}


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def turn(number: int, **fields: Any) -> Turn:
    return Turn(session_id="s", turn=number, line=number + 2, **fields)


def test_append_adds_to_what_the_session_had() -> None:
    builder = ContextBuilder(PREFIXES)
    first = builder.next(turn(0, prefix="p", append=(said("user", "1"),)))
    second = builder.next(turn(1, append=(said("assistant", "2"), said("user", "3"))))
    assert first.messages == [SYSTEM, said("user", "1")]
    assert second.messages == [SYSTEM, said("user", "1"), said("assistant", "2"), said("user", "3")]
    assert (first.kept, second.kept) == (0, 2)
    assert second.tools == (TOOL_A,)
    assert second.prefix == "p"


def test_messages_replace_everything_the_shared_prompt_included() -> None:
    builder = ContextBuilder(PREFIXES)
    builder.next(turn(0, prefix="p", append=(said("user", "1"),)))
    replaced = builder.next(turn(1, messages=(said("user", "2"),)))
    assert replaced.messages == [said("user", "2")]
    assert (replaced.tools, replaced.prefix, replaced.kept) == ((), None, 0)
    named = builder.next(turn(2, prefix="p", messages=(said("user", "3"),)))
    assert named.messages == [SYSTEM, said("user", "3")]
    assert named.tools == (TOOL_A,)
    other = builder.next(turn(3, prefix="q", messages=()))
    assert other.messages == [said("system", "be long")]
    assert other.tools == ()


def test_tools_and_model_hold_until_others_are_given() -> None:
    builder = ContextBuilder(PREFIXES)
    builder.next(turn(0, prefix="p", model="m", append=()))
    own = builder.next(turn(1, tools=(TOOL_B,), append=()))
    assert (own.tools, own.model) == ((TOOL_B,), "m")
    assert builder.next(turn(2, append=())).tools == (TOOL_B,)
    assert builder.next(turn(3, messages=())).tools == (TOOL_B,)
    assert builder.next(turn(4, tools=(), append=())).tools == ()
    assert builder.next(turn(5, prefix="p", messages=(), model="n")).tools == (TOOL_A,)
    assert builder.next(turn(6, append=())).model == "n"


def test_messages_are_shared_and_lists_are_the_callers() -> None:
    builder = ContextBuilder(PREFIXES)
    user = said("user", "1")
    first = builder.next(turn(0, append=(user,)))
    second = builder.next(turn(1, append=()))
    assert first.messages is not None
    assert second.messages is not None
    assert first.messages is not second.messages
    assert first.messages[0] is second.messages[0] is user
    first.messages.clear()
    assert builder.next(turn(2, append=())).messages == [user]


def test_block_ids_keep_the_head_of_the_previous_turn() -> None:
    builder = ContextBuilder({})
    assert builder.next(turn(0, hash_ids=(1, 2, 3))).hash_ids == [1, 2, 3]
    kept = builder.next(turn(1, hash_ids=(7,), keep_blocks=2))
    assert (kept.hash_ids, kept.kept, kept.messages) == ([1, 2, 7], 2, None)
    assert builder.next(turn(2, hash_ids=(), keep_blocks=1)).hash_ids == [1]
    assert builder.next(turn(3, hash_ids=(9,))).hash_ids == [9]


def test_live_history_replaces_text_and_keeps_recorded_tool_calls() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}]
    recorded = {"role": "assistant", "content": "old", "reasoning_content": "why", "tool_calls": calls}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "r"}
    builder = ContextBuilder({})
    builder.next(turn(0, append=(said("user", "1"),)))
    builder.replace_last_assistant("new")
    context = builder.next(turn(1, append=(recorded, answer)))
    assert context.messages == [said("user", "1"), {"role": "assistant", "content": "new", "tool_calls": calls}, answer]
    assert recorded["content"] == "old"  # the trace's own message is untouched
    later = builder.next(turn(2, append=(said("assistant", "kept"), said("user", "2"))))
    assert later.messages is not None
    assert later.messages[1]["content"] == "new"  # what was sent stays sent
    assert later.messages[3]["content"] == "kept"  # used once only


def test_live_history_with_no_text_no_recorded_answer_or_a_new_context() -> None:
    builder = ContextBuilder({})
    builder.next(turn(0, append=(said("user", "1"),)))
    builder.replace_last_assistant("")
    calls = [{"id": "c1"}]
    context = builder.next(turn(1, append=({"role": "assistant", "content": "x", "tool_calls": calls},)))
    assert context.messages is not None
    assert context.messages[-1] == {"role": "assistant", "content": None, "tool_calls": calls}
    builder.replace_last_assistant("mine")
    context = builder.next(turn(2, append=(said("user", "2"),)))
    assert context.messages is not None
    assert context.messages[-2:] == [said("assistant", "mine"), said("user", "2")]
    builder.replace_last_assistant("lost")
    assert builder.next(turn(3, messages=(said("assistant", "summary"),))).messages == [said("assistant", "summary")]


def test_live_history_takes_the_reasoning_that_came_with_the_text() -> None:
    recorded = {"role": "assistant", "content": "old", "reasoning_content": "old why"}
    builder = ContextBuilder({})
    builder.next(turn(0, append=(said("user", "1"),)))
    builder.replace_last_assistant("new", "new why")
    context = builder.next(turn(1, append=(recorded, said("user", "2"))))
    assert context.messages is not None
    assert context.messages[1] == {"role": "assistant", "content": "new", "reasoning_content": "new why"}
    builder.replace_last_assistant("third", "")
    context = builder.next(turn(2, append=(said("user", "3"),)))
    assert context.messages is not None
    assert context.messages[3] == {"role": "assistant", "content": "third", "reasoning_content": ""}
