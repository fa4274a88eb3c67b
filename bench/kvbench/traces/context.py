"""What a turn sends: its session's context, built up turn by turn.

Rules (workloads/README.md): `append` adds to the context; `messages` replaces it, a shared prompt included unless the
line names it again. Tools follow: those a line gives hold until others are given; those of a shared prompt leave
with it. A model holds for the rest of its session. Memory is linear in the trace: contexts share message objects, so
whoever wants to change one copies it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvbench.model import Message, SharedPrompt, Turn


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's prompt. `messages` is None for content-free turns, whose prompt is `hash_ids` (a block each).

    kept: how many leading messages (or block ids) are the very ones of the previous turn.
    """

    messages: list[Message] | None
    tools: tuple[dict[str, Any], ...]
    model: str | None
    prefix: str | None
    hash_ids: list[int] | None = None
    kept: int = 0


class ContextBuilder:
    """The context of one session; feed it the session's turns in order."""

    def __init__(self, prefixes: Mapping[str, SharedPrompt]) -> None:
        self._prefixes = prefixes
        self._messages: list[Message] = []
        self._hash_ids: list[int] = []
        self._prefix: str | None = None
        self._own_tools: tuple[dict[str, Any], ...] | None = None
        self._model: str | None = None
        self._reply: Message | None = None

    def replace_last_assistant(self, text: str, reasoning: str | None = None) -> None:
        """Live history: `text`, just received, replaces the recorded answer at the head of the next turn's append.

        Recorded tool calls stay, because their ids are what the recorded tool messages answer; recorded reasoning
        goes with the text it led to, and `reasoning` (None: none is sent) takes its place. A turn that replaces its
        context (`messages`) is sent as recorded.
        """
        self._reply = {"content": text} | ({} if reasoning is None else {"reasoning_content": reasoning})

    def next(self, turn: Turn) -> Context:
        """The prompt of `turn`, the session's next. The lists are the caller's; the messages in them are shared."""
        reply, self._reply = self._reply, None
        if turn.model is not None:
            self._model = turn.model
        if turn.hash_ids is not None:
            kept = min(turn.keep_blocks or 0, len(self._hash_ids))
            del self._hash_ids[kept:]
            self._hash_ids.extend(turn.hash_ids)
            return self._context(None, list(self._hash_ids), kept)
        kept = len(self._messages)
        if turn.messages is not None:
            kept = 0
            self._prefix = None
            self._messages = []
        if turn.prefix is not None:
            self._prefix = turn.prefix
            self._own_tools = None
            self._messages.extend(self._prefixes[turn.prefix].messages)
        if turn.tools is not None:
            self._own_tools = turn.tools
        added = turn.messages if turn.messages is not None else turn.append or ()
        if reply is not None and turn.messages is None:
            added = _with_reply(added, reply)
        self._messages.extend(added)
        return self._context(list(self._messages), None, kept)

    def _context(self, messages: list[Message] | None, hash_ids: list[int] | None, kept: int) -> Context:
        tools = self._own_tools
        if tools is None:
            tools = self._prefixes[self._prefix].tools if self._prefix is not None else ()
        return Context(
            messages=messages, tools=tools, model=self._model, prefix=self._prefix, hash_ids=hash_ids, kept=kept
        )


def _with_reply(added: tuple[Message, ...], reply: Message) -> tuple[Message, ...]:
    if not added or added[0].get("role") != "assistant":
        # A trace that records only what the user said: the answer belongs where it was given.
        return ({"role": "assistant", **reply}, *added)
    recorded = added[0]
    answer = {key: value for key, value in recorded.items() if key not in ("reasoning", "reasoning_content")} | reply
    answer["content"] = reply["content"] or (None if recorded.get("tool_calls") else "")
    return (answer, *added[1:])
