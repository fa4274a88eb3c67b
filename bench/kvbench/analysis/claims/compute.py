"""What some claims need beyond bytes: FLOPs of a decoded token, weights, prefill time, and what a disk keeps.

All of DeepSeek-V4.1-Flash, from the fields of its catalogue row.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from kvbench.analysis.models import bytes_model, catalogue

V41 = "deepseek-v4.1-flash"
ACTIVE_IN_DECODE = 16 * 10**9
"""Weights a decoded token touches, as claimed (and see weights())."""

PREFILL_S_PER_TOKEN = 50.5e-6
PREFILL_S_PER_TOKEN2 = 1.34e-10
PREFILL_START_S = 0.037
"""TTFT of an uncached prompt of u tokens, t0 + a*u + b*u^2/2: a fit to V4.1 on 8 H100 from 1K to 260K tokens."""
FITTED_TO_TOKENS = 260_000

WINDOW_SNAPSHOTS = 2
"""Copies of V4-Flash's windows that a request leaves on disk: at the end of its input and of its output."""


def v41_fields() -> dict[str, Any]:
    fields: dict[str, Any] = catalogue()[V41].config["text_config"]
    return fields


class DecodeFlops(NamedTuple):
    """FLOPs of one decoded token by kind: weights (16B active, 2 each), attention over the selected rows, indexing."""

    weights: float
    attention: float
    indexing: float

    def weighted(self, weights: float, attention: float, indexing: float) -> float:
        return weights * self.weights + attention * self.attention + indexing * self.indexing


def decode_flops(tokens: int) -> DecodeFlops:
    """At a context of `tokens`: every layer attends to its window and to index_topk selected rows; index layers that
    own their keys score every row, the others the candidate pool. Scaling, softmax and top-k are left out."""
    fields = v41_fields()
    ratios = fields["compress_ratios"][: fields["num_hidden_layers"]]
    row_flops = 2 * fields["num_attention_heads"] * 2 * fields["head_dim"]
    window = min(tokens, fields["sliding_window"])
    attended = sum(window + (min(fields["index_topk"], tokens // ratio) if ratio else 0) for ratio in ratios)
    pool = fields["candidate_topk_blocks"] * fields["candidate_block_size"]
    scored = 0
    for layer in fields["index_source_layer_ids"]:
        rows = tokens // ratios[layer]
        scored += rows if layer in fields["kv_source_layer_ids"] else min(rows, pool)
    key_flops = 2 * fields["index_n_heads"] * fields["index_head_dim"]
    return DecodeFlops(2.0 * ACTIVE_IN_DECODE, float(attended * row_flops), float(scored * key_flops))


class Weights(NamedTuple):
    """Counts of weights, from below: norms, hyper-connections, index and Engram projections are left out."""

    total: int
    active_decode: int
    active_prefill: int
    engram: int


def weights() -> Weights:
    """Experts of three matrices, routers, attention's five projections, embedding and head.

    Prefill runs the layers before the last KV source (the others only for the last tokens), and no head.
    """
    f = v41_fields()
    hidden, layers = f["hidden_size"], f["num_hidden_layers"]
    expert = 3 * hidden * f["moe_intermediate_size"]
    queries = f["num_attention_heads"] * f["head_dim"]
    attention = (
        hidden * f["q_lora_rank"]
        + f["q_lora_rank"] * queries
        + hidden * f["head_dim"]
        + queries * f["o_lora_rank"]
        + f["o_groups"] * f["o_lora_rank"] * hidden
    )
    table = f["vocab_size"] * hidden
    used = f["num_experts_per_tok"] + f["n_shared_experts"]
    router = hidden * f["n_routed_experts"]
    layers_active = layers * (used * expert + attention + router)
    return Weights(
        total=layers * ((f["n_routed_experts"] + f["n_shared_experts"]) * expert + attention + router) + 2 * table,
        active_decode=layers_active + table,
        active_prefill=layers_active * encoder_layers() // layers,
        engram=sum(f["engram_num_embeddings"]) * f["engram_head_dim"],
    )


def encoder_layers() -> int:
    """Layers up to and without the last KV source: what the layers after it read is then all there."""
    return int(max(v41_fields()["kv_source_layer_ids"]))


class Prefill(NamedTuple):
    seconds: float
    quadratic_share: float


def cold_prefill(tokens: int) -> Prefill:
    """TTFT of an uncached prompt by the fit above, and the share of its quadratic term."""
    quadratic = PREFILL_S_PER_TOKEN2 * tokens * tokens / 2
    seconds = PREFILL_START_S + PREFILL_S_PER_TOKEN * tokens + quadratic
    return Prefill(seconds, quadratic / seconds)


def disk_ratio(new_tokens: Fraction) -> Fraction:
    """Bytes that V4-Flash leaves on disk for each byte of V4.1, where a request has `new_tokens` (mean, above 0).

    (m + 2F / n) / m': V4-Flash stores its windows twice a request, V4.1 replays the window instead.
    """
    v4, v41 = bytes_model("deepseek-v4-flash"), bytes_model(V41)
    stored = v4.bytes_per_token + WINDOW_SNAPSHOTS * v4.bytes_per_session / new_tokens
    return stored / v41.bytes_per_token


def new_tokens_for(ratio: int) -> Fraction:
    """New tokens a request at which disk_ratio is `ratio`."""
    v4, v41 = bytes_model("deepseek-v4-flash"), bytes_model(V41)
    return WINDOW_SNAPSHOTS * v4.bytes_per_session / (ratio * v41.bytes_per_token - v4.bytes_per_token)
