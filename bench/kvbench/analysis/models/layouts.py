"""What an engine allocates: pages of whole rows, padded, which is not what the architecture needs.

vLLM cuts every layer's cache into pages for the same number of tokens and, for DeepSeek-V4 and V4.1, pads each page to
a multiple of 576 B. Only layouts that are known are given; for the others the figure has to be measured.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec

from kvbench.analysis.models.numbers import text
from kvbench.analysis.models.parts import ModelBytes

PAD_BYTES = 576
_V41_SOURCE = "reported of vLLM's DeepSeek-V4.1 support; the page arithmetic reproduces it"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's pages for `block_tokens` tokens, all layers together; bytes are on one tensor-parallel rank of a
    model that is not split."""

    engine: str
    layout: str
    block_tokens: int
    page_bytes: int
    lines: tuple[str, ...]
    source: str

    @property
    def bytes_per_token(self) -> Fraction:
        return Fraction(self.page_bytes, self.block_tokens)


class _Pages:
    """Adds up the pages of one block."""

    def __init__(self, block_tokens: int, pad: int) -> None:
        self.block_tokens = block_tokens
        self.pad = pad
        self.total = 0
        self.lines: list[str] = []

    def add(self, what: str, layers: int, ratio: int, row_bytes: int) -> None:
        """`layers` layers with a row of `row_bytes` for every `ratio` tokens."""
        rows = self.block_tokens // ratio
        raw = rows * row_bytes
        page = -(-raw // self.pad) * self.pad
        self.total += layers * page
        padded = f", padded to {page:,}" if page != raw else ""
        self.lines.append(
            f"{what}: {layers} x ({rows} rows x {row_bytes:,} B = {raw:,} B{padded}) = {layers * page:,} B"
        )

    def layout(self, name: str, source: str) -> Layout:
        self.lines.append(
            f"{self.total:,} B for {self.block_tokens} tokens = {text(Fraction(self.total, self.block_tokens))} B/token"
        )
        return Layout(
            engine="vLLM",
            layout=name,
            block_tokens=self.block_tokens,
            page_bytes=self.total,
            lines=tuple(self.lines),
            source=source,
        )


def allocated(model: ModelBytes) -> tuple[tuple[Layout, ...], str | None]:
    """Known layouts of `model`'s global KV, and a remark where there is none or where one is not the whole truth."""
    if model.model_type == "deepseek_v4":
        return _v4(model)
    if model.model_type == "deepseek_v41_text":
        return _v41(model)
    if any(part.kind != "token" for part in model.parts):
        return (), "not derived: an engine unifies the pages of the different kinds of layers. Measure it"
    if model.bytes_per_token.denominator != 1:
        return (), "not derived for this layout"
    block = 64 if model.model_type == "deepseek_v32" else 16
    size = int(model.bytes_per_token)
    pages = _Pages(block, 1)
    pages.add("all layers", 1, 1, size)
    which = "the block of its sparse MLA kernels" if block == 64 else "its default block size on CUDA"
    source = f"vLLM does not pad the pages of layers of one kind; {block} tokens is {which}"
    return (pages.layout(f"{model.cache_dtype}, block {block}", source),), (
        f"a session's last page is filled only in part: up to {block - 1} tokens are allocated and not used"
    )


def _field(model: ModelBytes, field: str) -> Any:
    """A field that the derivation has read, wherever in the config it stood."""
    return next(value for name, value in model.fields.items() if name.rpartition(".")[2] == field)


def _ratios(model: ModelBytes) -> list[int]:
    ratios: list[int] = _field(model, "compress_ratios")[: _field(model, "num_hidden_layers")]
    return ratios


def _fp8_ds_mla(model: ModelBytes) -> tuple[int, int]:
    """Bytes of a row and of an index key in vLLM's fp8_ds_mla layout of V4."""
    dim, rope, index = (_field(model, field) for field in ("head_dim", "qk_rope_head_dim", "index_head_dim"))
    return (dim - rope) + 2 * rope + (dim - rope) // 64 + 1, index + 4


def _v4(model: ModelBytes) -> tuple[tuple[Layout, ...], str | None]:
    ratios = _ratios(model)
    row, key = _fp8_ds_mla(model)
    pages = _Pages(256, PAD_BYTES)
    pages.add("CSA rows", ratios.count(4), 4, row)
    pages.add("HCA rows", ratios.count(128), 128, row)
    pages.add("index keys", ratios.count(4), 4, key)
    source = "vLLM's KV cache of DeepSeek-V4: fp8_ds_mla rows, fp8 index keys with fp32 scales, pages padded to 576 B"
    return (pages.layout("fp8_ds_mla, block 256", source),), (
        "global KV only; the window's pages and the compressors' state of running sessions come on top"
    )


def _v41(model: ModelBytes) -> tuple[tuple[Layout, ...], str | None]:
    ratios = _ratios(model)
    owners = [ratios[layer] for layer in _field(model, "kv_source_layer_ids")]
    row, key = _fp8_ds_mla(model)
    dim, index = _field(model, "head_dim"), _field(model, "index_head_dim")
    variants = (
        ("Hopper: fp8_ds_mla, block 128", row, key, PAD_BYTES),
        ("SM100: fp8, block 128, pages not padded", dim + dim // 32, index + 4, 1),
        ("SM100: nvfp4, block 128", dim // 2 + dim // 16, index // 2 + index // 32, PAD_BYTES),
        ("SM100: nvfp4, block 128, pages not padded", dim // 2 + dim // 16, index // 2 + index // 32, 1),
    )
    layouts = []
    for name, row_bytes, key_bytes, pad in variants:
        pages = _Pages(128, pad)
        for ratio in sorted(set(owners), reverse=True):
            pages.add(f"rows of ratio {ratio}", owners.count(ratio), ratio, row_bytes)
            pages.add(f"index keys of ratio {ratio}", owners.count(ratio), ratio, key_bytes)
        layouts.append(pages.layout(name, _V41_SOURCE))
    return tuple(
        layouts
    ), "global KV only; with fp8 on SM100 1,650 to 1,660 B/token are reported, by how pages are padded"
