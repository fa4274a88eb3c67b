"""Prompts and answers in the attributes and events of GenAI spans, old and new names, in OpenAI's shape.

Names since semantic conventions 1.37: gen_ai.input.messages, gen_ai.output.messages, gen_ai.system_instructions,
gen_ai.tool.definitions (JSON text, or structured; a message has `parts`, or `content` as OpenAI's). Before:
gen_ai.prompt.N.role and .content (OpenLLMetry), gen_ai.prompt as JSON text, events gen_ai.content.prompt, events
gen_ai.user.message and the like. gen_ai.output.text is what Exgentic writes.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.formats.answers import json_of
from kvbench.traces.formats.messages import assistant, chat_messages, chat_tools, function_call
from kvbench.traces.lines import LineError

Attributes = dict[str, Any]

_NUMBERED = re.compile(r"^gen_ai\.(prompt|completion)\.(\d+)\.(.+)$")
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def prompt_of(
    attributes: Attributes, events: list[tuple[str, Attributes]], notes: Counter[str]
) -> list[Message] | None:
    """What a span's request sent; None where the span does not say. Raises LineError naming the attribute."""
    field = "gen_ai.input.messages"
    found = json_of(attributes.get(field), f"attributes.{field}", notes)
    if found is None:
        field = "gen_ai.prompt"
        found = _maybe_json(attributes.get(field))
    if found is None:
        found = _numbered(attributes, "prompt")
    if found is None:
        found = _from_events(events)
    if found is None or found == []:
        return None
    if isinstance(found, dict):
        found = found.get("messages", [found])
    messages = _messages(found, notes, f"attributes.{field}")
    instructions = "gen_ai.system_instructions"
    system = _parts_text(json_of(attributes.get(instructions), f"attributes.{instructions}", notes))
    return [{"role": "system", "content": system}, *messages] if system else messages


def answer_in(attributes: Attributes, events: list[tuple[str, Attributes]], notes: Counter[str]) -> Message | None:
    """What the span's request was answered; None where the span does not say, or not so that it can be read."""
    try:
        found = _maybe_json(attributes.get("gen_ai.output.messages"))
        if found is None:
            found = _maybe_json(attributes.get("gen_ai.completion"))
        if found is None:
            found = _numbered(attributes, "completion")
        if found is None:
            found = next(
                (_maybe_json(each.get("gen_ai.completion")) for _, each in events if "gen_ai.completion" in each), None
            )
        if isinstance(found, list) and found:
            return {**_messages(found[:1], notes, "output")[0], "role": "assistant"}
    except (LineError, IndexError):
        return None
    text = attributes.get("gen_ai.output.text")
    return {"role": "assistant", "content": text} if isinstance(text, str) else None


def tools_of(attributes: Attributes, notes: Counter[str]) -> list[dict[str, Any]] | None:
    """The request's tool schemas. Raises LineError."""
    field = "attributes.gen_ai.tool.definitions"
    found = json_of(attributes.get("gen_ai.tool.definitions"), field, notes)
    if not isinstance(found, list):
        return None
    return chat_tools([_tool(each) for each in found], notes, field=field)


def _tool(tool: Any) -> Any:
    """The conventions' flat form has OpenAI's fields beside `type`."""
    if not isinstance(tool, dict) or "function" in tool or "input_schema" in tool or "name" not in tool:
        return tool
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _messages(found: Any, notes: Counter[str], field: str) -> list[Message]:
    if not isinstance(found, list):
        raise LineError("expected an array of messages", field=field)
    made = [
        _from_parts(message, notes, f"{field}[{index}]") if "parts" in message else [_plain(message)]
        for index, message in enumerate(_objects(found, field))
    ]
    return chat_messages([message for each in made for message in each], notes, field=field)


def _objects(found: list[Any], field: str) -> list[dict[str, Any]]:
    for index, message in enumerate(found):
        if not isinstance(message, dict):
            raise LineError("a message is an object", field=f"{field}[{index}]")
    return found


def _plain(message: dict[str, Any]) -> Message:
    """Only what a request has of a message; instrumentations add finish_reason and the like."""
    return {name: value for name, value in message.items() if name not in ("finish_reason", "index")}


def _from_parts(message: dict[str, Any], notes: Counter[str], where: str) -> list[Message]:
    role = message.get("role")
    if not isinstance(role, str):
        raise LineError('a message is an object with a "role"', field=where)
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    if not isinstance(message["parts"], list):
        raise LineError("expected an array", field=f"{where}.parts")
    for number, part in enumerate(message["parts"]):
        if not isinstance(part, dict):
            raise LineError("a part is an object", field=f"{where}.parts[{number}]")
        kind, content = part.get("type"), part.get("content")
        if kind == "text":
            texts.append(content if isinstance(content, str) else str(part.get("text") or ""))
        elif kind in ("reasoning", "thinking"):
            reasoning.append(str(content or ""))
        elif kind == "tool_call":
            calls.append(function_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result", content))
            text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
            results.append({"role": "tool", "tool_call_id": str(part.get("id") or ""), "content": text})
        else:
            notes["blocks_as_text"] += 1
            texts.append(msgspec.json.encode(part).decode())
    if role == "assistant":
        return [assistant(texts, calls, reasoning), *results]
    return results + ([{"role": role, "content": "\n".join(texts)}] if texts or not results else [])


def _numbered(attributes: Attributes, what: str) -> list[Message] | None:
    """OpenLLMetry's gen_ai.prompt.0.role, .content, .tool_calls.0.name ..."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        match = _NUMBERED.match(name)
        if match is not None and match[1] == what:
            found.setdefault(int(match[2]), {})[match[3]] = value
    return [_one_numbered(found[number]) for number in sorted(found)] or None


def _one_numbered(fields: dict[str, Any]) -> Message:
    content = fields.get("content")
    message: dict[str, Any] = {
        "role": str(fields.get("role") or "assistant"),
        "content": content if content is None or isinstance(content, str) else msgspec.json.encode(content).decode(),
    }
    if isinstance(content, str) and content.startswith("[{"):
        parsed = _maybe_json(content)
        if isinstance(parsed, list) and all(isinstance(part, dict) and "type" in part for part in parsed):
            message["content"] = parsed
    calls = []
    for number in sorted({int(name.split(".")[1]) for name in fields if re.match(r"tool_calls\.\d+\.", name)}):
        prefix = f"tool_calls.{number}."
        calls.append(
            function_call(fields.get(f"{prefix}id"), fields.get(f"{prefix}name"), fields.get(f"{prefix}arguments"))
        )
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    if fields.get("tool_call_id"):
        message["tool_call_id"] = str(fields["tool_call_id"])
    return message


def _from_events(events: list[tuple[str, Attributes]]) -> list[Any] | None:
    messages: list[Any] = []
    for name, attributes in events:
        if name == "gen_ai.content.prompt":
            found = _maybe_json(attributes.get("gen_ai.prompt"))
            return found if isinstance(found, list) else None
        if name in _EVENT_ROLES:
            message: Message = {"role": str(attributes.get("role") or _EVENT_ROLES[name])}
            message["content"] = attributes.get("content", attributes.get("gen_ai.event.content", ""))
            calls = _maybe_json(attributes.get("tool_calls"))
            messages.append(message | ({"tool_calls": calls} if isinstance(calls, list) else {}))
            if message["role"] == "tool" and attributes.get("id"):
                messages[-1]["tool_call_id"] = str(attributes["id"])
    return messages or None


def _parts_text(found: Any) -> str:
    if isinstance(found, str):
        return found
    if not isinstance(found, list):
        return ""
    texts = (part.get("content", part.get("text")) for part in found if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _maybe_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
