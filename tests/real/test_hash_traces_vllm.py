"""Published traces of hash ids, as they are, on a real vLLM, as token ids: exact lengths, expected hits.

The Mooncake rows are the first 16 of the slice that have up to 8,192 input tokens: the whole 183 take 200 s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers.sizes import roomy
from servers.vllm import VllmServer
from tests.public_traces import WEKA_BLOCK, Prompt, data, hits_of_ids, mooncake, short_rows, weka

pytestmark = [pytest.mark.real, roomy]

BLOCK = 32
ROWS = 16


def run(kvbench: Any, *arguments: Any) -> dict[str, Any]:
    done = kvbench("run", *arguments, "--json")
    assert done.returncode in (0, 3), done.stderr  # 3: two busy cores may be too slow to be trusted
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def rows(got: dict[str, Any], cwd: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cwd / got["run"] / name).read_text().splitlines()]


def check(got: dict[str, Any], prompts: list[Prompt], cwd: Path) -> dict[tuple[str, int], int]:
    """Every turn recorded, at its length, inside [floor, ceiling]; cached tokens by turn."""
    assert got["requests"] == {"ok": len(prompts), "failed": 0, "skipped": 0, "retried": 0}
    assert got["rule"] == f"block {BLOCK}"
    expectations = {row["request_id"]: row["expectation"] for row in rows(got, cwd, "expectations.jsonl")}
    wanted = {(prompt.session_id, prompt.turn): prompt for prompt in prompts}
    cached: dict[tuple[str, int], int] = {}
    for record in rows(got, cwd, "records.jsonl"):
        usage, expected = record["usage"], expectations[record["request_id"]]
        key = record["session_id"], record["turn"]
        assert usage["input_tokens"] == expected["input_tokens"] == wanted[key].input_tokens, key
        assert usage["output_tokens"] == wanted[key].output_tokens, key
        assert expected["floor"] <= usage["cached_tokens"] <= expected["ceiling"], (key, usage, expected)
        cached[key] = usage["cached_tokens"]
    assert cached.keys() == wanted.keys()
    assert got["prompt_lengths"]["exact_turns"] == len(prompts)
    assert got["prompt_lengths"]["sent_as"] == "token ids"
    return cached


@pytest.mark.parametrize("name", ["trace_0057", "trace_0026"])
def test_a_session_of_weka_hits_just_what_its_ids_say(
    vllm: VllmServer, kvbench: Any, tmp_path: Path, name: str
) -> None:
    trace = data("weka", f"{name}.json")
    prompts = weka(trace)
    got = run(kvbench, trace, "--endpoint", vllm.url, "--time-scale", "0", "--model", vllm.model)
    cached = check(got, prompts, tmp_path)
    # one turn at a time: every expectation is a point
    assert got["expected_hit_rate"]["exact"] == len(prompts)
    for prompt, (low, high) in zip(prompts, hits_of_ids(prompts, WEKA_BLOCK, BLOCK), strict=True):
        assert low <= cached[prompt.session_id, prompt.turn] <= high


def test_rows_of_mooncake_that_overlap_stay_inside_the_expectation(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    trace = short_rows(data("mooncake", "conversation_first400.jsonl"), tmp_path / "m.jsonl", 8_192, ROWS)
    prompts = mooncake(trace)
    assert len(prompts) == ROWS
    got = run(kvbench, trace, "--endpoint", vllm.url, "--time-scale", "0.2")
    check(got, prompts, tmp_path)


def test_text_has_the_wanted_length_with_the_chat_template_inside(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    profile = tmp_path / "text.toml"
    trace = short_rows(data("mooncake", "conversation_first400.jsonl"), tmp_path / "m.jsonl", 2_048, 6)
    prompts = mooncake(trace)
    profile.write_text(f'url = "{vllm.url}"\nhash_prompts = "text"\n')
    got = run(kvbench, trace, "--endpoint", profile, "--time-scale", "0", "--sessions", "1")
    assert got["prompt_lengths"]["exact_turns"] == len(prompts) == 6
    assert got["prompt_lengths"]["template_tokens"] > 0
    assert got["expected_hit_rate"]["exact"] == 6


def test_live_history_goes_on_with_the_tokens_that_were_generated(
    vllm: VllmServer, kvbench: Any, tmp_path: Path
) -> None:
    """All but the last generated token are cached: 200 + 59 of 400, and 400 + 79 of 600."""
    trace = tmp_path / "t.jsonl"
    lines = [
        {"kvbench_trace": 1, "name": "live", "block_size": 64},
        {"session_id": "s", "turn": 0, "input_tokens": 200, "output_tokens": 60, "hash_ids": [1, 2, 3]},
        {
            "session_id": "s",
            "turn": 1,
            "input_tokens": 400,
            "output_tokens": 80,
            "keep_blocks": 3,
            "hash_ids": [4, 5, 6],
        },
        {
            "session_id": "s",
            "turn": 2,
            "input_tokens": 600,
            "output_tokens": 5,
            "keep_blocks": 6,
            "hash_ids": [7, 8, 9],
        },
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    got = run(kvbench, trace, "--endpoint", vllm.url, "--time-scale", "0", "--history", "live")
    cached = [record["usage"]["cached_tokens"] for record in rows(got, tmp_path, "records.jsonl")]
    assert cached == [0, 259 // BLOCK * BLOCK, 479 // BLOCK * BLOCK]
    assert got["expected_hit_rate"]["exact"] == 3
    assert got["prompt_lengths"]["exact_turns"] == 3
