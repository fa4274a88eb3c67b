"""The smaller probes against a real vLLM whose rules are known."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_a_miss_costs_more_than_a_hit_or_the_client_is_too_slow(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    report = probe(kvbench, vllm, "latency", "--cells", 20, "--repeats", 3, "--max-input-tokens", 4_096)
    if not report["estimates"]:
        known = ("own error is too large", "requests are off by", "too few or too uneven")
        assert any(word in report["refusals"][0]["reason"] for word in known)
        return
    uncached, attention = report["prefill_s_per_token"], report["attention_s_per_token2"]
    assert uncached["high"] > 0
    # 4,000 uncached tokens, by the two terms that they are in: milliseconds, not microseconds or seconds
    assert 0.005 < 4000 * uncached["value"] + 8e6 * attention["value"] < 2
