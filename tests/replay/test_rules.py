"""Which rule a run takes, from what a server shows of itself and what the profile says."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.metrics import ServerMetrics
from kvbench.endpoints.profile import ExpectedHitsRule
from kvbench.replay.rules import choose_rule
from kvbench.traces.prefix import BlockRule, StepsRule, UnitsRule

LABELS = (
    'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{blocks}",kv_cache_size_tokens="{stated}",'
    'enable_prefix_caching="{caching}",sliding_window="{window}",mamba_cache_mode="{mamba}",'
    'kv_offloading_size="{offloading}",engine="{engine}"}} 1.0\n'
)


def vllm(max_model_len: int | None = 8192, engines: int = 1, **labels: Any) -> EndpointInfo:
    """What a vLLM 0.32 with 512 blocks of 32 tokens says."""
    usual = {"size": 32, "blocks": 512, "stated": 16384, "caching": True, "window": None, "mamba": "none"}
    text = "".join(
        LABELS.format(**(usual | {"offloading": None, "engine": engine} | labels)) for engine in range(engines)
    )
    cache = ServerMetrics.from_text(text).cache
    assert cache is not None
    return EndpointInfo(
        dialect="vllm",
        model="m",
        block_size=cache.block_size,
        capacity_tokens=cache.capacity_tokens,
        max_model_len=max_model_len,
        cache=cache,
    )


AUTO = ExpectedHitsRule()


def test_a_plain_vllm_has_the_block_rule_with_its_capacity() -> None:
    assert choose_rule(AUTO, vllm()) == (BlockRule(32, 511 * 32), "")
    # vLLM states whole requests of max_model_len: 512 blocks / 313 blocks a request * 10,000
    assert choose_rule(AUTO, vllm(10_000, stated=16357))[0] == BlockRule(32, 511 * 32)
    assert choose_rule(AUTO, vllm(None))[0] == BlockRule(32, 511 * 32)
    # a server may leave the null block out of the count
    assert choose_rule(AUTO, vllm(stated=16352))[0] == BlockRule(32, 511 * 32)


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (vllm(stated=98_304), "512 blocks of 32 tokens hold 98304 tokens by the server's own account"),
        (vllm(stated=5_461), "several kinds of layers"),
        (vllm(None, stated=5_461), "several kinds of layers"),
        (vllm(window=4096), "sliding_window=4096"),
        (vllm(mamba="align"), "mamba_cache_mode=align"),
        (vllm(offloading=8.0), "kv_offloading_size=8.0"),
        (vllm(caching=False), "prefix cache is switched off"),
        (vllm(engines=2), "2 engines, each with a cache of its own"),
    ],
)
def test_anything_else_has_none_until_somebody_names_a_rule(info: EndpointInfo, why: str) -> None:
    rule, why_not = choose_rule(AUTO, info)
    assert rule is None
    assert why in why_not
    assert "[expected_hits]" in why_not
    # a rule that is named holds, but such a pool has no capacity in blocks
    assert choose_rule(ExpectedHitsRule(rule="block", block_size=256), info)[0] == BlockRule(256)


def test_other_servers() -> None:
    plain = EndpointInfo(dialect="openai", model="m")
    assert choose_rule(AUTO, plain)[0] is None
    assert "no rule is known" in choose_rule(AUTO, plain)[1]
    assert choose_rule(ExpectedHitsRule(rule="steps"), plain) == (StepsRule(), "")
    assert choose_rule(ExpectedHitsRule(rule="block", block_size=1), plain)[0] == BlockRule(1)
    assert "block size" in choose_rule(ExpectedHitsRule(rule="block"), plain)[1]
    assert choose_rule(AUTO, EndpointInfo(dialect="deepseek", model="m"))[0] == UnitsRule()
    assert choose_rule(ExpectedHitsRule(rule="none"), vllm())[0] is None


def test_replay_is_128_tokens_unless_said_otherwise() -> None:
    assert choose_rule(ExpectedHitsRule(rule="block-replay"), vllm())[0] == BlockRule(32, 511 * 32, 128)
    assert choose_rule(ExpectedHitsRule(rule="block-replay", replay_tokens=64), vllm())[0] == BlockRule(
        32, 511 * 32, 64
    )


def test_units_take_the_profiles_numbers_and_a_simulated_endpoints_time() -> None:
    said = ExpectedHitsRule(rule="units", granularity_tokens=64, interval_tokens=2048, build_s=3, lifetime_s=3600)
    info = EndpointInfo(dialect="deepseek", model="m")
    assert choose_rule(said, info)[0] == UnitsRule(64, 3, 3600, 2048)
    assert choose_rule(said, info, time_scale=0.1)[0] == UnitsRule(64, pytest.approx(0.3), 360, 2048)
    assert choose_rule(said, info, time_scale=0)[0] == UnitsRule(64, 0, 300, 2048)
