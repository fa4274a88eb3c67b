"""Numbers of a trace, against values worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.traces.native import open_trace
from kvbench.traces.stats import Spread, TraceStats, trace_stats


def stats(tmp_path: Path, *lines: dict[str, Any]) -> TraceStats:
    path = tmp_path / "by-hand.jsonl"
    header = {"kvbench_trace": 1, "block_size": 10}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    with open_trace(path) as trace:
        return trace_stats(trace)


def test_a_tree_with_text(tmp_path: Path) -> None:
    user = [{"role": "user", "content": "x" * 40}]
    found = stats(
        tmp_path,
        {"prefix": "p", "messages": [{"role": "system", "content": "s" * 400}]},
        {"prefix": "unused", "tools": [{}]},
        {"session_id": "a", "turn": 0, "start_s": 2, "prefix": "p", "append": user, "output_tokens": 5},
        {"session_id": "b", "turn": 0, "parent": {"session_id": "a", "turn": 0}, "delay_s": 1, "append": user},
        {"session_id": "c", "turn": 0, "parent": {"session_id": "b", "turn": 0}, "delay_s": 4, "append": user},
        {"session_id": "b", "turn": 1, "delay_s": 2, "append": user, "recorded": {"e2e_s": 10}, "model": "m"},
        {"session_id": "a", "turn": 1, "delay_s": 3, "after": ["b", "c"], "append": user, "output_tokens": 7},
    )
    assert found.name == "by-hand"
    assert (found.sessions, found.roots, found.sub_agents, found.depth) == (3, 1, 2, 3)
    assert (found.turns, found.joins) == (5, 1)
    assert found.input_tokens is None
    assert found.input_tokens_estimated == 110 + 10 + 10 + 20 + 120
    assert found.longest_context_tokens_estimated == 120
    assert (found.output_tokens, found.turns_without_output_tokens) == (12, 3)
    # pauses 1, 2, 3, 4: p95 lies 0.85 of the way from 3 to 4
    assert found.pause_s == Spread(n=4, p50=2.5, p95=pytest.approx(3.85), max=4.0)
    # a.0 at 2, b.0 at 3, b.1 at 5 until 15, c.0 at 7; a.1 at 15 + 3
    assert found.span_s == 18.0
    assert [(use.name, use.sessions, use.tokens_estimated) for use in found.shared_prompts] == [
        ("p", 1, 100),
        ("unused", 0, 1),
    ]
    assert found.models == ("m",)


def test_a_trace_of_block_ids_has_exact_lengths(tmp_path: Path) -> None:
    found = stats(
        tmp_path,
        {"session_id": "h", "turn": 0, "input_tokens": 25, "hash_ids": [1, 2]},
        {"session_id": "h", "turn": 1, "input_tokens": 30, "keep_blocks": 2, "hash_ids": [3]},
    )
    assert (found.input_tokens, found.input_tokens_estimated) == (55, None)
    assert (found.longest_context_tokens, found.longest_context_tokens_estimated) == (30, None)
    assert found.output_tokens is None
    assert found.pause_s == Spread(n=1, p50=0.0, p95=0.0, max=0.0)
