"""`kvbench predict` over HTTP: fitted at one load, held against others that were run too."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.pressure_trace import write_trace

ENDPOINT = (
    "sim:tiny?frontend_s=0&prefill_base_s=0.03&prefill_s_per_token=1e-4&attention_s_per_token2=1e-8&noise_sigma=0.03"
    "&num_blocks=272&max_model_len=8000&decode_base_s=0.02"
)
"""8,672 tokens: six of the sessions below nearly fit. Times are large beside a busy machine's."""
POOL = 271 * 32


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
    write_trace(tmp_path / "t.jsonl", 1, 24)
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
