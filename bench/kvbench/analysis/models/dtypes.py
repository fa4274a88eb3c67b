"""Cache dtypes, and the bytes of one cached row under each.

A plain dtype is so many bytes an element. The others are row formats with scales of their own; every formula gives the
bytes of the published layout: vLLM's fp8_ds_mla of MLA 656, of DeepSeek-V4 584; V4.1's rows 528 (FP8) and 288 (FP4).
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from kvbench.analysis.models.fields import WEIGHT_DTYPES, Config, shown
from kvbench.errors import UsageError

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
PLAIN = tuple(ELEMENT_BYTES)


class Row(msgspec.Struct, frozen=True):
    """Bytes of one row, and how they come about."""

    size: Fraction
    text: str


def choose(config: Config, asked: str, allowed: tuple[str, ...], native: str | None = None) -> str:
    """The cache dtype: as asked; else the architecture's own format; else what the config says of cache and weights.

    Raises UsageError for a dtype this architecture's cache does not have, InputError where the config gives none.
    """
    if asked != "auto":
        if asked not in allowed:
            raise UsageError(
                f"--dtype {asked} is not a cache dtype of this architecture",
                hint=f"allowed: auto, {', '.join(allowed)}",
            )
        return asked
    if native is not None:
        return native
    scheme = _kv_cache_scheme(config)
    if scheme is not None:
        return scheme
    weights = config.dtype()
    if weights is None:
        raise config.refuse("dtype", "missing, as is torch_dtype", hint="say which: --dtype bf16, for example")
    return weights


def _kv_cache_scheme(config: Config) -> str | None:
    """compressed-tensors' own word on the cache; None: it has none."""
    for data in (config.data, config.outer):
        quantization = data.get("quantization_config")
        scheme = quantization.get("kv_cache_scheme") if isinstance(quantization, dict) else None
        if scheme is None:
            continue
        if not isinstance(scheme, dict) or scheme.get("num_bits") != 8:
            raise config.refuse(
                "quantization_config.kv_cache_scheme", "only 8 bits are known here", hint="give --dtype"
            )
        config.used["quantization_config.kv_cache_scheme.num_bits"] = 8
        return "fp8"
    return None


def state_bytes(config: Config, field: str, default: int, what: str) -> int:
    """Bytes an element of a recurrent state. `field` says its dtype in some configs; else `default`, which is told."""
    names = {**WEIGHT_DTYPES, "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    value = config.data.get(field)
    if value is None:
        config.assumed.append(
            f"{what} of {default} B an element ({'fp32' if default == 4 else 'bf16'}): {field} not given"
        )
        return default
    if not isinstance(value, str) or value not in names:
        raise config.refuse(field, f"{shown(value)} is not known; known: {', '.join(names)}")
    config.used[f"{config.prefix}{field}"] = value
    return ELEMENT_BYTES[names[value]]


def heads_row(dtype: str, heads: int, k_dim: int, v_dim: int) -> Row:
    """A row of GQA, MHA or MQA in one layer: heads * (d_k + d_v) * b."""
    b = ELEMENT_BYTES[dtype]
    dims = f"2 x head_dim {k_dim}" if k_dim == v_dim else f"(d_k {k_dim} + d_v {v_dim})"
    return Row(Fraction(heads * (k_dim + v_dim) * b), f"num_key_value_heads {heads} x {dims} x {b} B ({dtype})")


def mla_row(config: Config, dtype: str, rank: int, rope: int) -> Row:
    """A row of MLA in one layer: (kv_lora_rank + qk_rope_head_dim) * b, or vLLM's fp8_ds_mla layout."""
    if dtype != "fp8_ds_mla":
        b = ELEMENT_BYTES[dtype]
        text = f"(kv_lora_rank {rank} + qk_rope_head_dim {rope}) x {b} B ({dtype})"
        return Row(Fraction((rank + rope) * b), text)
    _divides(config, "kv_lora_rank", rank, 128)
    scales = rank // 128 * 4
    text = f"kv_lora_rank {rank} fp8 + {scales} B fp32 scales + qk_rope_head_dim {rope} x 2 B bf16 (fp8_ds_mla)"
    return Row(Fraction(rank + scales + 2 * rope), text)


def v4_row(config: Config, dtype: str, dim: int, rope: int) -> Row:
    """A row of DeepSeek-V4's latent, whose last qk_rope_head_dim elements carry RoPE."""
    if dtype == "bf16":
        return Row(Fraction(2 * dim), f"head_dim {dim} x 2 B (bf16)")
    if dtype == "fp8":
        _divides(config, "head_dim", dim, 32)
        return Row(Fraction(dim + dim // 32), f"head_dim {dim} fp8 + {dim // 32} B scales (one a 32 elements)")
    if dtype == "nvfp4":
        _divides(config, "head_dim", dim, 16)
        size = dim // 2 + dim // 16
        return Row(Fraction(size), f"head_dim {dim} x 1/2 B (E2M1) + {dim // 16} B scales (E4M3, one a 16 elements)")
    if rope >= dim:
        raise config.refuse("qk_rope_head_dim", f"{rope} is not below head_dim {dim}")
    nope = dim - rope
    _divides(config, "head_dim - qk_rope_head_dim", nope, 64)
    scales = nope // 64
    return Row(
        Fraction(nope + 2 * rope + scales + 1),
        f"{nope} fp8 + qk_rope_head_dim {rope} x 2 B bf16 + {scales} B scales + 1 B pad",
    )


def index_row(config: Config, dtype: str, dim: int) -> Row:
    """A key of the sparse attention's indexer: FP4 with a UE8M0 scale a 32, FP8 with one FP32 scale, or BF16."""
    if dtype == "fp4":
        _divides(config, "index_head_dim", dim, 32)
        return Row(Fraction(dim // 2 + dim // 32), f"index_head_dim {dim} x 1/2 B (FP4) + {dim // 32} B scales")
    if dtype == "bf16":
        return Row(Fraction(2 * dim), f"index_head_dim {dim} x 2 B (bf16)")
    return Row(Fraction(dim + 4), f"index_head_dim {dim} fp8 + 4 B fp32 scale")


def _divides(config: Config, field: str, value: int, by: int) -> None:
    if value % by:
        raise config.refuse(field, f"{value} is no multiple of {by}, which its scales need")
