"""`kvbench predict` over HTTP: fitted at one load, held against others that were run too."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench

ENDPOINT = (
    "sim:tiny?frontend_s=0&prefill_base_s=0.03&prefill_s_per_token=1e-4&attention_s_per_token2=1e-8&noise_sigma=0.03"
    "&num_blocks=272&max_model_len=8000&decode_base_s=0.02"
)
"""8,672 tokens: six of the sessions below nearly fit. Times are large beside a busy machine's."""
POOL = 271 * 32


def write_trace(path: Path, sessions: int) -> None:
    """Sessions of 3 to 9 turns that begin alike and grow by 32 to 400 tokens a turn."""
    rng = random.Random(1)
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "pressure", "block_size": 16}]
    shared, fresh = list(range(1, 20)), 100
    for number in range(sessions):
        length = len(shared)
        for turn in range(rng.randint(3, 9)):
            keep, added = (length - 1, rng.randint(2, 25)) if turn else (0, rng.randint(5, 60))
            ids = ([] if turn else shared) + list(range(fresh, fresh + added))
            fresh += added
            length = keep + len(ids)
            line = {"session_id": f"s{number}", "turn": turn, "input_tokens": length * 16 - rng.randint(0, 15)}
            line |= {"output_tokens": 2, "hash_ids": ids}
            lines.append(line | ({"keep_blocks": keep, "delay_s": rng.uniform(0.1, 1)} if turn else {"start_s": 0.0}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def replay(kvbench: Kvbench, sessions: int) -> str:
    options = ("--time-scale", 0.1, "--sessions", sessions, "--max-in-flight", 1, "--out", f"at{sessions}", "--json")
    done = kvbench("run", "t.jsonl", "--endpoint", ENDPOINT, *options)
    assert done.returncode in (0, 3), done.stderr
    return str(json.loads(done.stdout)["run"])


def predict(kvbench: Kvbench, *words: Any) -> dict[str, Any]:
    done = kvbench("predict", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {figure["name"]: figure for figure in found["figures"]}


@pytest.fixture
def runs(kvbench: Kvbench, tmp_path: Path) -> list[str]:
    """The same sessions, 7, 8 and 12 live at a time."""
    write_trace(tmp_path / "t.jsonl", 24)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda sessions: replay(kvbench, sessions), (7, 8, 12)))


def test_other_loads_are_predicted_from_one(kvbench: Kvbench, runs: list[str]) -> None:
    fitted, *held_out = runs
    for other in held_out:
        found = predict(kvbench, fitted, other)
        assert abs(found["capacity_tokens"] / POOL - 1) < 0.02
        assert abs(found["hit_rate"]["error"]) < 0.02, found["hit_rate"]
        assert "ttft_p50_s" in found, found["refusals"]
        assert abs(found["ttft_p50_s"]["error"]) < 0.1, found["ttft_p50_s"]
    assert found["hit_rate"]["observed"] < 0.5
    assert found["cliff"]["falls_at"] in (7, 8)
    assert found["cliff"]["present"]["needed_tokens"] > POOL
    half = predict(kvbench, fitted, "--split")
    assert abs(half["hit_rate"]["error"]) < 0.02
    assert abs(half["ttft_p50_s"]["error"]) < 0.1
    larger = predict(kvbench, fitted, "--sessions", 12, "--capacity-tokens", 40_000)
    assert larger["hit_rate"]["observed"] is None
    assert larger["hit_rate"]["value"] == larger["cliff"]["present"]["ceiling"]
    trace = predict(kvbench, fitted, "t.jsonl", "--sessions", 12, "--max-in-flight", 1)
    assert abs(trace["hit_rate"]["value"] - found["hit_rate"]["value"]) < 0.05
