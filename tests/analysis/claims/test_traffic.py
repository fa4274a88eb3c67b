"""Lengths and new tokens of traces: by hand, and on public traces against a count of prefixes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest
from tests.public_traces import MOONCAKE_BLOCK, WEKA_BLOCK, Prompt, data, mooncake, weka

from kvbench.analysis.claims import Traffic, traffic_of
from kvbench.errors import RefusedError
from kvbench.traces.importing import open_workload


def read(path: Path) -> Traffic:
    with open_workload(path) as trace:
        return traffic_of(trace)


def native(path: Path, *lines: dict[str, object]) -> Path:
    header = {"kvbench_trace": 1, "name": "toy", "block_size": 10}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    return path


def test_new_tokens_by_hand(tmp_path: Path) -> None:
    found = read(
        native(
            tmp_path / "toy.jsonl",
            # 25 new; then 2 blocks known, 18 of 38 new; then another session: 1 block known, 15 of 25 new
            {"session_id": "a", "turn": 0, "start_s": 0, "input_tokens": 25, "output_tokens": 7, "hash_ids": [1, 2]},
            {"session_id": "a", "turn": 1, "input_tokens": 38, "output_tokens": 5, "keep_blocks": 2, "hash_ids": [3]},
            {"session_id": "b", "turn": 0, "start_s": 9, "input_tokens": 25, "output_tokens": 1, "hash_ids": [1, 4]},
        )
    )
    assert found.contexts.tolist() == [32, 43, 26]
    assert (found.input_tokens, found.output_tokens, found.new_tokens) == (88, 13, 25 + 18 + 15)
    assert found.hit_ceiling == Fraction(30, 88)
    assert (found.without_output, found.block_size, found.estimated, found.sharing_known) == (0, 10, False, True)


def test_a_block_after_another_prefix_is_another_block(tmp_path: Path) -> None:
    # ids that name contents, not prefixes: of c, 9 was sent, and 2 only behind 1
    lines = [
        {"session_id": name, "turn": 0, "start_s": 0, "input_tokens": 20, "output_tokens": 1, "hash_ids": ids}
        for name, ids in (("a", [1, 2]), ("b", [9, 8]), ("c", [9, 2]), ("d", [9, 2]))
    ]
    assert read(native(tmp_path / "t.jsonl", *lines)).new_tokens == 20 + 20 + 10 + 0


def test_a_last_block_that_is_not_full_counts_its_own_tokens(tmp_path: Path) -> None:
    turn = {"start_s": 0, "input_tokens": 15, "output_tokens": 2, "hash_ids": [1, 2]}
    found = read(
        native(tmp_path / "t.jsonl", {"session_id": "a", "turn": 0} | turn, {"session_id": "b", "turn": 0} | turn)
    )
    assert found.new_tokens == 15


def test_answers_without_a_length_are_counted_as_none_and_told(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    turns = [{"session_id": "a", "turn": 0, "start_s": 0, "append": [{"role": "user", "content": "x" * 400}]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"kvbench_trace": 1}, *turns)))
    found = read(path)
    assert (found.without_output, found.contexts.tolist(), found.estimated) == (1, [100], True)


def test_a_trace_without_a_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    turns = [{"session_id": "a", "turn": 0, "start_s": 0, "append": [{"role": "user", "content": ""}]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"kvbench_trace": 1}, *turns)))
    with pytest.raises(RefusedError, match="not one token"):
        read(path)


def test_the_bundled_workload_is_estimated_and_told() -> None:
    from kvbench.traces.bundled import resolve_trace

    found = read(resolve_trace("agent-trace.jsonl"))
    assert found.requests == 215
    assert found.estimated
    assert "4 characters a token" in found.tokens


# --------------------------------------------------------------------------------------------------- public traces


def new_tokens(prompts: Iterable[Prompt], block: int) -> int:
    """Tokens behind the longest run of leading ids that some earlier prompt began with."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        known = 0
        while known < len(prompt.ids) and tuple(prompt.ids[: known + 1]) in seen:
            known += 1
        total += prompt.input_tokens - min(known * block, prompt.input_tokens)
        seen.update(tuple(prompt.ids[:n]) for n in range(1, len(prompt.ids) + 1))
    return total


def test_mooncake() -> None:
    path = data("mooncake", "conversation_first400.jsonl")
    prompts = mooncake(path)
    found = read(path)
    assert found.contexts.tolist() == [prompt.input_tokens + prompt.output_tokens for prompt in prompts]
    assert found.new_tokens == new_tokens(prompts, MOONCAKE_BLOCK)
    assert 0 < found.hit_ceiling < 1


@pytest.mark.parametrize("name", ["trace_0026.json", "trace_0057.json", "trace_0091.json"])
def test_weka(name: str) -> None:
    prompts = weka(data("weka", name))
    found = read(data("weka", name))
    assert sorted(found.contexts) == sorted(prompt.input_tokens + prompt.output_tokens for prompt in prompts)
    assert found.new_tokens == new_tokens(prompts, WEKA_BLOCK)


def test_a_log_of_lengths_does_not_say_what_is_shared() -> None:
    found = read(data("burstgpt", "burstgpt3_excerpt26.csv"))
    assert not found.sharing_known
