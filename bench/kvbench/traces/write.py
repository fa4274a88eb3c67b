"""Write native trace lines (workloads/README.md): the inverse of lines.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from kvbench.model import SharedPrompt, TraceHeader, Tree, Turn


def header_line(header: TraceHeader) -> bytes:
    known = {
        "name": header.name or None,
        "block_size": header.block_size,
        "source": header.source,
        "prefixes": header.prefixes,
    }
    return _line({"kvbench_trace": header.version, **_given(known), **header.extra})


def prefix_line(prompt: SharedPrompt) -> bytes:
    content = {"messages": list(prompt.messages) or None, "tools": list(prompt.tools) or None}
    return _line({"prefix": prompt.name, **_given(content), **prompt.extra})


def turn_line(turn: Turn) -> bytes:
    """One turn; `line` is not written, it is where the line then stands."""
    return _line(turn_fields(turn))


def turn_fields(turn: Turn) -> dict[str, Any]:
    """What turn_line writes, as an object."""
    fields: dict[str, Any] = {
        "session_id": turn.session_id,
        "turn": turn.turn,
        "parent": msgspec.to_builtins(turn.parent),
        "after": turn.after or None,
        "start_s": turn.start_s,
        "delay_s": turn.delay_s or None,
        "prefix": turn.prefix,
        "model": turn.model,
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
        "tools": turn.tools,
        "messages": turn.messages,
        "append": turn.append,
        "keep_blocks": turn.keep_blocks,
        "hash_ids": turn.hash_ids,
        "recorded": None if turn.recorded is None else _given(msgspec.to_builtins(turn.recorded)),
    }
    line = _given(fields)
    for name, value in turn.extra.items():
        # Unknown fields inside a known object (parent, recorded) go back into it.
        line[name] = line[name] | value if name in line else value
    return line


def trace_lines(header: TraceHeader, prompts: Iterable[SharedPrompt], trees: Iterable[Tree]) -> Iterable[bytes]:
    """A whole trace, tree by tree."""
    yield header_line(header)
    yield from map(prefix_line, prompts)
    for tree in trees:
        for session in tree.sessions:
            yield from map(turn_line, session.turns)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n"
