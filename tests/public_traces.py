"""Public traces read without the package's own readers, and the hits that their ids alone allow."""

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


def weka(path: Path) -> list[Prompt]:
    """The requests of a Weka trace, depth first; turns of sub-agents under a name of their own."""
    trace = json.loads(path.read_text())
    prompts: list[Prompt] = []

    def session(name: str, requests: list[dict[str, Any]]) -> None:
        turn = 0
        for request in requests:
            if request["type"] == "subagent":
                session(f"{name}.{len(prompts)}", request["requests"])
                continue
            prompts.append(Prompt(name, turn, request["hash_ids"], request["in"], max(1, request["out"])))
            turn += 1

    session(trace["id"], trace["requests"])
    return prompts


def mooncake(path: Path, longest: int | None = None) -> list[Prompt]:
    """The rows of a Mooncake file, up to `longest` input tokens, each a session named after its line."""
    rows = enumerate(map(json.loads, path.read_text().splitlines()), 1)
    return [
        Prompt(f"row{line}", 0, row["hash_ids"], row["input_length"], row["output_length"])
        for line, row in rows
        if longest is None or row["input_length"] <= longest
    ]


def short_rows(path: Path, out: Path, longest: int, rows: int | None = None) -> Path:
    """`out`, with the first `rows` of the file's rows of up to `longest` input tokens, as they are."""
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["input_length"] <= longest]
    out.write_text("\n".join(lines[:rows]))
    return out


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
