"""Trajectories of agents that keep one list of messages: each assistant's is a call, and all before it its prompt."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvbench.model import Message
from kvbench.traces.formats.agent_log import Step, message_chars
from kvbench.traces.formats.base import Import
from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.messages import chat_messages, digests
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError

SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "name")
"""Fields of a message that a request has; the others are the agent's own."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

NOTES = USAGE_NOTES | {
    "answers": "messages that are answers of the model: {n}",
    "prompts": "messages to the model: {n}",
    "unanswered": "messages after the last answer: {n}",
    "broken": "messages not shaped as expected: {n}",
    "no_calls": "trajectories without an answer of the model: {n}",
}


class Talk:
    """The messages of one session, as they are found, on their way to calls."""

    def __init__(self, target: Import, *, tools: list[dict[str, Any]] | None = None, model: str | None = None) -> None:
        self._sink = target.sink
        self._notes = target.sink.notes
        self._file = target.log.file
        self.steps: list[Step] = []
        self.tools, self.model = tools, model
        self.chars = 0
        """Of all prompts together."""
        self._context: list[Message] = []
        self._context_chars = 0
        self._new: list[tuple[int, str]] = []
        self._sent = 0
        self._anew = True
        self._new_s: float | None = None

    def prompt(self, message: Message, line: int, field: str, at_s: float | None = None) -> None:
        """A message to the model."""
        self._add(message)
        self._new.append((line, field))
        self._new_s = at_s if at_s is not None else self._new_s

    def answer(self, message: Message, line: int, field: str, at_s: float | None = None, usage: Any = None) -> bool:
        """A message of the model; False where nothing was sent before it, and it is left out."""
        if not self._context:
            self._sink.drop("no_prompt", line, f"{field}: an answer without any message before it", self._file)
            return False
        self._notes["answers"] += 1
        self._notes["prompts"] += len(self._new)
        self._new.clear()
        self.chars += self._context_chars
        counts = token_counts(usage, self._notes)
        whole = list(self._context) if self._anew else None
        self.steps.append(
            Step(
                line=line,
                new=[] if whole is not None else self._context[self._sent :],
                answer=message,
                context=None if whole is None else lambda: whole,
                tools=self.tools,
                start_s=self._new_s,
                end_s=at_s,
                model=self.model,
                input_tokens=counts.input_tokens,
                output_tokens=counts.output_tokens,
                cached_tokens=counts.cached_tokens,
                usage=usage if isinstance(usage, dict) else None,
            )
        )
        self._add(message)
        self._sent, self._anew, self._new_s = len(self._context), False, None
        return True

    def replace(self, context: list[Message]) -> None:
        """What is sent from here on instead of all before."""
        self._context = list(context)
        self._context_chars = sum(map(message_chars, context))
        self._anew = True

    def prompted(self, context: list[Message]) -> None:
        """The whole prompt of the next call, where the log has that: it goes on from the last, or replaces it."""
        if self._context == context:
            return
        if self.steps and self._goes_on(context):
            self._context_chars -= sum(map(message_chars, self._context[self._sent :]))
            del self._context[self._sent :]
            for message in context[self._sent :]:
                self._add(message)
        else:
            self.replace(context)

    def finish(self) -> None:
        for line, field in self._new:
            self._sink.drop("unanswered", line, f"{field}: a message that no call answers", self._file)

    def _goes_on(self, context: list[Message]) -> bool:
        sent = self._sent
        if len(context) < sent or digests(context[: sent - 1])[-1:] != digests(self._context[: sent - 1])[-1:]:
            return False
        answer = context[sent - 1]
        if answer.get("role") != "assistant":
            return False
        self.steps[-1].answer = self._context[sent - 1] = answer
        return True

    def _add(self, message: Message) -> None:
        self._context.append(message)
        self._context_chars += message_chars(message)


def sent_message(message: Any, notes: Counter[str], field: str) -> list[Message]:
    """A trajectory's message as it is sent. Raises LineError naming the field."""
    if not isinstance(message, dict):
        raise LineError("a message is an object", field=field)
    out = {name: message[name] for name in SENT if message.get(name) is not None}
    if out.get("role") not in ROLES:
        raise LineError(f"unknown role; known: {', '.join(ROLES)}", field=f"{field}.role")
    content = out.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise LineError("expected text or an array of parts", field=f"{field}.content")
    calls = out.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
        raise LineError("expected an array of calls, each with a function", field=f"{field}.tool_calls")
    for name in ("tool_call_id", "reasoning_content", "name"):
        if name in out and not isinstance(out[name], str):
            raise LineError("expected text", field=f"{field}.{name}")
    out.setdefault("content", None if calls else "")
    return chat_messages([out], notes, field=field)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def stamp_s(value: Any) -> float | None:
    """A time where there is one that can be read."""
    try:
        return time_s(value, "timestamp")
    except LineError:
        return None
