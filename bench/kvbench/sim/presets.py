"""The simulated endpoints there are: whose numbers they have, and where each comes from."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from kvbench.sim.parameters import Preset

DEFAULT_PRESET = "vllm-small"

_TINY_VLLM = "vLLM 0.32.0 with a tiny model, measured over HTTP"
_GUIDE = "api-docs.deepseek.com, Context Caching"
_PRICING = "api-docs.deepseek.com, Models & Pricing, from 2026-09-10"
_LIMITS = "api-docs.deepseek.com, Rate Limit"
_V41_RUN = "a run of V4.1-Flash on eight H100: 37 ms + 50.5 us/token + 1.34e-10 s/token^2"
_BY_PARAMETERS = "as V4.1-Flash, by active parameters (8B: 2 x 8e9 FLOP in 50.5 us are 317 TFLOP/s of eight H100)"
_BY_READING = "what a step reads, at 2e12 bytes/s of each accelerator"
_PLANNED_POOL = "40e9 bytes for KV on a rank"

_V41_RATES: dict[str, Any] = {
    "max_batched_tokens": 8192,
    "frontend_s": 0.007,
    "prefill_base_s": 0.030,
    "prefill_s_per_token": 50.5e-6,
    "attention_s_per_token2": 1.34e-10,
    "decode_base_s": 0.012,
}
_V41_RATES_FROM = dict.fromkeys(
    ("frontend_s", "prefill_base_s", "prefill_s_per_token", "attention_s_per_token2"), _V41_RUN
)


def _model(name: str, description: str, *, known: dict[str, str], assumed: dict[str, str], **values: Any) -> Preset:
    """A model on an engine of its own, vLLM's rules and 40e9 bytes for KV; the pool has the blocks that fit."""
    sized = {"model": name, "pool_bytes": 40_000_000_000, **_V41_RATES, **values}
    sized["num_blocks"] = int(sized["pool_bytes"] // (sized["bytes_per_token"] * sized["block_size"]))
    assumed = {
        "pool_bytes": _PLANNED_POOL,
        "num_blocks": _PLANNED_POOL,
        "decode_base_s": "a token in 12 ms without load",
        "decode_s_per_context_token": _BY_READING,
    } | assumed
    return Preset(name=name, description=description, known=known, assumed=assumed, **sized)


_MODELS = (
    _model(
        "deepseek-v4.1-flash",
        "DeepSeek-V4.1-Flash under vLLM: 890 bytes a token, every hit replays its last 128 tokens",
        known={
            "bytes_per_token": "config: (288 + 68) x (3/2 + 1), rows and index keys of the owning layers",
            "bytes_per_session": "config: 40 x 128 x 528 + 24,576, windows of 128 tokens",
            "window_tokens": "config: sliding_window",
            "window_replay": "vLLM, pull request 56227",
            "max_model_len": "10^6 tokens of context are advertised",
        },
        assumed={
            **_V41_RATES_FROM,
            "block_size": "vLLM's page for V4, 256 tokens",
            "decode_base_s": "a token in 12 ms without load; 16B parameters are active in decode",
            "decode_s_per_context_token": f"170 bytes a token of index keys; {_BY_READING}",
            "decode_s_per_request": "12.8e6 bytes of windows and chosen rows, and what the engine does for each",
        },
        bytes_per_token=890.0,
        bytes_per_session=40 * 128 * 528 + 24_576,
        block_size=256,
        max_model_len=1_000_000,
        window_tokens=128,
        window_replay="always",
        decode_s_per_context_token=8.5e-11,
    ),
    _model(
        "deepseek-v4-flash",
        "DeepSeek-V4-Flash: 3,514.25 bytes a token",
        known={
            "bytes_per_token": "config: 21 x (584 + 68) / 4 + 20 x 584 / 128",
            "bytes_per_session": "config: 43 x 128 x 584",
            "block_size": "vLLM's page for V4",
        },
        assumed={
            "max_model_len": "10^6 tokens of context are advertised",
            "prefill_s_per_token": f"{_BY_PARAMETERS}; 13B",
            "attention_s_per_token2": "as V4.1-Flash",
            "window_tokens": "windows are kept with the blocks, so a hit needs nothing else",
        },
        bytes_per_token=3514.25,
        bytes_per_session=43 * 128 * 584,
        block_size=256,
        max_model_len=1_000_000,
        prefill_s_per_token=82e-6,
        decode_s_per_context_token=2.2e-10,
    ),
    _model(
        "deepseek-v3.2",
        "DeepSeek-V3.2: 48,068 bytes a token",
        known={
            "bytes_per_token": "config: 61 x (656 + 132), MLA in vLLM's fp8 layout and index keys",
            "bytes_per_session": "config: no layer has a fixed state",
        },
        assumed={
            "block_size": "vLLM's page for MLA with index keys, 64 tokens",
            "max_model_len": "config: max_position_embeddings",
            "prefill_s_per_token": f"{_BY_PARAMETERS}; 37B",
            "attention_s_per_token2": "between V4.1-Flash and dense attention: index keys of all tokens are compared",
        },
        bytes_per_token=48_068.0,
        block_size=64,
        max_model_len=163_840,
        prefill_s_per_token=234e-6,
        attention_s_per_token2=5e-10,
        decode_s_per_context_token=4e-9,
    ),
    _model(
        "deepseek-v1",
        "DeepSeek-V1 67B: 389,120 bytes a token",
        known={
            "bytes_per_token": "config: 95 layers x 2 x 8 heads x 128 x 2 bytes",
            "bytes_per_session": "config: no layer has a fixed state",
        },
        assumed={
            "block_size": "vLLM's default",
            "max_model_len": "config: max_position_embeddings",
            "prefill_s_per_token": f"{_BY_PARAMETERS}; 67B",
            "attention_s_per_token2": "4 x 95 x 64 x 128 FLOP a pair of tokens at 317 TFLOP/s",
        },
        bytes_per_token=389_120.0,
        block_size=16,
        max_model_len=4096,
        prefill_s_per_token=423e-6,
        attention_s_per_token2=9.8e-9,
        decode_s_per_context_token=2.4e-8,
    ),
    _model(
        "kimi-k3",
        "Kimi K3: 13,824 bytes a token and 449 MB of state a running request",
        known={
            "bytes_per_token": "config: 24 MLA layers x (512 + 64), fp8",
            "bytes_per_session": "config: 69 KDA layers x 96 x 128 x 128 x 4 bytes, and their convolutions",
        },
        assumed={
            "block_size": "as V3.2",
            "max_model_len": "10^6 tokens of context are advertised",
            "prefill_s_per_token": f"{_BY_PARAMETERS}; 32B, as K2",
            "attention_s_per_token2": "4 x 24 x 64 x 160 FLOP a pair of tokens at 317 TFLOP/s",
            "prefix": "blocks are hit as if the linear layers' state were there at every block",
        },
        bytes_per_token=13_824.0,
        bytes_per_session=69 * 96 * 128 * 128 * 4 + 69 * 3 * 3 * 96 * 128 * 2,
        block_size=64,
        max_model_len=1_000_000,
        prefill_s_per_token=202e-6,
        attention_s_per_token2=3.1e-9,
        decode_s_per_context_token=6.9e-9,
    ),
)

_SMALL = Preset(
    name="vllm-small",
    description="a small model on one accelerator under vLLM: 2M tokens of KV cache, about 8 ms a token",
    assumed={"bytes_per_token": "48 GiB for 2M tokens", "num_blocks": "2M tokens and the null block"},
    bytes_per_token=24_576.0,
)

_TINY = Preset(
    name="tiny",
    description="a pool of 16,352 tokens, to see eviction, waiting and preemption",
    known=dict.fromkeys(
        ("block_size", "num_blocks", "bytes_per_token", "max_model_len", "max_running", "max_batched_tokens"),
        _TINY_VLLM,
    ),
    model="tiny",
    num_blocks=512,
    bytes_per_token=512.0,
    max_model_len=8192,
    max_running=16,
    frontend_s=0.002,
    prefill_base_s=0.003,
    prefill_s_per_token=10e-6,
    attention_s_per_token2=5e-9,
    decode_base_s=0.0015,
    decode_s_per_request=0.00006,
)

_DEEPSEEK_API = Preset(
    name="deepseek-api",
    description="the DeepSeek API with deepseek-flash: prefix units, thinking, a balance that goes down",
    known={
        "dialect": "api-docs.deepseek.com, Create Chat Completion",
        "model": "api-docs.deepseek.com, Models & Pricing",
        "prefix": _GUIDE,
        "usage_on": "since 2026-08-27; `extra` is the shape documented before",
        "begin_within_s": _LIMITS,
        "max_in_flight": _LIMITS,
        "price_hit_per_mtok": _PRICING,
        "price_miss_per_mtok": _PRICING,
        "price_output_per_mtok": _PRICING,
        "peak_factor": _PRICING,
        "peak_hours_utc": _PRICING,
        "peak_days": f"{_PRICING}; Chinese public holidays, which are off-peak, are left out here",
    },
    assumed={
        "unit_granularity_tokens": "hit counts seen in public since V4 are multiples of 128; the documented 64 is of "
        "August 2024",
        "unit_interval_tokens": f"{_GUIDE}: there is an interval, its size is not published",
        "unit_build_s": f"{_GUIDE}: `seconds`",
        "idle_ttl_s": f"{_GUIDE}: `a few hours to a few days`; the least of it",
        "lapse_probability": f"{_GUIDE}: `best effort`, no rate is published",
        "recompute_last_token": "not documented; the usage would count the whole unit",
        "max_model_len": "10^6 tokens of context are advertised",
        **_V41_RATES_FROM,
    },
    dialect="deepseek",
    prefix="units",
    model="deepseek-flash",
    block_size=64,
    num_blocks=1_000_001,
    bytes_per_token=890.0,
    max_model_len=1_000_000,
    **_V41_RATES,
    idle_ttl_s=4 * 3600,
    recompute_last_token=False,
    unit_build_s=3.0,
    thinking_tokens=120,
    keep_alive_s=5.0,
    begin_within_s=600,
    max_in_flight=2500,
    granted_balance=Decimal(10),
    topped_up_balance=Decimal(100),
    price_hit_per_mtok=Decimal("0.003"),
    price_miss_per_mtok=Decimal("0.15"),
    price_output_per_mtok=Decimal("0.60"),
    peak_factor=Decimal(2),
    peak_hours_utc="01:00-04:00,06:00-10:00",
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (_SMALL, _TINY, _DEEPSEEK_API, *_MODELS)}
