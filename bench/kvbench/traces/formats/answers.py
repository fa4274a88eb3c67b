"""The answer in a logged response: OpenAI's chat completion, Anthropic's message, or the bare message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.formats.messages import chat_messages
from kvbench.traces.lines import LineError, repair_surrogates


def answer_of(response: Any, notes: Counter[str]) -> Message | None:
    """The assistant message of a response body, in OpenAI's shape; None where it holds none that can be read."""
    if isinstance(response, str) and response.startswith("{"):
        try:
            response = json_of(response, "response")
        except LineError:
            return None
    if not isinstance(response, dict):
        return None
    choices = response.get("choices")
    message: Any = response
    if isinstance(choices, list):
        message = choices[0].get("message") if choices and isinstance(choices[0], dict) else None
    if not isinstance(message, dict) or not {"content", "tool_calls"} & message.keys():
        return None
    try:
        made = chat_messages([{**message, "role": "assistant"}], notes)
    except LineError:
        return None
    wanted = ("role", "content", "tool_calls", "reasoning_content")
    return {name: value for name, value in made[0].items() if name in wanted and value is not None}


def json_of(value: Any, field: str, notes: Counter[str] | None = None) -> Any:
    """Some writers put JSON into a string. Raises LineError. notes: where replaced surrogates are counted."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        repaired, count = repair_surrogates(value.encode("utf-8", "surrogatepass"))
        if notes is not None and count:
            notes["surrogates"] += count
            return json_of(repaired.decode("utf-8", "replace"), field)
        raise LineError("text that is no JSON", field=field) from None
