"""`kvbench fit` of an ordinary run over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kvbench
from tests.pressure_trace import write_trace

QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"
POOL = 700 * 32


def run(kvbench: Kvbench, tmp_path: Path, settings: str) -> Path:
    write_trace(tmp_path / "t.jsonl", 1, 60)
    done = kvbench(
        "run", "t.jsonl", "--endpoint", f"sim:tiny?{QUICK}&max_model_len=16000&{settings}", "--time-scale", "0.1",
        "--sessions", "16", "--max-in-flight", "1", "--out", "out", "--json",
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    return Path(json.loads(done.stdout)["run"])


def test_the_pool_of_a_run_under_pressure_is_found(kvbench: Kvbench, tmp_path: Path) -> None:
    path = run(kvbench, tmp_path, "num_blocks=701")
    done = kvbench("fit", path, "--kv-memory", POOL * 512, "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    found = {e["name"]: e for e in report["estimates"]}
    assert found["capacity_tokens"]["low"] <= POOL <= found["capacity_tokens"]["high"]
    assert abs(found["capacity_tokens"]["value"] / POOL - 1) < 0.01
    assert found["bytes_per_token"]["low"] <= 512 <= found["bytes_per_token"]["high"]
    assert report["misfit"]["share"] < report["misfit"]["limit"] == 0.005


def test_a_pool_that_others_use_is_refused(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("fit", run(kvbench, tmp_path, "num_blocks=701&foreign_share=0.3&seed=3"), "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert not {e["name"] for e in report["estimates"]} & {"capacity_tokens", "bytes_per_token"}
    assert "others use the cache" in report["refusals"][0]["reason"]
    assert report["misfit"]["causes"] == ["other traffic on the cache"]


def test_a_run_without_pressure_gives_a_bound_alone(kvbench: Kvbench, tmp_path: Path) -> None:
    done = kvbench("fit", run(kvbench, tmp_path, "num_blocks=20001"), "--kv-memory", 20_000 * 32 * 512, "--json")
    assert done.returncode == 0, done.stdout
    found = {e["name"]: e for e in json.loads(done.stdout)["estimates"]}
    capacity = found["capacity_tokens"]
    assert capacity["value"] is None
    assert capacity["high"] is None
    assert 0 < capacity["low"] <= 20_000 * 32
    assert found["bytes_per_token"]["value"] is None
    assert found["bytes_per_token"]["high"] >= 512
