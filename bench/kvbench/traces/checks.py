"""Rules of the native trace format that one turn, with what came before it in its session, can break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kvbench.model import Message, SharedPrompt, TraceHeader, Turn
from kvbench.traces.lines import NESTED_FIELDS
from kvbench.traces.problems import ProblemLog

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PLAIN_ROLES = tuple(sorted(_ROLES))
"""A tuple: a role may be anything JSON has, hashable or not."""
_CONTENT_FIELDS = ("messages", "append", "hash_ids")


def check_shared_prompt(prompt: SharedPrompt, line: int, log: ProblemLog) -> None:
    _check_messages(prompt.messages, "messages", line, log)
    _check_tools(prompt.tools, line, log)
    if not prompt.messages and not prompt.tools:
        log.error(line, f'shared prompt "{prompt.name}" has neither messages nor tools', field="prefix")


def check_fields(turn: Turn, log: ProblemLog) -> None:
    """Which fields may stand together on one line."""
    line = turn.line
    messages, append, hash_ids = turn.messages, turn.append, turn.hash_ids
    if (messages is not None) + (append is not None) + (hash_ids is not None) != 1:
        given = [name for name in _CONTENT_FIELDS if getattr(turn, name) is not None]
        found = " and ".join(given) if given else "none"
        log.error(line, f"a turn has exactly one of messages, append and hash_ids; found {found}")
    if turn.turn == 0:
        _check_first_turn(turn, log)
    else:
        if turn.parent is not None:
            log.error(line, "only a session's turn 0 names its parent", field="parent")
        if turn.start_s is not None:
            log.error(line, "only a session's turn 0 has a start; later turns have delay_s", field="start_s")
    if turn.prefix is not None:
        if hash_ids is not None:
            log.error(line, "hash_ids stand for the whole prompt, a shared prompt included", field="prefix")
        elif turn.turn != 0 and messages is None:
            log.error(
                line,
                "a shared prompt opens a context: name it on turn 0, or with messages, which begin a new context",
                field="prefix",
            )
    if turn.keep_blocks is not None and hash_ids is None:
        log.error(line, "keep_blocks goes with hash_ids (which may be empty)", field="keep_blocks")
    if append:
        _check_messages(append, "append", line, log)
    if messages:
        _check_messages(messages, "messages", line, log)
    elif messages is not None and turn.prefix is None:
        log.error(line, "an empty context: messages must hold a message, or the line a prefix", field="messages")
    if turn.tools:
        _check_tools(turn.tools, line, log)


def _check_first_turn(turn: Turn, log: ProblemLog) -> None:
    if turn.parent is None:
        if turn.delay_s:
            log.error(turn.line, "a root session begins at start_s; it has nothing to wait for", field="delay_s")
    elif turn.start_s is not None:
        log.error(turn.line, "a child session starts delay_s after its parent's turn ended", field="start_s")


def check_blocks(turn: Turn, header: TraceHeader, previous_blocks: int, log: ProblemLog) -> int:
    """Check a content-free turn against the previous turn's number of ids; returns this turn's number."""
    if turn.hash_ids is None:
        return 0
    line, size = turn.line, header.block_size
    keep = turn.keep_blocks or 0
    if keep > previous_blocks:
        log.error(line, f"keeps {keep} blocks of a previous turn that has {previous_blocks}", field="keep_blocks")
    blocks = keep + len(turn.hash_ids)
    tokens = turn.input_tokens
    if size is None:
        log.error(line, 'hash_ids need "block_size" in the header (line 1)', field="hash_ids")
    elif tokens is None:
        log.error(line, "a turn with hash_ids has input_tokens", field="input_tokens")
    elif blocks not in (tokens // size, -(-tokens // size)):
        log.error(
            line,
            f"{blocks} block ids for {tokens} input tokens of block size {size}; expected {tokens // size}, or "
            f"{-(-tokens // size)} with the last, partial block",
            field="hash_ids",
        )
    return blocks


class Spelling:
    """Unknown fields are kept, as a source may have its own; one that is nearly a known field is a doubt, once."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def check(
        self, extra: Mapping[str, Any], known: Sequence[str], line: int, log: ProblemLog, inside: str = ""
    ) -> None:
        for name, value in extra.items():
            nested = NESTED_FIELDS.get(name)
            if nested is not None and isinstance(value, dict):
                self.check(value, nested, line, log, f"{name}.")
            elif (field := inside + name) not in self._asked:
                self._asked.add(field)
                for meant in get_close_matches(name.lower(), known, n=1, cutoff=0.82):
                    log.warning(line, f'unknown, and not used: is "{meant}" meant?', field=field)


class ToolCalls:
    """Tool calls not yet answered, a session each; sessions without any cost nothing. A doubt is a warning."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, None]] = {}

    def check(self, session: int, turn: Turn, log: ProblemLog) -> None:
        replaced = turn.messages is not None
        messages = turn.messages if replaced else turn.append
        if not messages:
            return
        pending: dict[str, None] = {} if replaced else self._open.pop(session, {})
        field = "messages" if replaced else "append"
        for index, message in enumerate(messages):
            if message.get("role") == "tool":
                call = message.get("tool_call_id")
                if not isinstance(call, str):
                    log.warning(turn.line, "a tool message without tool_call_id", field=f"{field}[{index}]")
                elif pending.pop(call, 0) == 0:
                    log.warning(turn.line, f'answers tool call "{call}", which is not open', field=f"{field}[{index}]")
                continue
            if pending:
                log.warning(turn.line, f"tool calls left unanswered: {', '.join(pending)}", field=f"{field}[{index}]")
                pending = {}
            calls = message.get("tool_calls")
            if isinstance(calls, list):
                ids = (call.get("id") for call in calls if isinstance(call, dict))
                pending.update((call_id, None) for call_id in ids if isinstance(call_id, str))
        if pending:
            self._open[session] = pending


def _check_messages(messages: Sequence[Message], field: str, line: int, log: ProblemLog) -> None:
    for index, message in enumerate(messages):
        if message.get("role") in _PLAIN_ROLES and type(message.get("content")) is str and "tool_calls" not in message:
            continue
        where = f"{field}[{index}]"
        role = message.get("role")
        if not isinstance(role, str) or not role:
            log.error(line, 'a message has a "role"', field=f"{where}.role", hint=f"one of {', '.join(sorted(_ROLES))}")
        elif role not in _ROLES:
            log.warning(line, f'unusual role "{role}"', field=f"{where}.role")
        _check_content(message, where, line, log)
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            log.error(line, "expected an array of objects", field=f"{where}.tool_calls")
        elif calls and any(not isinstance(call.get("id"), str) for call in calls):
            log.warning(line, "a tool call without an id cannot be answered", field=f"{where}.tool_calls")


def _check_content(message: Message, where: str, line: int, log: ProblemLog) -> None:
    content: Any = message.get("content")
    if isinstance(content, str):
        return
    if content is None:
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            log.warning(line, "no content; only an assistant message with tool_calls needs none", field=where)
        return
    if not isinstance(content, list):
        log.error(line, "expected a string, an array of parts, or null", field=f"{where}.content")
        return
    for number, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            log.error(line, 'a part is an object with a "type"', field=f"{where}.content[{number}]")


def _check_tools(tools: Sequence[dict[str, Any]], line: int, log: ProblemLog) -> None:
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") == "function" and not (
            isinstance(function, dict) and isinstance(function.get("name"), str)
        ):
            log.error(line, 'a function tool has a "function" with a "name"', field=f"tools[{index}].function")
