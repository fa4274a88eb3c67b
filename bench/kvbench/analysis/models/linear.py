"""Hybrids: some layers keep a row a token, the others a state whose size does not depend on the context.

A state is heads * d_k * d_v elements a layer (a matrix a head), and the last k - 1 inputs of a short convolution.
"""

from __future__ import annotations

from fractions import Fraction

from kvbench.analysis.models import dtypes
from kvbench.analysis.models.attention import FULL, Heads, add_full, add_mla, head_dim, kv_heads
from kvbench.analysis.models.fields import Config
from kvbench.analysis.models.numbers import text
from kvbench.analysis.models.parts import Draft, Part

LINEAR = "linear_attention"


def kda(config: Config, draft: Draft, asked: str) -> str:
    """Kimi Linear and K3: KDA layers and MLA layers, listed from 1 in linear_attn_config. Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, (*dtypes.PLAIN, "fp8_ds_mla"))
    layers = config.layers()
    inner = config.inside("linear_attn_config")
    kda_layers, full_layers = inner.counts("kda_layers", least=1), inner.counts("full_attn_layers", least=1)
    if sorted(kda_layers + full_layers) != list(range(1, layers + 1)):
        raise inner.refuse(
            "kda_layers",
            f"with full_attn_layers it does not name each of layers 1 to {layers} (num_hidden_layers) exactly once",
        )
    add_mla(config, draft, dtype, len(full_layers))
    heads, dim = inner.count("num_heads"), inner.count("head_dim")
    size = dtypes.state_bytes(config, "mamba_ssm_dtype", 4, "KDA state")
    n = len(kda_layers)
    draft.add(
        Part(
            label="KDA state",
            kind="state",
            layers=n,
            size=Fraction(n * heads * dim * dim * size),
            units=heads,
            units_field="linear_attn_config.num_heads",
        ),
        f"{n} KDA layers x num_heads {heads} x head_dim {dim} x head_dim {dim} x {size} B",
    )
    kernel = inner.count("short_conv_kernel_size", least=2)
    b = _conv_bytes(config)
    draft.add(
        Part(
            label="convolution state",
            kind="state",
            layers=n,
            size=Fraction(n * 3 * heads * dim * (kernel - 1) * b),
            units=heads,
            units_field="linear_attn_config.num_heads",
        ),
        f"{n} KDA layers x (q, k, v) 3 x num_heads {heads} x head_dim {dim} "
        f"x (short_conv_kernel_size {kernel} - 1) x {b} B",
    )
    return dtype


def gdn(config: Config, draft: Draft, asked: str) -> str:
    """Qwen3-Next and Qwen3.5: Gated DeltaNet layers and global layers with heads. Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, dtypes.PLAIN)
    layers = config.layers()
    kinds = _gdn_kinds(config, layers)
    family = Heads(head_dim=256, kv_heads=None)
    heads, dim = kv_heads(config, family), head_dim(config, family)
    row = dtypes.heads_row(dtype, heads, dim, dim)
    draft.say(f"a row of one global layer: {row.text} = {text(row.size)} B")
    add_full(draft, kinds.count(FULL), row, heads)
    n = kinds.count(LINEAR)
    k_heads, v_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    k_dim, v_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    if v_heads % k_heads:
        raise config.refuse("linear_num_key_heads", f"{k_heads} does not divide linear_num_value_heads {v_heads}")
    size = dtypes.state_bytes(config, "mamba_ssm_dtype", 4, "Gated DeltaNet state")
    draft.add(
        Part(
            label="Gated DeltaNet state",
            kind="state",
            layers=n,
            size=Fraction(n * v_heads * k_dim * v_dim * size),
            units=v_heads,
            units_field="linear_num_value_heads",
        ),
        f"{n} linear layers x linear_num_value_heads {v_heads} x linear_key_head_dim {k_dim} x "
        f"linear_value_head_dim {v_dim} x {size} B",
    )
    kernel = config.count("linear_conv_kernel_dim", least=2)
    b = _conv_bytes(config)
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    draft.add(
        Part(
            label="convolution state",
            kind="state",
            layers=n,
            size=Fraction(n * channels * (kernel - 1) * b),
            units=k_heads,
            units_field="linear_num_key_heads",
        ),
        f"{n} linear layers x channels (2 x {k_heads} x {k_dim} + {v_heads} x {v_dim} = {channels}) x "
        f"(linear_conv_kernel_dim {kernel} - 1) x {b} B",
    )
    return dtype


def _gdn_kinds(config: Config, layers: int) -> list[str]:
    given = config.has("layer_types")
    if not given or config.has("full_attention_interval"):
        interval = config.count("full_attention_interval", default=4)
        by_rule = [FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers)]
    if not given:
        return by_rule
    kinds = config.words("layer_types", (FULL, LINEAR))
    if len(kinds) != layers:
        raise config.refuse("layer_types", f"{len(kinds)} entries for num_hidden_layers {layers}")
    if config.has("full_attention_interval") and kinds != by_rule:
        raise config.refuse(
            "layer_types", f"contradicts full_attention_interval {config.count('full_attention_interval')}"
        )
    return kinds


def granite(config: Config, draft: Draft, asked: str) -> str:
    """Granite 4 hybrids: Mamba-2 layers and global layers, by layer_types. Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, dtypes.PLAIN)
    layers = config.layers()
    kinds = config.words("layer_types", ("mamba", "attention"))
    if len(kinds) != layers:
        raise config.refuse("layer_types", f"{len(kinds)} entries for num_hidden_layers {layers}")
    _attention_of_hybrid(config, draft, dtype, kinds.count("attention"))
    _mamba2(
        config,
        draft,
        kinds.count("mamba"),
        ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    )
    return dtype


def nemotron_h(config: Config, draft: Draft, asked: str) -> str:
    """Nemotron-H: hybrid_override_pattern has a letter a layer: M Mamba-2, * attention, - and E no cache."""
    dtype = dtypes.choose(config, asked, dtypes.PLAIN)
    layers = config.layers()
    pattern = config.data.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - set("M*-E"):
        raise config.refuse("hybrid_override_pattern", f"needs num_hidden_layers {layers} letters, each one of M * - E")
    config.used["hybrid_override_pattern"] = pattern
    _attention_of_hybrid(config, draft, dtype, pattern.count("*"))
    _mamba2(
        config,
        draft,
        pattern.count("M"),
        ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    )
    return dtype


def _attention_of_hybrid(config: Config, draft: Draft, dtype: str, layers: int) -> None:
    if not layers:
        return
    family = Heads(kv_heads=None)
    heads, dim = kv_heads(config, family), head_dim(config, family)
    row = dtypes.heads_row(dtype, heads, dim, dim)
    draft.say(f"a row of one global layer: {row.text} = {text(row.size)} B")
    add_full(draft, layers, row, heads)


def _mamba2(config: Config, draft: Draft, layers: int, names: tuple[str, str, str, str, str]) -> None:
    """Mamba-2: heads * head_dim * d_state, and a convolution over heads * head_dim + 2 * groups * d_state channels."""
    heads_name, dim_name, state_name, groups_name, kernel_name = names
    heads, dim, state = config.count(heads_name), config.count(dim_name), config.count(state_name)
    groups, kernel = config.count(groups_name), config.count(kernel_name, least=2)
    size = dtypes.state_bytes(config, "mamba_ssm_cache_dtype", 4, "Mamba state")
    b = _conv_bytes(config)
    draft.add(
        Part(
            label="Mamba-2 state",
            kind="state",
            layers=layers,
            size=Fraction(layers * heads * dim * state * size),
            units=heads,
            units_field=heads_name,
        ),
        f"{layers} Mamba-2 layers x {heads_name} {heads} x {dim_name} {dim} x {state_name} {state} x {size} B",
    )
    draft.add(
        Part(
            label="convolution state, heads",
            kind="state",
            layers=layers,
            size=Fraction(layers * heads * dim * (kernel - 1) * b),
            units=heads,
            units_field=heads_name,
        ),
        f"{layers} Mamba-2 layers x {heads_name} {heads} x {dim_name} {dim} x ({kernel_name} {kernel} - 1) x {b} B",
    )
    draft.add(
        Part(
            label="convolution state, groups",
            kind="state",
            layers=layers,
            size=Fraction(layers * 2 * groups * state * (kernel - 1) * b),
            units=groups,
            units_field=groups_name,
        ),
        f"{layers} Mamba-2 layers x 2 x {groups_name} {groups} x {state_name} {state} "
        f"x ({kernel_name} {kernel} - 1) x {b} B",
    )


def _conv_bytes(config: Config) -> int:
    """The convolution's inputs are kept in the weights' dtype."""
    weights = config.dtype()
    if weights is not None:
        return dtypes.ELEMENT_BYTES[weights]
    config.assumed.append("convolution state of 2 B an element: the config gives no dtype")
    return 2
