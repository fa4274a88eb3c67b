"""Published traces, as they are, on the simulated endpoint over HTTP: every turn, lengths exact, hits as expected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.public_traces import WEKA_BLOCK, Prompt, data, hits_of_ids, mooncake, weka

from kvbench.sim.process import SimProcess

# Room for every block, and next to no time per token: what is tested is prompts and hits, not waiting.
FAST = {
    "num_blocks": 1_000_001,
    "max_model_len": 262_144,
    "max_batched_tokens": 1_000_000,
    "frontend_s": 0,
    "prefill_base_s": 0,
    "prefill_s_per_token": 0,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.0002,
    "decode_s_per_request": 0,
}
BLOCK = 32
WEKA_NAMES = [f"trace_{n}" for n in ["0014", "0026", "0057", "0091", "0274", "0277", "0291", "0326", "0422", "0553"]]


@pytest.fixture
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("vllm-small", settings=FAST) as process:
        yield process


def run(kvbench: Kvbench, trace: Path, url: str, *arguments: str) -> dict[str, Any]:
    done = kvbench("run", trace, "--endpoint", url, "--time-scale", "0", "--json", *arguments)
    assert done.returncode in (0, 3), done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def check(got: dict[str, Any], prompts: list[Prompt], cwd: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Every turn, at its length; nothing outside the expectation. Returns the records' usages."""
    assert got["requests"] == {"ok": len(prompts), "failed": 0, "skipped": 0, "retried": 0}
    rows = [json.loads(line) for line in (cwd / got["run"] / "records.jsonl").read_text().splitlines()]
    sent = Counter((row["usage"]["input_tokens"], row["usage"]["output_tokens"]) for row in rows)
    assert sent == Counter((prompt.input_tokens, prompt.output_tokens) for prompt in prompts)
    assert got["prompt_lengths"]["exact_turns"] == len(prompts)
    expected = got["expected_hit_rate"]
    assert (expected["turns"], expected["below"], expected["above"]) == (len(prompts), 0, 0)
    return {(row["session_id"], row["turn"]): row["usage"] for row in rows}


@pytest.mark.parametrize("name", WEKA_NAMES)
def test_weka_traces(kvbench: Kvbench, sim: SimProcess, tmp_path: Path, name: str) -> None:
    path = data("weka", f"{name}.json")
    prompts = weka(path)
    usages = check(run(kvbench, path, sim.url, "--model", "sim-small"), prompts, tmp_path)
    if len({prompt.session_id for prompt in prompts}) == 1:
        # one after the other: what is cached follows from the ids, but for tails inside a block of the trace
        for prompt, (low, high) in zip(prompts, hits_of_ids(prompts, WEKA_BLOCK, BLOCK), strict=True):
            assert low <= usages[prompt.session_id, prompt.turn]["cached_tokens"] <= high


def test_the_first_400_rows_of_mooncake(kvbench: Kvbench, sim: SimProcess, tmp_path: Path) -> None:
    path = data("mooncake", "conversation_first400.jsonl")
    prompts = mooncake(path)
    assert len(prompts) == 400
    got = run(kvbench, path, sim.url)
    check(got, prompts, tmp_path)
    assert got["input_tokens"] == 5_710_530
