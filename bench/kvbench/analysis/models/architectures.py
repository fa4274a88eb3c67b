"""Which architectures are known, by the config's model_type, and which fields each reads.

A config may have any number of fields that do not touch the cache. One that does (CACHE_FIELDS) and that its
architecture does not read makes the figure wrong, so it is refused by name instead of being passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from kvbench.analysis.models import attention, compressed, linear
from kvbench.analysis.models.attention import Heads
from kvbench.analysis.models.fields import Config, shown
from kvbench.analysis.models.parts import Draft, ModelBytes
from kvbench.errors import InputError

Builder = Callable[[Config, Draft, str], str]


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """`build` adds the parts and returns the cache dtype; `reads` are the CACHE_FIELDS it takes into account."""

    title: str
    build: Builder
    reads: frozenset[str]


def _heads(title: str, *reads: str, **how: Any) -> Architecture:
    build = partial(attention.with_heads, family=Heads(**how))
    return Architecture(title=title, build=build, reads=frozenset({"layer_types", "sliding_window", *reads}))


def _architecture(title: str, build: Builder, *reads: str) -> Architecture:
    return Architecture(title=title, build=build, reads=frozenset(reads))


_LLAMA = Architecture(
    title="attention with KV heads",
    build=partial(attention.with_heads, family=Heads()),
    reads=frozenset({"layer_types"}),
)
_GIVEN = Architecture(
    title="attention with KV heads",
    build=partial(attention.with_heads, family=Heads(head_dim=None, kv_heads=None)),
    reads=frozenset({"layer_types"}),
)
_WINDOW = _heads("attention with KV heads, a window in every layer where the config has one", slides="all")
_QWEN_READS = ("use_sliding_window", "max_window_layers")
_MLA = _architecture(
    "multi-head latent attention",
    attention.mla,
    "kv_lora_rank",
    "qk_rope_head_dim",
)
_KDA = _architecture(
    "KDA layers and MLA layers",
    linear.kda,
    "kv_lora_rank",
    "qk_rope_head_dim",
    "linear_attn_config",
)
_GDN_READS = (
    "layer_types",
    "full_attention_interval",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_GDN = _architecture("Gated DeltaNet layers and global layers", linear.gdn, *_GDN_READS)
_V4_READS = ("compress_ratios", "qk_rope_head_dim", "index_head_dim", "sliding_window")
_V4 = _architecture(
    "compressed sparse attention, every layer with its own rows",
    compressed.v4,
    *_V4_READS,
)
_V41 = _architecture(
    "compressed sparse attention, rows shared between layers",
    compressed.v41,
    *_V4_READS,
    "kv_source_layer_ids",
    "index_source_layer_ids",
)
_GEMMA3 = _heads(
    "attention with KV heads, windows in most layers",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    heads=8,
    kv_heads=4,
    head_dim=256,
    slides="pattern",
    pattern=6,
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "cohere": _LLAMA,
    "glm4": _GIVEN,
    "glm4_moe": _GIVEN,
    "granite": _LLAMA,
    "granitemoe": _LLAMA,
    "olmo2": _LLAMA,
    "seed_oss": _GIVEN,
    "mistral": _WINDOW,
    "mixtral": _WINDOW,
    "phi3": _WINDOW,
    "starcoder2": _WINDOW,
    "qwen2": _heads("attention with KV heads", *_QWEN_READS, slides="qwen"),
    "qwen2_moe": _heads("attention with KV heads", *_QWEN_READS, slides="qwen"),
    "qwen3": _heads("attention with KV heads", *_QWEN_READS, head_dim=128, slides="qwen"),
    "qwen3_moe": _heads("attention with KV heads", *_QWEN_READS, head_dim=None, slides="qwen"),
    "gpt_oss": _heads(
        "attention with KV heads, windows in every other layer",
        head_dim=64,
        slides="pattern",
        pattern=2,
        kv_heads=None,
    ),
    "gemma": _heads("attention with KV heads", head_dim=256, kv_heads=None),
    "gemma2": _heads(
        "attention with KV heads, windows in every other layer",
        head_dim=256,
        slides="pattern",
        pattern=2,
        kv_heads=None,
    ),
    "gemma3_text": _GEMMA3,
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "kimi_k2": _MLA,
    "deepseek_v32": _architecture(
        "MLA with DeepSeek sparse attention",
        attention.dsa,
        "kv_lora_rank",
        "qk_rope_head_dim",
        "index_head_dim",
    ),
    "deepseek_v4": _V4,
    "deepseek_v41_text": _V41,
    "kimi_linear": _KDA,
    "qwen3_next": _GDN,
    "qwen3_5_text": _GDN,
    "qwen3_5_moe_text": _GDN,
    "granitemoehybrid": _architecture(
        "Mamba-2 layers and global layers",
        linear.granite,
        "layer_types",
        "mamba_n_heads",
        "mamba_d_state",
        "mamba_n_groups",
    ),
    "nemotron_h": _architecture(
        "Mamba-2 layers and global layers",
        linear.nemotron_h,
        "hybrid_override_pattern",
        "mamba_num_heads",
        "ssm_state_size",
    ),
}

WRAPPERS = {
    "gemma3": "gemma3_text",
    "kimi_k3": "kimi_linear",
    "deepseek_v41": "deepseek_v41_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Models with eyes: their language model's fields are in text_config, whose model_type may be left out."""

CACHE_FIELDS = frozenset().union(*(known.reads for known in ARCHITECTURES.values())) | {
    "attention_chunk_size",
    "attention_k_eq_v",
    "attn_layer_indices",
    "attn_layer_period",
    "attention_other_setting",
    "cla_share_factor",
    "global_head_dim",
    "index_topk_freq",
    "is_encoder_decoder",
    "kv_sharing_layer_map",
    "layers_block_type",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "sparse_attention_config",
    "state_size",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "use_cla",
}

_HARMLESS = {"qk_rope_head_dim"}
"""Where nothing but heads is cached, parts of a head are no field of the cache."""


def model_bytes(data: dict[str, Any], name: str, path: str, dtype: str = "auto") -> ModelBytes:
    """What the config `data` implies. `path` is told in errors; dtype: a cache dtype, or auto for the model's own.

    Raises InputError for an architecture that is not known and for fields that are missing, contradictory, not allowed
    or not taken into account; UsageError for a dtype its cache does not have.
    """
    config, kind = _language_model(data, path)
    architecture = ARCHITECTURES[kind]
    _check_unread(config, kind, architecture)
    draft = Draft()
    chosen = architecture.build(config, draft, dtype)
    heads = config.count("num_attention_heads") if config.has("num_attention_heads") else None
    if heads is None and not any(line.startswith("num_attention_heads") for line in config.assumed):
        config.assumed.append("num_attention_heads not in the config: whether ranks can share it out is not checked")
    if not draft.parts:
        raise config.refuse("num_hidden_layers", "none of the layers holds a cache")
    return ModelBytes(
        name=name,
        model_type=kind,
        architecture=architecture.title,
        cache_dtype=chosen,
        parts=tuple(draft.parts),
        steps=tuple(draft.steps),
        fields=dict(config.used),
        assumed=tuple(dict.fromkeys(config.assumed)),
        attention_heads=heads,
    )


def _language_model(data: dict[str, Any], path: str) -> tuple[Config, str]:
    outer = data.get("model_type")
    text = data.get("text_config")
    if text is None:
        kind = WRAPPERS.get(outer, outer) if isinstance(outer, str) else outer
        config = Config(data, path)
    elif not isinstance(text, dict):
        raise InputError("not an object", path=path, field="text_config")
    else:
        kind = text.get("model_type")
        if kind is None and isinstance(outer, str):
            kind = WRAPPERS.get(outer)
        if isinstance(kind, str):
            kind = WRAPPERS.get(kind, kind)
        config = Config(text, path, data, "text_config.")
        _check_outer(data, text, path)
    if kind is None:
        raise config.refuse("model_type", "missing", hint="add the config's own; it says which architecture this is")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = sorted({*ARCHITECTURES, *WRAPPERS})
        raise config.refuse(
            "model_type", f"{shown(kind)} is not an architecture kvbench knows", hint=f"known: {', '.join(known)}"
        )
    config.used[f"{config.prefix}model_type"] = kind
    return config, kind


def _check_outer(data: dict[str, Any], text: dict[str, Any], path: str) -> None:
    """What stands both outside and inside text_config must agree."""
    shared = CACHE_FIELDS | {"num_hidden_layers", "num_key_value_heads", "num_attention_heads", "head_dim"}
    for field in sorted(shared & data.keys() & text.keys()):
        if data[field] is not None and text[field] is not None and data[field] != text[field]:
            raise InputError(
                f"{shown(data[field])}, but text_config has {shown(text[field])}",
                path=path,
                field=field,
                hint="keep the one that is right",
            )


def _check_unread(config: Config, kind: str, architecture: Architecture) -> None:
    for field in sorted(CACHE_FIELDS & config.data.keys() - architecture.reads - _HARMLESS):
        value = config.data[field]
        if value is None or value is False or value == 0 or value == [] or value == {}:
            continue
        raise config.refuse(
            field,
            f"changes what is cached, in a way that kvbench does not know for {kind}",
            hint="is model_type the right one? Set the field to null only if the model does not use it",
        )
