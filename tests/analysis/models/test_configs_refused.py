"""Configs that are refused, by field, and architectures that are not known."""

from __future__ import annotations

from typing import Any

import pytest
from tests.analysis.models.test_configs import GRANITE, LLAMA, NEMOTRON, V2_LITE, changed, row

from kvbench.analysis.models.architectures import model_bytes
from kvbench.errors import InputError

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "model_type", "missing"),
    ({"model_type": "gpt2"}, "model_type", '"gpt2" is not an architecture kvbench knows'),
    ({"model_type": ["llama"]}, "model_type", "is not an architecture"),
    ({"model_type": "llava", "text_config": {"model_type": "opt"}}, "text_config.model_type", '"opt"'),
    ({"model_type": "llava", "text_config": {}}, "text_config.model_type", "missing"),
    ({"model_type": "llava", "text_config": 3}, "text_config", "not an object"),
    (changed(LLAMA, num_hidden_layers=...), "num_hidden_layers", "missing"),
    (changed(LLAMA, num_hidden_layers=0), "num_hidden_layers", "0 is not allowed: from 1"),
    (changed(LLAMA, num_hidden_layers=-4), "num_hidden_layers", "-4 is not allowed"),
    (changed(LLAMA, num_hidden_layers="4"), "num_hidden_layers", '"4" is not a whole number'),
    (changed(LLAMA, num_hidden_layers=True), "num_hidden_layers", "true is not a whole number"),
    (changed(LLAMA, num_hidden_layers=4.5), "num_hidden_layers", "4.5 is not a whole number"),
    (changed(LLAMA, num_hidden_layers=10**9), "num_hidden_layers", "1000000000 is not allowed: from 1 to 10,000"),
    (changed(LLAMA, num_hidden_layers=10**30), "num_hidden_layers", "is not allowed"),
    (changed(LLAMA, num_attention_heads=...), "num_attention_heads", "missing"),
    (changed(LLAMA, num_key_value_heads=3), "num_key_value_heads", "3 does not divide num_attention_heads 8"),
    (changed(LLAMA, hidden_size=250), "head_dim", "hidden_size 250 is no multiple"),
    (changed(LLAMA, hidden_size=...), "hidden_size", "missing"),
    (changed(LLAMA, torch_dtype=...), "dtype", "missing"),
    (changed(LLAMA, torch_dtype="int4"), "torch_dtype", '"int4" is not a dtype known here'),
    (changed(LLAMA, quantization_config={"kv_cache_scheme": {"num_bits": 4}}), "kv_cache_scheme", "only 8 bits"),
    # fields that change the cache and that this architecture does not read
    (changed(LLAMA, kv_lora_rank=512), "kv_lora_rank", "in a way that kvbench does not know for llama"),
    (changed(LLAMA, sliding_window=4096), "sliding_window", "does not know for llama"),
    (changed(LLAMA, num_kv_shared_layers=2), "num_kv_shared_layers", "does not know"),
    (changed(V2_LITE, index_head_dim=128), "index_head_dim", "does not know for deepseek_v2"),
    (changed(row("deepseek-v3.2"), index_topk_freq=4), "index_topk_freq", "does not know"),
    (changed(LLAMA, is_encoder_decoder=True), "is_encoder_decoder", "does not know"),
    (changed(LLAMA, model_type="qwen3_moe"), "head_dim", "missing"),
    (changed(LLAMA, model_type="gemma2"), "sliding_window", "missing"),
    (changed(LLAMA, model_type="glm4_moe"), "head_dim", "missing"),
    (changed(LLAMA, model_type="gpt_oss", num_key_value_heads=...), "num_key_value_heads", "missing"),
    (changed(V2_LITE, kv_lora_rank=...), "kv_lora_rank", "missing"),
    # layer lists
    (changed(row("gpt-oss-120b"), num_hidden_layers=35), "layer_types", "36 entries for num_hidden_layers 35"),
    (changed(row("gpt-oss-120b"), sliding_window=None), "sliding_window", "missing"),
    (changed(LLAMA, layer_types=["full_attention"] * 3 + ["linear"]), "layer_types[3]", '"linear" is not known'),
    (changed(LLAMA, layer_types="full_attention"), "layer_types", "is not a list"),
    (
        changed(
            LLAMA,
            model_type="gemma3_text",
            sliding_window=8,
            sliding_window_pattern=2,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
        ),
        "layer_types",
        "contradicts a sliding window pattern of 2",
    ),
    (
        changed(LLAMA, model_type="qwen3", sliding_window=8, layer_types=["sliding_attention"] * 4),
        "layer_types",
        "use_sliding_window is not true",
    ),
    (
        changed(row("qwen3-next-80b"), layer_types=["full_attention"] * 48),
        "layer_types",
        "contradicts full_attention_int",
    ),
    (changed(row("qwen3-next-80b"), linear_num_key_heads=5), "linear_num_key_heads", "5 does not divide"),
    (changed(row("qwen3-next-80b"), linear_conv_kernel_dim=1), "linear_conv_kernel_dim", "from 2"),
    # V4 and V4.1
    (changed(row("deepseek-v4-flash"), compress_ratios=[0] * 42), "compress_ratios", "42 entries"),
    (changed(row("deepseek-v4-flash"), compress_ratios=[0] * 45), "compress_ratios", "45 entries"),
    (
        changed(row("deepseek-v4-flash"), compress_ratios=[16] * 43),
        "compress_ratios[0]",
        "16 is not known; known: 0, 4, 128",
    ),
    (changed(row("deepseek-v4-flash"), qk_rope_head_dim=512), "qk_rope_head_dim", "512 is not below head_dim 512"),
    (changed(row("deepseek-v4-flash"), head_dim=500), "head_dim - qk_rope_head_dim", "436 is no multiple of 64"),
    (changed(row("deepseek-v4-flash"), index_head_dim=...), "index_head_dim", "missing"),
    (
        changed(row("deepseek-v4-flash"), kv_source_layer_ids=[2]),
        "kv_source_layer_ids",
        "does not know for deepseek_v4",
    ),
    (changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[]), "kv_source_layer_ids", "empty"),
    (
        changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[0, 2]),
        "kv_source_layer_ids",
        "layer 0 has",
    ),
    (
        changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[8, 2]),
        "kv_source_layer_ids",
        "rising order",
    ),
    (
        changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[2, 40]),
        "kv_source_layer_ids",
        "does not exist",
    ),
    (
        changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[2, 8, 14]),
        "compress_ratios[20]",
        "1, but its source, layer 14, has 2",
    ),
    (
        changed(row("deepseek-v4.1-flash"), text_config__kv_source_layer_ids=[8, 14, 20]),
        "kv_source_layer_ids",
        "layer 2",
    ),
    (
        changed(row("deepseek-v4.1-flash"), text_config__index_source_layer_ids=[2, 8, 14, 24]),
        "index_source_layer_ids",
        "leaves out layer 20",
    ),
    (changed(row("deepseek-v4.1-flash"), num_hidden_layers=41), "num_hidden_layers", "41, but text_config has 40"),
    # hybrids
    (
        changed(row("kimi-k3"), text_config__linear_attn_config__kda_layers=[1, 2]),
        "linear_attn_config.kda_layers",
        "93",
    ),
    (changed(row("kimi-k3"), text_config__linear_attn_config=...), "linear_attn_config", "missing"),
    (changed(row("kimi-k3"), text_config__linear_attn_config=7), "linear_attn_config", "not an object"),
    (changed(NEMOTRON, hybrid_override_pattern="MMMM"), "hybrid_override_pattern", "num_hidden_layers 5 letters"),
    (changed(NEMOTRON, hybrid_override_pattern="-E-E-"), "num_hidden_layers", "none of the layers holds a cache"),
    (changed(GRANITE, layer_types=["mamba"] * 3), "layer_types", "3 entries"),
    (changed(GRANITE, mamba_ssm_cache_dtype=["fp32"]), "mamba_ssm_cache_dtype", "is not known"),
]


@pytest.mark.parametrize(
    ("config", "field", "says"), WRONG, ids=[f"{i}-{field}" for i, (_, field, _) in enumerate(WRONG)]
)
def test_a_wrong_config_is_refused_by_field(config: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        model_bytes(config, "toy", "config.json")
    assert field in str(caught.value.field)
    assert says in caught.value.message
    assert caught.value.message.startswith("config.json: ")


def test_unknown_architectures_are_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        model_bytes({"model_type": "gpt2"}, "toy", "config.json")
    assert {"llama", "kimi_k3", "deepseek_v41", "nemotron_h"} <= set(str(caught.value.hint).replace(",", "").split())
