"""One session on its way to native turns: what each of its requests adds to the one before."""

from __future__ import annotations

from collections import Counter

from kvbench.model import Message, Recorded, Turn, TurnRef
from kvbench.traces.formats.calls import Call
from kvbench.traces.formats.messages import answer_digest, digest, digests

CLOCK_S = 0.002
"""Clocks of a log's writer: a request that starts this much before another's end still followed it."""


class Thread:
    """One session on its way to native turns; some 500 bytes. Times are trace time."""

    __slots__ = (
        "_model",
        "_tools",
        "agent",
        "answer",
        "digest",
        "end_s",
        "ends_known",
        "group",
        "hashed",
        "length",
        "name",
        "root",
        "turns",
    )

    def __init__(self, name: str, *, hashed: bool = False) -> None:
        self.name = name
        self.hashed = hashed
        self.turns = 0
        self.end_s: float | None = None
        """Of its last turn; its start where the source does not say."""
        self.ends_known = True
        self.root = name
        """The root session of its tree."""
        self.group: str | None = None
        """What the source calls the session it is of."""
        self.agent: str | None = None
        self.length = 0
        self.digest = b""
        self.answer: bytes | None = None
        self._tools: bytes | None = None
        self._model: str | None = None

    def extended_by(self, chain: list[bytes]) -> bool:
        """Whether a prompt with these digests (messages.digests) begins with all of the last turn's, and adds to it."""
        return 0 < self.length < len(chain) and chain[self.length - 1] == self.digest

    def turn(
        self,
        call: Call,
        notes: Counter[str],
        *,
        chain: list[bytes] | None = None,
        start_s: float | None = None,
        delay_s: float = 0.0,
        parent: TurnRef | None = None,
        after: tuple[str, ...] = (),
        hash_ids: tuple[int, ...] | None = None,
    ) -> Turn:
        """The session's next turn: `append` where `call` adds to the context so far, `messages` where it does not.

        chain: digests(call.messages), where they are there already. hash_ids: the prompt of a call without text.
        """
        messages = call.messages or []
        if chain is None:
            chain = digests(messages)
        append = replace = None
        if hash_ids is None:
            if self.extended_by(chain):
                append = tuple(messages[self.length :])
            elif self.turns:
                replace = tuple(messages)
                notes["replaced"] += 1
            else:
                append = tuple(messages)
        tools = digest(call.tools) if call.tools else None
        turn = Turn(
            session_id=self.name,
            turn=self.turns,
            line=call.line,
            parent=parent,
            after=after,
            start_s=None if start_s is None else round(start_s, 6),
            delay_s=round(delay_s, 6),
            input_tokens=call.input_tokens or None,
            output_tokens=_output_tokens(call, notes),
            messages=replace,
            append=append,
            hash_ids=hash_ids,
            tools=tuple(call.tools or ()) if tools != self._tools else None,
            model=call.model if call.model and call.model != self._model else None,
            recorded=_recorded(call),
            extra=call.extra,
        )
        self.turns += 1
        self.length, self.digest = len(chain), chain[-1] if chain else b""
        self.answer = answer_digest(call.answer) if call.answer is not None else None
        self._tools, self._model = tools, call.model or self._model
        return turn


def runs_at(thread: Thread, call: Call) -> bool:
    """Whether the session's last turn had not ended when `call` began."""
    return thread.end_s is not None and call.start_s is not None and call.start_s < thread.end_s - CLOCK_S


def follows(thread: Thread, call: Call) -> bool:
    """Whether `call`, which extends the session's context, can be its next turn: a prompt that holds an answer followed
    it, whatever the clocks say."""
    messages: list[Message] = call.messages or []
    return not runs_at(thread, call) or messages[thread.length].get("role") == "assistant"


def _output_tokens(call: Call, notes: Counter[str]) -> int | None:
    if call.output_tokens is None:
        notes["no_output_length"] += 1
        return None
    notes["zero_output"] += call.output_tokens == 0
    return max(call.output_tokens, 1)


def _recorded(call: Call) -> Recorded | None:
    e2e_s = None
    if call.start_s is not None and call.end_s is not None and call.end_s >= call.start_s:
        e2e_s = round(call.end_s - call.start_s, 6)
    if (call.ttft_s, e2e_s, call.cached_tokens, call.usage) == (None, None, None, None):
        return None
    return Recorded(ttft_s=call.ttft_s, e2e_s=e2e_s, cached_tokens=call.cached_tokens, usage=call.usage)
