"""The smaller probes against a real vLLM whose rules are known."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.sizes import tight
from servers.vllm import VllmServer

pytestmark = [pytest.mark.real, tight]


def probe(kvbench: Callable[..., Any], vllm: VllmServer, name: str, *more: object) -> dict[str, Any]:
    done = kvbench("probe", name, "--endpoint", vllm.url, "--yes", "--json", *map(str, more))
    assert done.returncode in (0, 3), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {e["name"]: e for e in report["estimates"]}


def test_the_hit_rule_is_told(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    report = probe(kvbench, vllm, "granularity")
    assert report["granularity_tokens"]["low"] == report["granularity_tokens"]["high"] == 32
    assert report["notes"] == ["hit rule: block, 32 tokens, the last token is computed again"]


def test_nothing_lapses_with_age(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    report = probe(kvbench, vllm, "ttl", "--min-age", 0.3, "--max-age", 2, "--passes", 1, "--input-tokens", 301)
    assert report["ttl_s"]["value"] is None
    assert report["ttl_s"]["low"] >= 2


def test_answers_from_the_cache_come_with_log_probabilities(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    """They need not be the same as computed ones: kernels add in another order. They are near, and all are compared."""
    report = probe(kvbench, vllm, "consistency", "--prompts", 5, "--output-tokens", 16, "--input-tokens", 301)
    for group in ("cached", "computed"):
        assert report[f"{group}_answers_differ"]["n"] == 5
        assert 5 <= report[f"{group}_logprob_off_largest"]["n"] <= 5 * 16
        assert report[f"{group}_logprob_off_median"]["value"] <= report[f"{group}_logprob_off_largest"]["value"] < 0.1


def test_long_misses_take_longer_than_short_ones(vllm: VllmServer, kvbench: Callable[..., Any], tmp_path: Path) -> None:
    """What is fitted to them may be refused on a busy machine, with its reason; the times are there."""
    report = probe(kvbench, vllm, "latency", "--cells", 20, "--repeats", 3, "--max-input-tokens", 4_096)
    assert all(e["low"] <= e["value"] <= e["high"] for e in report["estimates"] if e["value"] is not None)
    records = [json.loads(line) for line in (tmp_path / report["runs"][0] / "records.jsonl").read_text().splitlines()]
    took: dict[bool, list[int]] = {True: [], False: []}
    for record in records:
        usage, clock = record["usage"], record["clock"]
        uncached = usage["input_tokens"] - usage["cached_tokens"]
        if record["request_id"].endswith(".read") and (uncached > 1_500 or uncached < 500):
            took[uncached > 1_500].append(clock["first_token"] - clock["sent"])
    assert min(len(took[True]), len(took[False])) >= 5
    assert statistics.median(took[True]) > 2 * statistics.median(took[False])
