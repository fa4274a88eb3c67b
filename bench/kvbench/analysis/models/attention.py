"""Attention that keeps a row a token (MHA, GQA, MQA, MLA, with or without an indexer), or the last rows of a window."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbench.analysis.models import dtypes
from kvbench.analysis.models.fields import Config
from kvbench.analysis.models.numbers import text
from kvbench.analysis.models.parts import Draft, Part

FULL = "full_attention"
SLIDING = "sliding_attention"


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """How one family of models with key and value heads differs from the next.

    head_dim: what holds where the config does not give it (divide: hidden_size / num_attention_heads, a number: the
    family's default, None: it must be given). slides: which layers have a window where there is no `layer_types`.
    """

    head_dim: Literal["divide"] | int | None = "divide"
    slides: Literal["none", "all", "qwen", "pattern"] = "none"
    pattern: int = 0
    """Every so many layers one is global, the last of them (gemma2 and gpt_oss 2, gemma3 6)."""
    heads: int | None = None
    kv_heads: Literal["as many"] | int | None = "as many"
    """Of the config's num_attention_heads and num_key_value_heads where they are missing (as many: as attention heads,
    so MHA; None: they must be given)."""


def head_dim(config: Config, family: Heads) -> int:
    """head_dim as given. It is derived only where it is not given and the family derives it."""
    if config.has("head_dim"):
        return config.count("head_dim")
    if family.head_dim == "divide":
        hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
        if hidden % heads:
            raise config.refuse(
                "head_dim", f"missing, and hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            )
        config.assumed.append(f"head_dim {hidden // heads}: hidden_size {hidden} / num_attention_heads {heads}")
        return hidden // heads
    return config.count("head_dim", default=family.head_dim)


def kv_heads(config: Config, family: Heads) -> int:
    """num_key_value_heads, which must divide num_attention_heads."""
    heads = config.count("num_attention_heads", default=family.heads)
    if family.kv_heads == "as many":
        why = "not in the config; as many as num_attention_heads (MHA)"
        found = config.count("num_key_value_heads", default=heads, why=why)
    else:
        found = config.count("num_key_value_heads", default=family.kv_heads)
    if heads % found:
        raise config.refuse("num_key_value_heads", f"{found} does not divide num_attention_heads {heads}")
    return found


def layer_kinds(config: Config, layers: int, family: Heads) -> list[str]:
    """full_attention or sliding_attention for each layer; contradictions between the fields that say so are refused."""
    pattern = _pattern(config, family)
    by_rule = _by_rule(config, layers, family, pattern)
    if not config.has("layer_types"):
        return by_rule
    kinds = config.words("layer_types", (FULL, SLIDING))
    if len(kinds) != layers:
        raise config.refuse("layer_types", f"{len(kinds)} entries for num_hidden_layers {layers}")
    if family.slides == "pattern" and _pattern_given(config) and kinds != by_rule:
        raise config.refuse("layer_types", f"contradicts a sliding window pattern of {pattern}")
    if family.slides == "qwen" and not config.flag("use_sliding_window", False) and SLIDING in kinds:
        raise config.refuse("layer_types", "has sliding_attention, but use_sliding_window is not true")
    return kinds


def _pattern_given(config: Config) -> bool:
    return config.has("sliding_window_pattern") or config.has("_sliding_window_pattern")


def _pattern(config: Config, family: Heads) -> int:
    if family.slides != "pattern":
        return 0
    field = "_sliding_window_pattern" if config.has("_sliding_window_pattern") else "sliding_window_pattern"
    if config.has(field):
        return config.count(field)
    return family.pattern


def _by_rule(config: Config, layers: int, family: Heads, pattern: int) -> list[str]:
    if family.slides == "none" or (family.slides != "pattern" and not config.has("sliding_window")):
        return [FULL] * layers
    if family.slides == "all":
        return [SLIDING] * layers
    if family.slides == "qwen":
        if not config.flag("use_sliding_window", False):
            return [FULL] * layers
        first = config.count("max_window_layers", least=0)
        return [FULL if i < first else SLIDING for i in range(layers)]
    if not _pattern_given(config) and not config.has("layer_types"):
        config.assumed.append(
            f"every {pattern} layers one is global: the config has no layer_types, this is the default"
        )
    return [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(layers)]


def with_heads(config: Config, draft: Draft, asked: str, family: Heads) -> str:
    """Parts of a model whose layers all have key and value heads. Returns the cache dtype."""
    layers = config.layers()
    dtype = dtypes.choose(config, asked, dtypes.PLAIN)
    kinds = layer_kinds(config, layers, family)
    heads = kv_heads(config, family)
    row = dtypes.heads_row(dtype, heads, (dim := head_dim(config, family)), dim)
    draft.say(f"a row of one layer: {row.text} = {text(row.size)} B")
    window = _window(config) if SLIDING in kinds else None
    if window is None:
        kinds = [FULL] * layers
    add_full(draft, kinds.count(FULL), row, heads)
    if window is not None:
        sliding = kinds.count(SLIDING)
        draft.add(
            Part(
                label="sliding window",
                kind="window",
                layers=sliding,
                size=row.size * sliding,
                window=window,
                units=heads,
                units_field="num_key_value_heads",
            ),
            f"{sliding} sliding-window layers x sliding_window {window} x {text(row.size)} B",
        )
    return dtype


def _window(config: Config) -> int | None:
    """sliding_window; None where no context of the model is longer, so that its rows are never dropped."""
    window = config.count("sliding_window")
    if config.has("max_position_embeddings") and window >= (longest := config.count("max_position_embeddings")):
        config.assumed.append(f"no window: sliding_window {window:,} is not below max_position_embeddings {longest:,}")
        return None
    return window


def add_full(draft: Draft, layers: int, row: dtypes.Row, heads: int) -> None:
    draft.add(
        Part(
            label="attention",
            kind="token",
            layers=layers,
            size=row.size * layers,
            units=heads,
            units_field="num_key_value_heads",
        ),
        f"{layers} global layers x {text(row.size)} B",
    )


def mla(config: Config, draft: Draft, asked: str) -> str:
    """MLA in every layer (DeepSeek V2, V3, Kimi K2). Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, (*dtypes.PLAIN, "fp8_ds_mla"))
    add_mla(config, draft, dtype, config.layers())
    return dtype


def add_mla(config: Config, draft: Draft, dtype: str, layers: int) -> None:
    row = dtypes.mla_row(config, dtype, config.count("kv_lora_rank"), config.count("qk_rope_head_dim"))
    draft.say(f"an MLA row of one layer, one for all heads: {row.text} = {text(row.size)} B")
    draft.add(
        Part(label="MLA latent", kind="token", layers=layers, size=row.size * layers),
        f"{layers} MLA layers x {text(row.size)} B",
    )


def dsa(config: Config, draft: Draft, asked: str) -> str:
    """DeepSeek sparse attention (V3.2): MLA, and an indexer with a key of its own in every layer."""
    dtype = dtypes.choose(config, asked, ("fp8_ds_mla", "bf16"), native="fp8_ds_mla")
    layers = config.layers()
    add_mla(config, draft, dtype, layers)
    row = dtypes.index_row(config, "fp8", config.count("index_head_dim"))
    draft.say(f"an index key of one layer: {row.text} = {text(row.size)} B")
    draft.add(
        Part(label="index keys", kind="token", layers=layers, size=row.size * layers),
        f"{layers} layers x {text(row.size)} B",
    )
    return dtype
