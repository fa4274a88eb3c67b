"""Native traces read without the package's own reader, and the hits that an unbounded prefix cache would have."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Key = tuple[str, int]


class Line(NamedTuple):
    """A turn with hash ids: all ids of its prompt, and the line as it stands."""

    ids: list[int]
    fields: dict[str, Any]


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def turns(path: Path) -> dict[Key, Line]:
    """Turns of a native trace with hash ids by (session, turn), in the file's order."""
    found: dict[Key, Line] = {}
    for fields in objects(path):
        if "session_id" not in fields:
            continue
        session, turn = fields["session_id"], fields["turn"]
        before = found[session, turn - 1].ids if turn else []
        found[session, turn] = Line(before[: fields.get("keep_blocks", 0)] + fields["hash_ids"], fields)
    return found


def whole(line: Line, block_size: int) -> list[int]:
    """The ids of the prompt's whole blocks."""
    return line.ids[: line.fields["input_tokens"] // block_size]


def hits(prompts: Iterable[Sequence[Hashable]]) -> list[int]:
    """For each prompt, how many leading blocks are in the cache that all prompts before it have filled."""
    cache: dict[Any, Any] = {}
    found = []
    for prompt in prompts:
        at, count = cache, 0
        for block in prompt:
            if block in at:
                count += 1
            at = at.setdefault(block, {})
        found.append(count)
    return found


def same_sharing(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two lists of ids, each of a whole trace, have equal ids in the same places."""
    one: dict[int, int] = {}
    other: dict[int, int] = {}
    return len(a) == len(b) and all(
        one.setdefault(x, y) == y and other.setdefault(y, x) == x for x, y in zip(a, b, strict=True)
    )


def starts_s(turns: dict[Key, dict[str, Any]]) -> dict[Key, float]:
    """When each turn starts, straight from the format's rules."""
    last = {name: max(turn for session, turn in turns if session == name) for name, _ in turns}
    starts: dict[Key, float] = {}

    def end_s(key: Key) -> float:
        return start_s(key) + (turns[key].get("recorded") or {}).get("e2e_s", 0.0)

    def start_s(key: Key) -> float:
        if key not in starts:
            line = turns[key]
            waits = [(name, last[name]) for name in line.get("after", ())]
            if key[1]:
                waits.append((key[0], key[1] - 1))
            elif "parent" in line:
                waits.append((line["parent"]["session_id"], line["parent"]["turn"]))
            starts[key] = max(map(end_s, waits), default=line.get("start_s", 0.0)) + line.get("delay_s", 0.0)
        return starts[key]

    return {key: start_s(key) for key in turns}
