"""Public traces as native ones, read without the package's own readers, and the hits that their ids alone allow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

WEKA_BLOCK, MOONCAKE_BLOCK = 64, 512


class Prompt(NamedTuple):
    """One request of a public trace: all ids of its blocks, and its lengths in tokens."""

    session_id: str
    turn: int
    ids: list[int]
    input_tokens: int
    output_tokens: int


def data(*parts: str) -> Path:
    """A file of the public samples; the test is skipped without them."""
    root = os.environ.get("KVBENCH_TEST_DATA")
    if not root:
        pytest.skip("KVBENCH_TEST_DATA is not set")
    return Path(root, *parts)


def weka(path: Path, out: Path) -> list[Prompt]:
    """Write `path` as a native trace: sub-agents are children of the request before them; nobody joins them."""
    trace = json.loads(path.read_text())
    prompts: list[Prompt] = []
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": trace["id"], "block_size": WEKA_BLOCK}]

    def session(name: str, requests: list[dict[str, Any]], first: dict[str, Any]) -> None:
        before: list[int] = []
        turn = 0
        for request in requests:
            if request["type"] == "subagent":
                parent = {"session_id": name, "turn": max(turn - 1, 0)}
                session(f"{name}.{len(lines)}", request["requests"], {"parent": parent})
                continue
            ids = request["hash_ids"]
            prompt = Prompt(name, turn, ids, request["in"], max(1, request["out"]))
            lines.append(_line(prompt, before) | (first if turn == 0 else {"delay_s": request.get("think_time", 0.0)}))
            prompts.append(prompt)
            before, turn = ids, turn + 1

    session(trace["id"], trace["requests"], {"start_s": 0})
    _write(out, lines)
    return prompts


def mooncake(path: Path, out: Path, *, longest: int | None = None, rows: int | None = None) -> list[Prompt]:
    """Write the rows of `path` up to `longest` input tokens, the first `rows` of them, as a native trace."""
    prompts: list[Prompt] = []
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "mooncake", "block_size": MOONCAKE_BLOCK}]
    for number, text in enumerate(path.read_text().splitlines()):
        row = json.loads(text)
        if longest is not None and row["input_length"] > longest:
            continue
        if len(prompts) == rows:
            break
        prompt = Prompt(f"row{number}", 0, row["hash_ids"], row["input_length"], row["output_length"])
        lines.append(_line(prompt, []) | {"start_s": row["timestamp"] / 1000})
        prompts.append(prompt)
    _write(out, lines)
    return prompts


def hits_of_ids(prompts: Iterable[Prompt], trace_block: int, server_block: int) -> list[tuple[int, int]]:
    """For each prompt, sent after all before it have ended, the least and the most that can be cached of it.

    At least the longest run of leading ids that an earlier prompt begins with, too; at most that and less than a block
    of the trace more, which are tails: whole blocks of the server, and never the last token.
    """
    seen: set[tuple[int, ...]] = set()
    bounds = []
    for prompt in prompts:
        blocks = next((n for n in range(len(prompt.ids), 0, -1) if tuple(prompt.ids[:n]) in seen), 0)
        low, high = (
            min(tokens, prompt.input_tokens - 1) // server_block * server_block
            for tokens in (blocks * trace_block, blocks * trace_block + trace_block - 1)
        )
        bounds.append((low, high))
        whole = prompt.ids[: prompt.input_tokens // trace_block]
        seen.update(tuple(whole[:n]) for n in range(1, len(whole) + 1))
    return bounds


def _line(prompt: Prompt, before: list[int]) -> dict[str, Any]:
    keep = 0
    while keep < min(len(before), len(prompt.ids)) and before[keep] == prompt.ids[keep]:
        keep += 1
    return {
        "session_id": prompt.session_id,
        "turn": prompt.turn,
        "input_tokens": prompt.input_tokens,
        "output_tokens": prompt.output_tokens,
        "keep_blocks": keep,
        "hash_ids": prompt.ids[keep:],
    }


def _write(out: Path, lines: list[dict[str, Any]]) -> None:
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
