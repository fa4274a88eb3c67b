"""Items of OpenAI's Responses API, as Codex logs them, as chat messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.formats.messages import assistant, function_call, text_of
from kvbench.traces.formats.usage import TokenCounts, token_counts
from kvbench.traces.lines import LineError

OUTPUTS = ("message", "reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call")
"""Kinds of items that come back from the model; of messages, the assistant's."""

_ROLES = ("system", "developer", "user", "assistant")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class Chat:
    """Messages in order; what an assistant says and calls in a row is one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, new: list[Message]) -> None:
        for message in new:
            last = self.messages[-1] if self.messages else None
            if message["role"] == "assistant" and last is not None and last["role"] == "assistant":
                self.messages[-1] = _merged(last, message)
            else:
                self.messages.append(message)

    def cut(self, length: int) -> None:
        del self.messages[length:]

    def is_user(self, index: int) -> bool:
        return bool(self.messages[index]["role"] == "user")

    def answer(self) -> Message | None:
        """What came back as one message; None where there is nothing to read in it."""
        if not self.messages:
            return None
        message = self.messages[0]
        return message if message.get("content") or message.get("tool_calls") else None


def chat_item(item: dict[str, Any], notes: Counter[str]) -> list[Message] | None:
    """One item as messages: none for what has no text, None for a kind that is no part of a conversation.

    Raises LineError for what is not shaped as its kind.
    """
    kind = item.get("type")
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise LineError(f"unknown role; known: {', '.join(_ROLES)}", field="payload.role")
        return [{"role": role, "content": _content(item.get("content"), "payload.content", notes)}]
    if kind == "reasoning":
        text = _reasoning(item)
        notes["thinking_hidden"] += not text
        return [assistant([], [], [text])] if text else [{"role": "assistant", "content": ""}]
    if kind == "function_call":
        return [_calling(item, item.get("arguments"))]
    if kind == "custom_tool_call":
        return [_calling(item, {"input": item.get("input")})]
    if kind == "local_shell_call":
        return [_calling({**item, "name": "local_shell"}, item.get("action"))]
    if kind == "web_search_call":
        notes["server_tools"] += 1
        return [{"role": "assistant", "content": ""}]
    if kind in _RESULTS:
        return [{"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": _output(item, notes)}]
    return None


def usage_counts(info: Any) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """A token count's running totals (input, cached, output) and the last call's usage; None where it has neither."""
    if not isinstance(info, dict):
        raise LineError("expected an object", field="payload.info")
    total, last = info.get("total_token_usage"), info.get("last_token_usage")
    if not isinstance(total, dict) or not isinstance(last, dict):
        return None
    for name, usage in (("total_token_usage", total), ("last_token_usage", last)):
        for field in ("input_tokens", "cached_input_tokens", "output_tokens"):
            value = usage.get(field)
            if value is not None and (type(value) is not int or not 0 <= value < 2**53):
                raise LineError("expected a number of tokens", field=f"payload.info.{name}.{field}")
    counts = tuple(total.get(name) or 0 for name in ("input_tokens", "cached_input_tokens", "output_tokens"))
    return counts, last


def call_counts(usage: dict[str, Any] | None, notes: Counter[str]) -> TokenCounts:
    """The last usage of a token count, whose input includes cached tokens."""
    if usage is None:
        return TokenCounts()
    names = {"input_tokens": "input_tokens", "cached_input_tokens": "cached_tokens", "output_tokens": "output_tokens"}
    return token_counts({names[name]: value for name, value in usage.items() if name in names}, notes)


def _calling(item: dict[str, Any], arguments: Any) -> Message:
    return assistant([], [function_call(item.get("call_id") or item.get("id"), item.get("name"), arguments)])


def _reasoning(item: dict[str, Any]) -> str:
    """The model's own reasoning, where it is not encrypted; a summary of it is not what it wrote."""
    content = item.get("content")
    return text_of(content) if isinstance(content, list) else ""


def _output(item: dict[str, Any], notes: Counter[str]) -> str | list[dict[str, Any]]:
    output = item.get("output")
    if isinstance(output, dict):
        output = output.get("content", output)
    if isinstance(output, (str, list)):
        return _content(output, "payload.output", notes)
    return "" if output is None else msgspec.json.encode(output).decode()


def _content(content: Any, field: str, notes: Counter[str]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise LineError("expected text or an array of parts", field=field)
    parts: list[dict[str, Any]] = []
    for part in content:
        url = part.get("image_url")
        if isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif isinstance(url, str):
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            notes["blocks_as_text"] += 1
            parts.append({"type": "text", "text": msgspec.json.encode(part).decode()})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _merged(one: Message, two: Message) -> Message:
    texts = [text for text in (text_of(one.get("content")), text_of(two.get("content"))) if text]
    reasoning = [text for text in (one.get("reasoning_content"), two.get("reasoning_content")) if text]
    return assistant(texts, [*one.get("tool_calls", ()), *two.get("tool_calls", ())], reasoning)
