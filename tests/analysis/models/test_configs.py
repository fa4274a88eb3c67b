"""Configs as users have them: wrapped, partly defaulted, wrong in every way a config can be wrong."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.models import bytes_model, catalogue
from kvbench.analysis.models.architectures import model_bytes
from kvbench.analysis.models.layouts import allocated
from kvbench.errors import InputError, KvbenchError, UsageError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
V2_LITE = {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
GRANITE = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "torch_dtype": "bfloat16",
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "M-M*E",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
    "torch_dtype": "bfloat16",
}


def row(name: str) -> dict[str, Any]:
    return copy.deepcopy(catalogue()[name].config)


def changed(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy with fields set; `...` takes one away; a name with a dot reaches inside."""
    made = copy.deepcopy(config)
    for name, value in fields.items():
        where, _, last = name.rpartition("__")
        inner = made
        for step in where.split("__") if where else ():
            inner = inner[step]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return made


def figures(config: dict[str, Any], dtype: str = "auto") -> tuple[Fraction, Fraction]:
    model = model_bytes(config, "toy", "config.json", dtype)
    return model.bytes_per_token, model.bytes_per_session


# ------------------------------------------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    ("config", "per_token", "per_session"),
    [
        (LLAMA, 4 * 2 * 2 * 32 * 2, 0),
        # head_dim is read where it is given, whatever hidden_size says
        (changed(LLAMA, head_dim=64), 4 * 2 * 2 * 64 * 2, 0),
        (changed(LLAMA, num_key_value_heads=...), 4 * 2 * 8 * 32 * 2, 0),
        (changed(LLAMA, num_key_value_heads=None), 4 * 2 * 8 * 32 * 2, 0),
        (changed(LLAMA, num_key_value_heads=1), 4 * 2 * 1 * 32 * 2, 0),
        (changed(LLAMA, torch_dtype="float32"), 4 * 2 * 2 * 32 * 4, 0),
        (changed(LLAMA, num_hidden_layers=4.0, sliding_window=None), 4 * 2 * 2 * 32 * 2, 0),
        (changed(LLAMA, quantization_config={"kv_cache_scheme": {"num_bits": 8}}), 4 * 2 * 2 * 32, 0),
        (changed(LLAMA, quantization_config={"kv_cache_scheme": None}), 4 * 2 * 2 * 32 * 2, 0),
        (changed(LLAMA, model_type="mistral", sliding_window=100), 0, 100 * 4 * 2 * 2 * 32 * 2),
        (changed(LLAMA, model_type="mistral", sliding_window=None), 4 * 2 * 2 * 32 * 2, 0),
        (changed(LLAMA, model_type="qwen2", sliding_window=100, use_sliding_window=False), 4 * 2 * 2 * 32 * 2, 0),
        (
            changed(LLAMA, model_type="qwen2", sliding_window=100, use_sliding_window=True, max_window_layers=3),
            3 * 2 * 2 * 32 * 2,
            100 * 2 * 2 * 32 * 2,
        ),
        # qwen3 and gemma do not divide: their own default holds
        (changed(LLAMA, model_type="qwen3"), 4 * 2 * 2 * 128 * 2, 0),
        (changed(LLAMA, model_type="gemma2", sliding_window=10), 2 * 2 * 2 * 256 * 2, 2 * 10 * 2 * 2 * 256 * 2),
        (
            changed(LLAMA, model_type="gemma3_text", sliding_window=10, sliding_window_pattern=4),
            1 * 2 * 2 * 256 * 2,
            3 * 10 * 2 * 2 * 256 * 2,
        ),
        # a window that no context exceeds is none
        (changed(LLAMA, model_type="phi3", sliding_window=99, max_position_embeddings=99), 4 * 2 * 2 * 32 * 2, 0),
        (changed(LLAMA, model_type="phi3", sliding_window=98, max_position_embeddings=99), 0, 98 * 4 * 2 * 2 * 32 * 2),
        # Gemma 3 leaves out what is as in its own default: 8 heads, 4 KV heads, head_dim 256
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 10, "dtype": "bfloat16"},
            2 * 4 * 256 * 2,
            5 * 10 * 2 * 4 * 256 * 2,
        ),
        (changed(LLAMA, model_type="glm4_moe", head_dim=64), 4 * 2 * 2 * 64 * 2, 0),
        (V2_LITE, 27 * 576 * 2, 0),
        (changed(row("kimi-k3"), model_type="kimi_linear_vl"), 24 * 576 * 2, 449_372_160),
        (GRANITE, 2 * 2 * 16 * 2, 3 * (8 * 16 * 32 * 4 + (8 * 16 + 2 * 32) * 3 * 2)),
        (changed(GRANITE, mamba_ssm_cache_dtype="bfloat16"), 128, 3 * (8 * 16 * 32 * 2 + (8 * 16 + 2 * 32) * 3 * 2)),
        (NEMOTRON, 2 * 2 * 16 * 2, 2 * (8 * 16 * 32 * 4 + (8 * 16 + 2 * 2 * 32) * 3 * 2)),
        (changed(row("deepseek-v4-flash"), num_nextn_predict_layers=3), Fraction(14_057, 4), 3_214_336),
        # the draft layers' entries of compress_ratios may be there or not
        (
            changed(row("deepseek-v4-flash"), compress_ratios=[0, 0] + [4, 128] * 20 + [4]),
            Fraction(14_057, 4),
            3_214_336,
        ),
        (changed(row("deepseek-v4.1-flash"), model_type=...), 890, 2_727_936),
        (row("deepseek-v4.1-flash")["text_config"], 890, 2_727_936),
        (changed(row("gemma-3-27b"), text_config__model_type=...), 81_920, 436_207_616),
        (changed(row("qwen3-next-80b"), full_attention_interval=...), 24_576, 77_266_944),
    ],
)
def test_configs_that_are_read(config: dict[str, Any], per_token: Fraction, per_session: int) -> None:
    assert figures(config) == (per_token, per_session)


def test_what_the_config_leaves_open_is_told() -> None:
    assumed = model_bytes(changed(LLAMA, num_key_value_heads=...), "toy", "config.json").assumed
    assert any(line.startswith("head_dim 32: hidden_size 256 / num_attention_heads 8") for line in assumed)
    assert any(line.startswith("num_key_value_heads 8") for line in assumed)
    assert model_bytes(changed(LLAMA, head_dim=32), "toy", "config.json").assumed == ()


def test_the_fields_that_were_used_are_kept() -> None:
    fields = bytes_model("deepseek-v4.1-flash").fields
    assert fields["text_config.kv_source_layer_ids"] == [2, 8, 14, 20]
    assert "text_config.vocab_size" not in fields


@pytest.mark.parametrize(("groups", "ranks", "allowed"), [(2, 2, True), (2, 4, True), (4, 2, True), (3, 2, False)])
def test_mamba_groups_are_split_or_copied(groups: int, ranks: int, allowed: bool) -> None:
    model = model_bytes(changed(NEMOTRON, n_groups=groups), "toy", "config.json")
    if not allowed:
        with pytest.raises(UsageError, match=f"n_groups {groups}"):
            model.per_rank(ranks)
        return
    heads = 2 * (8 * 16 * 32 * 4 + 8 * 16 * 3 * 2) // ranks
    own = max(groups // ranks, 1)
    assert model.per_rank(ranks).bytes_per_session == heads + 2 * 2 * own * 32 * 3 * 2


# ------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not JSON"),
        (b"{\n  'a': 1}", "config.json:2: not JSON"),
        (b"[1]", "not an object"),
        (b"\x80\x04weights", "not UTF-8"),
        (b'{"model_type": "llama", "head_dim": 64, "head_dim": 128}', "head_dim: given twice, as 64 and as 128"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b" " * (16 * 2**20 + 1), "longer than 16 MiB"),
        (b'{"model_type": "\\u001b[31m\\ud800"}', '"\\u001b[31m\\ud800" is not an architecture'),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        bytes_model(str(path))
    assert says in caught.value.message


def test_a_file_a_directory_and_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert (
        bytes_model(str(tmp_path)).bytes_per_token == bytes_model(str(tmp_path / "config.json")).bytes_per_token == 1024
    )


@pytest.mark.parametrize("name", ["", "llama", "no/such/config.json", "a\0b"])
def test_a_name_that_is_neither_model_nor_file(name: str) -> None:
    with pytest.raises(InputError) as caught:
        bytes_model(name)
    assert "\0" in name or "deepseek-v4.1-flash" in str(caught.value.hint)


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        bytes_model(str(tmp_path))


# ---------------------------------------------------------------------------------------------------- properties

kinds = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=12)


@given(kinds, st.sampled_from([1, 2, 4, 8]), st.integers(1, 128), st.integers(1, 50), st.integers(1, 120))
def test_a_session_counted_row_by_row(layer_types: list[str], heads: int, dim: int, window: int, tokens: int) -> None:
    """Against a cache filled token by token: a full layer keeps every row, a window its last ones."""
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_attention_heads": 8,
        "num_key_value_heads": heads,
        "head_dim": dim,
        "sliding_window": window,
        "dtype": "bfloat16",
    }
    held = 0
    for kind in layer_types:
        rows: list[int] = []
        for token in range(tokens):
            rows.append(token)
            if kind == "sliding_attention" and len(rows) > window:
                rows.pop(0)
        held += sum(2 * heads * dim * 2 for _ in rows)
    model = model_bytes(config, "toy", "config.json")
    assert model.at(tokens) == held
    if tokens >= window:
        assert model.at(tokens) == model.bytes_per_session + model.bytes_per_token * tokens


ODD = st.sampled_from([None, 0, -1, 3, 1.5, 64.0, True, "", "x", [], [0], [None], {}, {"a": 1}, 10**30, float("nan")])


@given(st.sampled_from(sorted(catalogue())), st.data())
def test_a_spoilt_config_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Never a traceback, and never less than nothing."""
    config = row(name)
    inner = config.get("text_config", config)
    for field in data.draw(st.lists(st.sampled_from(sorted(inner)), min_size=1, max_size=3)):
        inner[field] = data.draw(ODD)
    try:
        model = model_bytes(config, "toy", "config.json")
    except KvbenchError:
        return
    allocated(model)
    assert model.bytes_per_token >= 0
    assert model.at(1_000) > 0


@given(st.sampled_from(sorted(catalogue())), st.integers(1, 2_000_000), st.integers(1, 2_000_000))
def test_more_tokens_never_take_less(name: str, a: int, b: int) -> None:
    model = bytes_model(name)
    assert model.at(min(a, b)) <= model.at(max(a, b))


@given(st.sampled_from(sorted(catalogue())), st.integers(0, 5))
def test_ranks_hold_each_byte_at_least_once(name: str, power: int) -> None:
    model = bytes_model(name)
    ranks = 2**power
    try:
        rank = model.per_rank(ranks)
    except UsageError:
        return
    assert model.bytes_per_token <= rank.bytes_per_token * ranks <= model.bytes_per_token * ranks
    assert model.bytes_per_session <= rank.bytes_per_session * ranks <= model.bytes_per_session * ranks


@pytest.mark.parametrize(
    ("name", "narrow_to_wide"),
    [
        ("llama-3-8b", ("fp8", "bf16", "fp32")),
        ("gemma-3-27b", ("fp8", "fp16", "fp32")),
        ("kimi-k3", ("fp8", "fp8_ds_mla", "bf16", "fp32")),
        ("qwen3-next-80b", ("fp8", "bf16", "fp32")),
        ("deepseek-v3.2", ("fp8_ds_mla", "bf16")),
        ("deepseek-v4-flash", ("fp8_ds_mla", "bf16")),
        ("deepseek-v4.1-flash", ("nvfp4", "fp8", "fp8_ds_mla", "bf16")),
    ],
)
def test_a_wider_dtype_never_takes_less(name: str, narrow_to_wide: tuple[str, ...]) -> None:
    found = [bytes_model(name, dtype) for dtype in narrow_to_wide]
    for narrow, wide in pairwise(found):
        assert narrow.bytes_per_token < wide.bytes_per_token
        assert narrow.bytes_per_session <= wide.bytes_per_session
