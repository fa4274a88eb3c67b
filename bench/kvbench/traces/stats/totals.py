"""What a trace's lines say themselves, summed up tree by tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kvbench.model import Message, Session, Tree
from kvbench.traces.content_blocks import CHARS_PER_TOKEN
from kvbench.traces.context import Context, ContextBuilder
from kvbench.traces.native import TraceFile
from kvbench.traces.stats.spread import Spread, spread
from kvbench.traces.timeline import timeline


class SharedPromptUse(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sessions: int
    tools: int
    tokens_estimated: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a trace. None = the trace does not say, never 0; `*_estimated` is text at 4 characters a token."""

    name: str
    sha256: str
    size_bytes: int
    sessions: int
    roots: int
    sub_agents: int
    depth: int
    """Levels of the deepest tree: 1 has no sub-agents."""
    joins: int
    """Turns that wait for other sessions."""
    turns: int
    input_tokens: int | None
    """Sum over turns; None unless every turn has input_tokens."""
    input_tokens_estimated: int | None
    """Sum over turns, from input_tokens where given and else from the text; None where input_tokens is exact."""
    output_tokens: int | None
    """Sum over the turns that have it; None if none has."""
    turns_without_output_tokens: int
    longest_context_tokens: int | None
    longest_context_tokens_estimated: int | None
    input_length_tokens: Spread
    """Over turns; from the text, at 4 characters a token, where a turn does not give it."""
    output_length_tokens: Spread
    """Over the turns that have it."""
    growth_tokens: Spread
    """Input of a turn less input of the one before it in its session."""
    shrinking_turns: int
    """Turns shorter than the one before: a context was replaced, or cut."""
    pause_s: Spread
    """Delays of all turns but the first ones of roots, in trace time."""
    pauses_beyond_ttl: int
    """Of those, longer than ttl_s."""
    ttl_s: float
    span_s: float
    """From 0 to the last turn's start, in trace time: starts, pauses and joins, and e2e_s where it was recorded."""
    shared_prompts: tuple[SharedPromptUse, ...]
    models: tuple[str, ...]


class TotalsCounter:
    """Feed it the trees of a trace in any order."""

    def __init__(self, trace: TraceFile, ttl_s: float) -> None:
        self.trace = trace
        self.ttl_s = ttl_s
        self.sub_agents = self.depth = self.joins = 0
        self.lengths, self.outputs, self.growth = array("q"), array("q"), array("q")
        self.undated = 0
        """Turns without a recorded duration."""
        self.exact = True
        self.without_output = 0
        self.pauses = array("d")
        self.span_s = 0.0
        self.prefix_sessions = dict.fromkeys(trace.prefixes, 0)
        self.models: dict[str, None] = {}

    def add_tree(self, tree: Tree) -> None:
        self.sub_agents += len(tree.sessions) - 1
        self.depth = max(self.depth, _depth(tree))
        self.span_s = max(self.span_s, timeline(tree)[-1].start_s)
        for session in tree.sessions:
            self._add_session(session)

    def _add_session(self, session: Session) -> None:
        builder = ContextBuilder(self.trace.prefixes)
        size = _ContextSize()
        prefixes: set[str] = set()
        for turn in session.turns:
            context = builder.next(turn)
            chars = size.of(context)
            tokens = turn.input_tokens if turn.input_tokens is not None else -(-chars // CHARS_PER_TOKEN)
            self.exact = self.exact and turn.input_tokens is not None
            if turn.turn:
                self.growth.append(tokens - self.lengths[-1])
            self.lengths.append(tokens)
            if turn.output_tokens is None:
                self.without_output += 1
            else:
                self.outputs.append(turn.output_tokens)
            self.undated += turn.recorded is None or turn.recorded.e2e_s is None
            self.joins += bool(turn.after)
            if turn.turn or turn.parent:
                self.pauses.append(turn.delay_s)
            if context.prefix is not None:
                prefixes.add(context.prefix)
            if context.model is not None:
                self.models[context.model] = None
        for name in prefixes:
            self.prefix_sessions[name] += 1

    def result(self) -> Totals:
        trace = self.trace
        total, longest = sum(self.lengths), max(self.lengths, default=0)
        return Totals(
            name=trace.header.name or trace.path.stem,
            sha256=trace.sha256,
            size_bytes=trace.size_bytes,
            sessions=trace.session_count,
            roots=trace.tree_count,
            sub_agents=self.sub_agents,
            depth=self.depth,
            joins=self.joins,
            turns=trace.turn_count,
            input_tokens=total if self.exact else None,
            input_tokens_estimated=None if self.exact else total,
            output_tokens=None if self.without_output == trace.turn_count else sum(self.outputs),
            turns_without_output_tokens=self.without_output,
            longest_context_tokens=longest if self.exact else None,
            longest_context_tokens_estimated=None if self.exact else longest,
            input_length_tokens=spread(self.lengths),
            output_length_tokens=spread(self.outputs),
            growth_tokens=spread(self.growth),
            shrinking_turns=sum(tokens < 0 for tokens in self.growth),
            pause_s=spread(self.pauses),
            pauses_beyond_ttl=sum(pause > self.ttl_s for pause in self.pauses),
            ttl_s=self.ttl_s,
            span_s=self.span_s,
            shared_prompts=tuple(
                SharedPromptUse(
                    name=name,
                    sessions=self.prefix_sessions[name],
                    tools=len(prompt.tools),
                    tokens_estimated=-(-(_chars(prompt.messages) + _json_chars(prompt.tools)) // CHARS_PER_TOKEN),
                )
                for name, prompt in trace.prefixes.items()
            ),
            models=tuple(self.models),
        )


class _ContextSize:
    """Characters of a session's context, without reading again what a turn kept."""

    def __init__(self) -> None:
        self._chars = 0
        self._tools: tuple[dict[str, Any], ...] = ()
        self._tools_chars = 0

    def of(self, context: Context) -> int:
        if context.messages is None:
            return 0
        added = _chars(context.messages[context.kept :])
        self._chars = self._chars + added if context.kept else added
        if context.tools is not self._tools:
            self._tools, self._tools_chars = context.tools, _json_chars(context.tools)
        return self._chars + self._tools_chars


def _chars(messages: Iterable[Message]) -> int:
    total = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
        total += _json_chars(message.get("tool_calls") or ())
    return total


def _json_chars(value: Sequence[Any]) -> int:
    return len(msgspec.json.encode(value)) if value else 0


def _depth(tree: Tree) -> int:
    parents = {session.session_id: session.parent.session_id for session in tree.sessions if session.parent}
    deepest = 1
    for name in parents:
        depth = 1
        while name in parents:
            name = parents[name]
            depth += 1
        deepest = max(deepest, depth)
    return deepest
