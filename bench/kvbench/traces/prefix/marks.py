"""Where a prompt has cache_control marks: its content blocks as chained hashes, and which of them are marked.

Blocks in the order in which Anthropic's API caches them: tools, system, messages. A text is one block, a list of parts
one each, a tool call or a tool's answer one. The marks themselves are no part of what is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

MARK = "cache_control"
TTL_S = {"5m": 300.0, "1h": 3600.0}
_encode = msgspec.json.Encoder(order="sorted").encode


class Mark(NamedTuple):
    """block: index of the last block of the prefix that is asked to be cached."""

    block: int
    ttl_s: float


class MarkedPrompt(NamedTuple):
    """chain: for each block a hash that stands for all up to it."""

    chain: tuple[bytes, ...]
    marks: tuple[Mark, ...]


def marked_prompt(tools: Any, system: Any, messages: Any, *, last: Any = None) -> MarkedPrompt:
    """Of a request's parts, in OpenAI's or Anthropic's shape. last: a cache_control of the whole request, which marks
    its last block. What is in no known shape is a block like any other."""
    chain: list[bytes] = []
    marks: list[Mark] = []
    value = b""
    for block, mark in _blocks(tools, system, messages):
        value = hashlib.blake2b(value + _encode(block), digest_size=16).digest()
        chain.append(value)
        ttl_s = _ttl_s(mark)
        if ttl_s is not None:
            marks.append(Mark(len(chain) - 1, ttl_s))
    ttl_s = _ttl_s(last)
    if ttl_s is not None and chain and (not marks or marks[-1].block != len(chain) - 1):
        marks.append(Mark(len(chain) - 1, ttl_s))
    return MarkedPrompt(tuple(chain), tuple(marks))


def _blocks(tools: Any, system: Any, messages: Any) -> Iterator[tuple[Any, Any]]:
    """(what is in a block, its mark)"""
    for tool in tools if isinstance(tools, list | tuple) else ():
        inner = tool.get("function") if isinstance(tool, dict) else None
        mark = tool.get(MARK) if isinstance(tool, dict) else None
        if mark is None and isinstance(inner, dict):
            mark = inner.get(MARK)
        yield ["tool", _unmarked(tool)], mark
    if system:
        yield from _content("system", system, None)
    ordered = messages if isinstance(messages, list | tuple) else ()
    # The system's messages come first, wherever they stand.
    for of_system in (True, False):
        for message in ordered:
            if isinstance(message, dict) and (message.get("role") in ("system", "developer")) == of_system:
                yield from _message(message)


def _message(message: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    role = "system" if message.get("role") == "developer" else message.get("role")
    calls = message.get("tool_calls") or []
    own = message.get(MARK)
    names = [message[name] for name in ("tool_call_id", "name") if message.get(name)]
    head = [role, *names]
    yield from _content(head if names else role, message.get("content"), None if calls else own)
    for number, call in enumerate(calls, 1):
        mark = call.get(MARK) if isinstance(call, dict) else None
        yield [role, "call", _unmarked(call)], mark if mark is not None or number < len(calls) else own


def _content(role: Any, content: Any, own: Any) -> Iterator[tuple[Any, Any]]:
    """own: a mark of the whole message, which is its last block's."""
    if not content:
        return
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for number, part in enumerate(parts, 1):
        mark = part.get(MARK) if isinstance(part, dict) else None
        yield [role, _unmarked(part)], mark if mark is not None or number < len(parts) else own


def _unmarked(block: Any) -> Any:
    if isinstance(block, dict):
        return {key: _unmarked(value) for key, value in block.items() if key != MARK}
    if isinstance(block, list):
        return [_unmarked(each) for each in block]
    return block


def _ttl_s(mark: Any) -> float | None:
    if not isinstance(mark, dict):
        return None
    return TTL_S.get(str(mark.get("ttl") or "5m"), TTL_S["5m"])
