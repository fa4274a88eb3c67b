"""Hit rate and TTFT of a load that was held out, against a real vLLM whose pool is small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from servers.sizes import tight
from servers.vllm import VllmServer
from tests.pressure_trace import write_trace

pytestmark = [pytest.mark.real, tight]


BUSY = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
"""Above what the server and the client take by themselves."""


@pytest.fixture(scope="module")
def predicted(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """40 sessions that begin alike, 13 and 20 live at a time, in 16,352 tokens; one request at a time."""
    cwd = tmp_path_factory.mktemp("predict")
    write_trace(cwd / "t.jsonl", 1, 40)

    def kvbench(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "kvbench", *words, "--json"]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode in (0, 3), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    options = ("--endpoint", vllm.url, "--time-scale", "0.02", "--max-in-flight", "1")
    runs = [kvbench("run", "t.jsonl", *options, "--sessions", sessions)["run"] for sessions in ("13", "20")]
    found = kvbench("predict", *runs)
    return found | {figure["name"]: figure for figure in found["figures"]}


def test_the_hit_rate_of_a_held_out_load_is_predicted(vllm: VllmServer, predicted: dict[str, Any]) -> None:
    assert abs(predicted["capacity_tokens"] / vllm.settings.capacity_tokens - 1) < 0.01
    assert predicted["hit_rate"]["observed"] < 0.6
    assert abs(predicted["hit_rate"]["error"]) < 0.02, predicted["hit_rate"]
    assert predicted["cliff"]["falls_at"] <= 13


@pytest.mark.skipif(BUSY, reason="the cores are busy: times of a server on them are those of the others too")
def test_ttft_of_a_held_out_load_is_predicted(predicted: dict[str, Any]) -> None:
    refused = [refusal["reason"] for refusal in predicted["refusals"] if refusal["name"].startswith("ttft")]
    if any("misfit" in reason or "are off by more than" in reason for reason in refused):
        pytest.skip(f"the machine was too busy to say: {refused[0]}")
    assert "ttft_p50_s" in predicted, predicted["refusals"]
    assert abs(predicted["ttft_p50_s"]["error"]) < 0.1, predicted["ttft_p50_s"]
