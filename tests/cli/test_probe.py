"""The smaller probes over HTTP, against an endpoint whose rules are set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import Kvbench

QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"


def probe(kvbench: Kvbench, name: str, sim: str, *more: Any) -> dict[str, Any]:
    done = kvbench("probe", name, "--endpoint", f"sim:{sim}", "--yes", "--json", *more)
    assert done.returncode in (0, 3), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == bool(report["estimates"])
    return report | {e["name"]: e for e in report["estimates"]}


@pytest.mark.parametrize(
    ("settings", "grain", "rule"),
    [
        ("block_size=16&num_blocks=1024", 16, "the last token is computed again"),
        ("recompute_last_token=false", 32, "nothing is computed again"),
        ("window_tokens=128&window_replay=always", 32, "hits of up to 128 tokens are not taken"),
        ("window_tokens=128&window_replay=never", 32, "up to where an earlier prompt ended (layers with a state"),
    ],
)
def test_the_hit_rule_is_told(kvbench: Kvbench, settings: str, grain: int, rule: str) -> None:
    report = probe(kvbench, "granularity", f"tiny?{QUICK}&{settings}")
    assert report["granularity_tokens"]["value"] == report["granularity_tokens"]["low"] == grain
    assert rule in report["notes"][0]


def test_a_lifetime_is_bracketed(kvbench: Kvbench) -> None:
    report = probe(
        kvbench, "ttl", f"tiny?{QUICK}&idle_ttl_s=0.8", "--min-age", "0.2", "--max-age", "1.6", "--passes", "2"
    )
    assert report["ttl_s"]["low"] <= 0.8 <= report["ttl_s"]["high"]
    assert report["ttl_s"]["high"] - report["ttl_s"]["low"] < 0.2


LATENCIES = (
    "frontend_s=0&prefill_base_s=0.02&prefill_s_per_token=1e-4&attention_s_per_token2=5e-8&decode_base_s=0.004"
    "&decode_s_per_context_token=4e-6"
)


def near(report: dict[str, Any], name: str, truth: float, off: float) -> bool:
    assert name in report, report["refusals"]
    return bool(abs(report[name]["value"] / truth - 1) < off)


def test_what_hits_misses_and_context_cost_is_found(kvbench: Kvbench) -> None:
    """100 us an uncached token, 50 ns a pair, 4 us a token of context each step, nothing for a cached token; 512 bytes
    a token at 5.12 MB/s, and 30 ms, where a hit comes from the host. Times are large beside a busy machine's."""
    pool = (
        "num_blocks=101&max_model_len=2300&host_bytes=100000000&host_bandwidth_bytes_per_s=5.12e6&host_latency_s=0.03"
    )
    options = ("--cells", 16, "--repeats", 2, "--max-input-tokens", 1500, "--output-tokens", 8)
    report = probe(kvbench, "latency", f"tiny?{LATENCIES}&{pool}", *options, "--tier-after-tokens", 3201)
    assert near(report, "prefill_s_per_token", 1e-4, 0.25)
    assert near(report, "attention_s_per_token2", 5e-8, 0.3)
    assert report["prefill_s_per_cached_token"]["high"] < 1e-5
    assert near(report, "tier_s_per_token", 1e-4, 0.25)
    assert near(report, "tier_latency_s", 0.03, 0.5)
    assert near(report, "decode_s_per_context_token", 4e-6, 0.4)
    again = kvbench("fit", report["runs"][0], "--tier-bandwidth", "5.12e6", "--hbm-bandwidth", "1e9", "--json")
    found = {e["name"]: e for e in json.loads(again.stdout)["estimates"]}
    assert abs(found["bytes_per_token_through_tier"]["value"] / 512 - 1) < 0.25
    assert abs(found["decode_bytes_read_per_context_token"]["value"] / 4000 - 1) < 0.4


def test_answers_from_the_cache_are_compared(kvbench: Kvbench) -> None:
    report = probe(kvbench, "consistency", f"tiny?{QUICK}", "--prompts", "4", "--output-tokens", "6")
    assert report["cached_answers_differ"]["n"] == 4
    assert report["computed_answers_differ"]["high"] < 1


def test_the_gauge_tells_what_a_token_and_a_request_take(kvbench: Kvbench) -> None:
    """511 blocks of 16,384 bytes to 32 tokens; a request pins 4 more, and what it rounds up by is taken off.
    The server states its memory, the null block's included."""
    report = probe(kvbench, "occupancy", "tiny?bytes_per_session=65536&decode_base_s=0.004", "--repeats", "1")
    capacity, session = report["capacity_tokens_of_gauge"], report["bytes_per_session_of_gauge"]
    assert abs(capacity["value"] / (511 * 32) - 1) < 0.02
    assert capacity["high"] - capacity["low"] < 0.1 * capacity["value"]
    assert abs(report["bytes_per_token_of_gauge"]["value"] / (512 * 512 / 511) - 1) < 0.02
    assert abs(session["value"] / (4 * 16_384) - 1) < 0.15
    assert any("kv_cache_memory_bytes" in text for text in report["assumed"])
    assert any("claimed by the server, and not used: block_size 32" in text for text in report["notes"])


def test_without_a_gauge_nothing_is_sent(kvbench: Kvbench) -> None:
    report = probe(kvbench, "occupancy", "deepseek-api")
    assert "no kv_cache_usage_perc" in report["refusals"][0]["reason"]
    assert not report["estimates"]
