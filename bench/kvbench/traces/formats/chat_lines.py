"""Whole conversations without times, one a line or array element: OpenAI messages (fine-tuning files, say), ShareGPT.

Each answer in a conversation was a request: it sent all that stands before the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from kvbench.model import Message, Turn
from kvbench.traces.formats.answers import json_of
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.messages import NOTES as MESSAGE_NOTES
from kvbench.traces.formats.messages import assistant, chat_messages, chat_tools, function_call
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import LineError

_ASKING = frozenset({"user", "tool", "function"})
"""Roles of messages that a model is asked to answer."""

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "tool": "result",
    "observation": "result",
    "function_response": "result",
}

_NOTES = MESSAGE_NOTES | {
    "answer_lengths": "answers in the source: {n} (their lengths in tokens are not said, so the model decides, unless "
    "--output says)",
    "unanswered": "requests at a conversation's end that the source has no answer to: {n} (sent all the same)",
    "answer_in_parts": "answers of several messages: {n} (one request each)",
    "opening": "conversations that an answer opens: {n} (sent as history)",
    "tool_as_user": "tool results that no call stands before: {n} (sent as user messages)",
    "call_ids": "tool calls without an id: {n} (numbered)",
    "no_request": "conversations in which nothing is asked: {n}",
    "unknown_role": "conversations with a role that is not known: {n}",
}


class UnknownRoleError(LineError):
    """A message of whom, is not known: what it is to be sent as, neither."""

    def __init__(self, role: str, field: str) -> None:
        super().__init__(f'unknown role "{role}"; known: {", ".join(sorted(SHAREGPT_ROLES))}', field=field)
        self.role = role


class Conversation(msgspec.Struct):
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    name: str | None = None
    model: str | None = None


class ConversationConverter:
    """The conversations of a source, in order. read: makes one of its object, or raises LineError."""

    def __init__(self, target: Import, read: Callable[[dict[str, Any], Counter[str]], Conversation]) -> None:
        self._import = target
        self._sink = target.sink
        self._read = read
        self._roles: Counter[str] = Counter()
        self._sink.header(target.header)

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            self._import.units += 1
            notes: Counter[str] = Counter()
            try:
                conversation = self._read(obj, notes)
            except UnknownRoleError as error:
                self._roles[error.role] += 1
                self._import.drop("unknown_role", line, f"{error.field}: {error.message}")
            except LineError as error:
                self._import.error(line, error)
            else:
                self._sink.notes.update(notes)
                self._write(conversation, line)

    def end(self) -> None:
        self._import.facts["times"] = (
            "none in the source: all conversations start at once, unless --sessions or --rate spread them, and turns "
            "follow without a pause"
        )
        self._import.facts["sessions"] = "one a conversation"
        if self._roles:
            named = (f'"{role}" ({count:,})' for role, count in sorted(self._roles.items())[:20])
            self._import.facts["unknown roles"] = ", ".join(named)

    def _write(self, conversation: Conversation, line: int) -> None:
        prompts = requests_of(conversation.messages, self._sink.notes)
        if not prompts:
            self._import.drop("no_request", line, "no message that asks for an answer")
            return
        name = self._sink.name(conversation.name or f"conversation{self._import.units}")
        for number, messages in enumerate(prompts):
            self._sink.turn(
                Turn(
                    session_id=name,
                    turn=number,
                    line=line,
                    start_s=0.0 if number == 0 else None,
                    append=tuple(messages),
                    tools=tuple(conversation.tools) if conversation.tools and number == 0 else None,
                    model=conversation.model if number == 0 else None,
                )
            )


def requests_of(messages: list[Message], notes: Counter[str]) -> list[list[Message]]:
    """What each request of a conversation adds to the one before: the k-th sends all before the k-th answer.

    Text after nothing but a system prompt is a greeting that no model was asked for; a tool call is not.
    """
    out: list[list[Message]] = []
    added: list[Message] = []
    asked = opened = False
    previous = ""
    for message in messages:
        role = message["role"]
        if role == "assistant":
            acted = bool(message.get("tool_calls")) and bool(added) and previous != "assistant"
            if asked or acted:
                out.append(added)
                notes["answer_lengths"] += 1
                added, asked = [], False
            elif previous == "assistant" and out:
                notes["answer_in_parts"] += 1
            elif not out and not opened:
                notes["opening"] += 1
                opened = True
        asked = asked or role in _ASKING
        added.append(message)
        previous = role
    if asked:
        out.append(added)
        notes["unanswered"] += 1
    return out


def _openai(obj: dict[str, Any], notes: Counter[str]) -> Conversation:
    messages = chat_messages(obj.get("messages"), notes, system=obj.get("system"))
    tools = obj.get("tools")
    if tools is None and isinstance(obj.get("functions"), list):
        tools = [{"type": "function", "function": function} for function in obj["functions"]]
    return Conversation(
        messages, chat_tools(json_of(tools, "tools", notes), notes), _name(obj), _text(obj.get("model"))
    )


def _sharegpt(obj: dict[str, Any], notes: Counter[str]) -> Conversation:
    field = "conversations" if "conversations" in obj else "conversation"
    said = obj.get(field)
    if not isinstance(said, list):
        raise LineError("expected an array of messages", field=field)
    messages: list[Message] = []
    if _text(obj.get("system")):
        messages.append({"role": "system", "content": obj["system"]})
    pending: list[str] = []
    calls = 0
    for index, each in enumerate(said):
        where = f"{field}[{index}]"
        role, value = _said(each, where)
        kind = SHAREGPT_ROLES.get(role.lower())
        if kind is None:
            raise UnknownRoleError(role[:40], f"{where}.from")
        if kind == "call":
            made = []
            for name, arguments in _calls(value, f"{where}.value"):
                calls += 1
                pending.append(f"call_{calls}")
                made.append(function_call(pending[-1], name, arguments))
            notes["call_ids"] += len(made)
            messages.append(assistant([], made))
        elif kind == "result" and pending:
            messages.append({"role": "tool", "tool_call_id": pending.pop(0), "content": value})
        else:
            notes["tool_as_user"] += kind == "result"
            messages.append({"role": "user" if kind == "result" else kind, "content": value})
    return Conversation(messages, chat_tools(json_of(obj.get("tools"), "tools", notes), notes), _name(obj))


def _said(each: Any, where: str) -> tuple[str, str]:
    if not isinstance(each, dict):
        raise LineError('expected an object with "from" and "value"', field=where)
    role, value = each.get("from", each.get("role")), each.get("value", each.get("content"))
    if not isinstance(role, str):
        raise LineError("missing; who says it", field=f"{where}.from")
    if not isinstance(value, str):
        raise LineError("expected text", field=f"{where}.value")
    return role, value


def _calls(value: str, field: str) -> list[tuple[Any, Any]]:
    called = json_of(value, field)
    called = called if isinstance(called, list) else [called]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in called):
        raise LineError('expected JSON of a call, {"name": ..., "arguments": ...}', field=field)
    return [(call["name"], call.get("arguments")) for call in called]


def _name(obj: dict[str, Any]) -> str | None:
    given = next(
        (obj[name] for name in ("id", "conversation_id", "session_id") if obj.get(name) not in (None, "")), None
    )
    return str(given) if isinstance(given, (str, int)) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_openai(head: Head) -> bool:
    fields = head.fields()
    others = {"timestamp", "delay", "body", "turn", "turns", "startTime", "input_length", "hash_ids", "conversations"}
    return "messages" in fields and not fields & (others | {"kvbench_trace", "prefix", "info", "trajectory", "history"})


def _is_sharegpt(head: Head) -> bool:
    fields = head.fields()
    return bool(fields & {"conversations", "conversation"}) and not fields & {"kvbench_trace", "turns", "timestamp"}


OPENAI_MESSAGES = Format(
    name="openai-messages",
    about="OpenAI messages",
    unit="conversation",
    matches=_is_openai,
    converter=lambda target: ConversationConverter(target, _openai),
    notes=_NOTES,
)
SHAREGPT = Format(
    name="sharegpt",
    about="ShareGPT",
    unit="conversation",
    matches=_is_sharegpt,
    converter=lambda target: ConversationConverter(target, _sharegpt),
    notes=_NOTES,
)
