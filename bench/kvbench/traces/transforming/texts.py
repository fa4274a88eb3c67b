"""Text of copied trees: shared with the source as far as other trees share it, and new from there.

A context is a chain: a message stands for everything up to it, model and tools included. So what is private to a tree
begins at one message of each context, and a marker in it makes that message and all behind it new. Where the message's
text begins as other trees' do in the same place, the marker stands behind what they have in common, to PIECE_CHARS.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvbench.model import Message, Session, SharedPrompt, Turn
from kvbench.traces.context import ContextBuilder
from kvbench.traces.transforming.owners import Owners

PIECE_CHARS = 64
"""About a block of 16 tokens."""

_Prefixes = Mapping[str, SharedPrompt]


class TextOwners:
    """Feed it every tree twice, count() and then compare(); after that it can copy sessions."""

    def __init__(self, shared_by: int) -> None:
        self._shared_by = shared_by
        self._messages = Owners()
        self._pieces = Owners()

    def count(self, session: Session, prefixes: _Prefixes, tree: int) -> None:
        for step in _steps(session, prefixes):
            self._messages.add(step.root, tree)
            for key in step.keys[step.fresh :]:
                self._messages.add(key, tree)

    def compare(self, session: Session, prefixes: _Prefixes, tree: int) -> None:
        for step in _steps(session, prefixes):
            at = self._first_private(step)
            if step.brought <= at < len(step.keys):
                for key in _pieces(step, at):
                    self._pieces.add(key, tree)

    def copied(self, session: Session, prefixes: _Prefixes, marker: str) -> dict[int, dict[str, Any]]:
        """Turn -> fields in which the copy's turn differs from the source's; empty where nothing is private."""
        out: dict[int, dict[str, Any]] = {}
        for step in _steps(session, prefixes):
            turn, changed = step.turn, dict[str, Any]()
            if turn.tools and self._messages.trees(step.root) < self._shared_by:
                changed["tools"] = (_marked_tool(turn.tools[0], marker), *turn.tools[1:])
            at = self._first_private(step)
            if step.brought <= at < len(step.keys):
                field = "messages" if turn.messages is not None else "append"
                added = list(getattr(turn, field))
                added[at - step.brought] = _marked(step.messages[at], marker, self._common_chars(step, at))
                changed[field] = tuple(added)
            if changed:
                out[turn.turn] = changed
        return out

    def _first_private(self, step: _Step) -> int:
        """Index of the first message that too few trees have; the context's length if there is none."""
        at = step.named
        while at < len(step.keys) and self._messages.trees(step.keys[at]) >= self._shared_by:
            at += 1
        return at

    def _common_chars(self, step: _Step, at: int) -> int:
        common = 0
        for key in _pieces(step, at):
            if self._pieces.trees(key) < self._shared_by:
                break
            common += PIECE_CHARS
        return common


class _Step(msgspec.Struct):
    """One turn's context as a chain. keys[i] stands for everything up to message i, `root` for model and tools.

    named: how many leading messages are a shared prompt's. brought: index of the first message the turn brings itself.
    fresh: index of the first key that the turn before did not have.
    """

    turn: Turn
    messages: list[Message]
    root: bytes
    keys: list[bytes]
    named: int
    brought: int
    fresh: int


def _steps(session: Session, prefixes: _Prefixes) -> Iterator[_Step]:
    """The turns that have messages."""
    builder = ContextBuilder(prefixes)
    root, keys, named = b"", list[bytes](), 0
    for turn in session.turns:
        context = builder.next(turn)
        if context.messages is None:
            continue
        now = _digest(b"", [context.model, context.tools])
        kept = context.kept if now == root else 0
        root, keys = now, keys[:kept]
        if turn.prefix is not None:
            named = len(prefixes[turn.prefix].messages)
        elif turn.messages is not None:
            named = 0
        for message in context.messages[kept:]:
            keys.append(_digest(keys[-1] if keys else root, message))
        added = turn.messages if turn.messages is not None else turn.append or ()
        brought = len(context.messages) - len(added)
        yield _Step(turn, context.messages, root, keys, named, brought, kept)


def _pieces(step: _Step, at: int) -> Iterator[bytes]:
    """A key for each leading PIECE_CHARS, 2 PIECE_CHARS, ... of message `at`, after what stands before it."""
    text = step.messages[at].get("content")
    if not isinstance(text, str):
        return
    before = step.keys[at - 1] if at else step.root
    running = hashlib.blake2b(before + json.dumps(step.messages[at]["role"]).encode(), digest_size=16)
    for start in range(0, len(text) - PIECE_CHARS + 1, PIECE_CHARS):
        running.update(text[start : start + PIECE_CHARS].encode())
        yield running.digest()


def _marked(message: Message, marker: str, at: int) -> Message:
    """`message` with `marker` in its text, `at` characters from the beginning."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content[:at] + marker + content[at:]}
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": marker}, *content]}
    return {**message, "content": marker}


def _marked_tool(tool: dict[str, Any], marker: str) -> dict[str, Any]:
    """Tools are rendered before the messages: private ones are private from their first description on."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return {**tool, "description": marker + str(tool.get("description", ""))}
    return {**tool, "function": {**function, "description": marker + str(function.get("description", ""))}}


def _digest(before: bytes, value: Any) -> bytes:
    return hashlib.blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
