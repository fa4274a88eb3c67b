"""Messages and tool schemas of other APIs in OpenAI's shape, which is the trace's; and what makes two the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.lines import LineError

_BLOCKS = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "image", "document"}
)
_CACHE_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
_encode = msgspec.json.Encoder(order="deterministic").encode

NOTES = {
    "cache_marks": "cache marks left off messages and tools: {n} (cache_control, prompt_cache_breakpoint)",
    "thinking_hidden": "encrypted thinking blocks left off: {n} (their text is not in the source)",
    "blocks_as_text": "content blocks of other kinds sent as their JSON text: {n}",
    "tool_errors": "tool results marked as errors: {n} (sent without the mark)",
}
"""Sentences of the codes counted here, for a format's own."""


def chat_messages(messages: Any, notes: Counter[str], *, system: Any = None, field: str = "messages") -> list[Message]:
    """Messages of OpenAI's or Anthropic's API, in OpenAI's shape. Raises LineError naming the field.

    system: Anthropic's, which stands outside its messages. Text blocks become text, `tool_use` becomes tool_calls,
    `tool_result` a message of role tool, `thinking` reasoning_content; what has no counterpart is counted in `notes`.
    """
    if not isinstance(messages, list):
        raise LineError("expected an array of messages", field=field)
    out: list[Message] = []
    if system not in (None, "", []):
        out.append({"role": "system", "content": _plain(system, notes, f"{field}: system")})
    for index, message in enumerate(messages):
        where = f"{field}[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message["role"]:
            raise LineError('a message is an object with a "role"', field=where)
        _check(message, where)
        out.extend(_converted(message, notes, where))
    return out


def chat_tools(tools: Any, notes: Counter[str], *, field: str = "tools") -> list[dict[str, Any]] | None:
    """Tool schemas of OpenAI's or Anthropic's API, in OpenAI's shape; None where there are none. Raises LineError."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise LineError("expected an array of objects", field=field)
    return [_tool(tool, notes) for tool in tools] or None


def digests(messages: Iterable[Message]) -> list[bytes]:
    """Of every leading part of `messages`, 16 bytes each; equal ones stand for equal parts, whatever their key order.

    A content of one text part is the same as that text, and a field that is null as one that is not there.
    """
    state = hashlib.blake2b(digest_size=16)
    out = []
    for message in messages:
        text = _encode(_canonical(message))
        state.update(b"%d:" % len(text))
        state.update(text)
        out.append(state.digest())
    return out


def digest(value: Any) -> bytes:
    """16 bytes that stand for a JSON value. The order of keys counts: chat templates write schemas as they come."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=16).digest()


def answer_digest(message: Message) -> bytes:
    """Of what an answer says and calls, without reasoning and outer white space: clients send it back changed."""
    calls = message.get("tool_calls")
    called = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return hashlib.blake2b(_encode([text_of(message.get("content")).strip(), called]), digest_size=16).digest()


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or its text parts together."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def function_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """One entry of tool_calls; arguments that are no text become their JSON."""
    text = (
        arguments
        if isinstance(arguments, str)
        else msgspec.json.encode({} if arguments is None else arguments).decode()
    )
    call: dict[str, Any] = {"type": "function", "function": {"name": str(name or ""), "arguments": text}}
    return {"id": str(call_id), **call} if call_id not in (None, "") else call


def assistant(texts: Sequence[str], calls: list[dict[str, Any]], reasoning: Sequence[str] = ()) -> Message:
    """An assistant message in OpenAI's shape: its texts as one, content null where it only calls tools."""
    text = "\n".join(texts)
    message: Message = {"role": "assistant", "content": text if text or not calls else None}
    if any(reasoning):
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _check(message: Message, where: str) -> None:
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str | list | None):
        raise LineError("expected text, an array of parts, or null", field=f"{where}.content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise LineError('a part is an object with a "type"', field=f"{where}.content[{number}]")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise LineError("expected an array of objects", field=f"{where}.tool_calls")


def _canonical(message: Message) -> Message:
    out = {name: value for name, value in message.items() if value is not None}
    content = out.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() == {"type", "text"} and part["type"] == "text":
            out["content"] = part["text"]
    return out


def _converted(message: Message, notes: Counter[str], where: str) -> list[Message]:
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    kinds = {part.get("type") for part in content if isinstance(part, dict)}
    if not kinds & _BLOCKS:
        return [{**message, "content": [_unmarked(part, notes) for part in content]}]
    if message["role"] == "assistant":
        return [_assistant_of(content, notes, where)]
    out: list[Message] = []
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(content):
        if block.get("type") != "tool_result":
            parts.append(_part(block, notes))
            continue
        if parts:
            out.append({"role": message["role"], "content": _joined(parts)})
            parts = []
        notes["tool_errors"] += block.get("is_error") is True
        result = _plain(block.get("content"), notes, f"{where}.content[{number}]")
        out.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": result})
    if parts:
        out.append({"role": message["role"], "content": _joined(parts)})
    return out


def _assistant_of(content: list[Any], notes: Counter[str], where: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind in ("tool_use", "server_tool_use"):
            calls.append(function_call(block.get("id"), block.get("name"), block.get("input")))
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking") or ""))
        elif kind == "redacted_thinking":
            notes["thinking_hidden"] += 1
        else:
            notes["blocks_as_text"] += 1
            texts.append(msgspec.json.encode(block).decode())
    return assistant(texts, calls, reasoning)


def _plain(content: Any, notes: Counter[str], where: str) -> str | list[dict[str, Any]]:
    """What a system prompt or a tool result holds: text, or blocks."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise LineError("expected text or an array of content blocks", field=where)
    return _joined([_part(block, notes) for block in content])


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text alone as one string, as clients of OpenAI's API send it."""
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("text") or "") for part in parts)
    return parts


def _part(block: dict[str, Any], notes: Counter[str]) -> dict[str, Any]:
    block = _unmarked(block, notes)
    kind, source = block.get("type"), block.get("source")
    if kind in ("text", "image_url", "input_audio", "file"):
        return block
    if kind == "image" and isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type', 'image/png')};base64,{source.get('data', '')}"
        if isinstance(url, str):
            return {"type": "image_url", "image_url": {"url": url}}
    notes["blocks_as_text"] += 1
    return {"type": "text", "text": msgspec.json.encode(block).decode()}


def _unmarked(block: Any, notes: Counter[str]) -> Any:
    if isinstance(block, dict) and not _CACHE_MARKS.isdisjoint(block):
        notes["cache_marks"] += 1
        return {name: value for name, value in block.items() if name not in _CACHE_MARKS}
    return block


def _tool(tool: dict[str, Any], notes: Counter[str]) -> dict[str, Any]:
    tool = _unmarked(tool, notes)
    if "input_schema" not in tool or "function" in tool:
        return tool
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
