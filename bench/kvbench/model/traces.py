"""What a trace holds. All times ending in `_s` are trace time (before --time-scale)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TRACE_VERSION = 1

Message = dict[str, Any]
"""One chat message in OpenAI's shape: role, content (text, or a list of parts), tool_calls, tool_call_id, ..."""


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a native trace. `extra` keeps unknown fields.

    prefixes: "unknown" where the source says nothing of which prompts begin alike, and the hash ids are made up.
    """

    version: int = TRACE_VERSION
    name: str = ""
    block_size: int | None = None
    source: str | None = None
    prefixes: Literal["unknown"] | None = None
    extra: dict[str, Any] = {}


class SharedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt (messages and tool schemas) that turns name by `prefix`; defined once in a trace."""

    name: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    extra: dict[str, Any] = {}


class TurnRef(msgspec.Struct, frozen=True):
    session_id: str
    turn: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the trace's source measured for a turn.

    at_s: when the source dates the turn's start, in seconds after its tree's start_s; the clock that decides a replay
    is delay_s, not this.
    """

    at_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    cached_tokens: int | None = None
    usage: dict[str, Any] | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session, as the trace has it.

    start_s: session start in trace time (roots' turn 0 only). delay_s: tool pause, from the end of what this turn
    waits for to its start. `messages` replaces the context, `append` adds to it; content-free turns have
    `hash_ids` (a block each; appended to the first `keep_blocks` ids of the previous turn).
    """

    session_id: str
    turn: int
    line: int
    parent: TurnRef | None = None
    after: tuple[str, ...] = ()
    start_s: float | None = None
    delay_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    messages: tuple[Message, ...] | None = None
    append: tuple[Message, ...] | None = None
    hash_ids: tuple[int, ...] | None = None
    keep_blocks: int | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    prefix: str | None = None
    model: str | None = None
    recorded: Recorded | None = None
    extra: dict[str, Any] = {}


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one session in order."""

    session_id: str
    turns: tuple[Turn, ...]

    @property
    def parent(self) -> TurnRef | None:
        return self.turns[0].parent


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A root session with all its descendants: the unit that arrives, is read when due, and is dropped when done."""

    root_id: str
    start_s: float
    sessions: tuple[Session, ...]
