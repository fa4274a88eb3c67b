"""The figures of the catalogue, each worked out here by hand from the architecture's own numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvbench.analysis.models import bytes_model, catalogue
from kvbench.analysis.models.layouts import allocated
from kvbench.errors import UsageError

BY_HAND = {
    # layers x (K and V) x KV heads x head_dim x 2 B
    "deepseek-v1": (95 * 2 * 8 * 128 * 2, 0),
    "llama-3-8b": (32 * 2 * 8 * 128 * 2, 0),
    "llama-3-70b": (80 * 2 * 8 * 128 * 2, 0),
    "qwen3-8b": (36 * 2 * 8 * 128 * 2, 0),
    "qwen3-32b": (64 * 2 * 8 * 128 * 2, 0),
    "qwen3-30b-a3b": (48 * 2 * 4 * 128 * 2, 0),
    # an MLA row of 512 fp8, 16 scales and 128 RoPE, and an index key of 128 fp8 and 4
    "deepseek-v3.2": (61 * (512 + 16 + 128 + 128 + 4), 0),
    # 21 layers a row of 584 and a key of 68 every 4 tokens, 20 layers a row every 128
    "deepseek-v4-flash": (Fraction(21 * (584 + 68), 4) + Fraction(20 * 584, 128), 43 * 128 * 584),
    # four owners, three of them a row every 2 tokens
    "deepseek-v4.1-flash": ((256 + 32 + 64 + 4) * (Fraction(3, 2) + 1), 40 * 128 * 528 + 24_576),
    # 24 MLA layers of 576 fp8; 69 KDA layers of 96 matrices of 128 x 128 in fp32, and q, k, v of the last 3 tokens
    "kimi-k3": (24 * 576, 69 * 96 * 128 * 128 * 4 + 69 * 3 * 96 * 128 * 3 * 2),
    "qwen3-next-80b": (12 * 2 * 2 * 256 * 2, 36 * 32 * 128 * 128 * 4 + 36 * 8192 * 3 * 2),
    "gpt-oss-120b": (18 * 2 * 8 * 64 * 2, 18 * 128 * 2 * 8 * 64 * 2),
    "gemma-2-9b": (21 * 2 * 8 * 256 * 2, 21 * 4096 * 2 * 8 * 256 * 2),
    "gemma-3-27b": (10 * 2 * 16 * 128 * 2, 52 * 1024 * 2 * 16 * 128 * 2),
}

PUBLISHED = {
    "deepseek-v1": 389_120,
    "deepseek-v3.2": 48_068,
    "deepseek-v4-flash": Fraction("3514.25"),
    "deepseek-v4.1-flash": 890,
    "kimi-k3": 13_824,
    "llama-3-8b": 131_072,
    "llama-3-70b": 327_680,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "qwen3-30b-a3b": 98_304,
    "qwen3-next-80b": 24_576,
    "gpt-oss-120b": 36_864,
    "gemma-2-9b": 172_032,
    "gemma-3-27b": 81_920,
}


def test_the_hand_worked_table_is_the_catalogue() -> None:
    assert set(BY_HAND) == set(PUBLISHED) == set(catalogue())


@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_a_token_and_a_session(name: str) -> None:
    model = bytes_model(name)
    assert (model.bytes_per_token, model.bytes_per_session) == BY_HAND[name]
    assert model.bytes_per_token == PUBLISHED[name]


@pytest.mark.parametrize("name", BY_HAND)
def test_the_derivation_adds_up_to_the_figures(name: str) -> None:
    model = bytes_model(name)
    for unit, total in (("B/token", model.bytes_per_token), ("B/session", model.bytes_per_session)):
        assert sum(step.value for step in model.steps if step.unit == unit and step.value is not None) == total


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("deepseek-v4-flash", "3.21"),
        ("deepseek-v4.1-flash", "2.73"),
        ("gpt-oss-120b", "4.72"),
        ("gemma-2-9b", "704.64"),
        ("gemma-3-27b", "436.21"),
        ("kimi-k3", "449.37"),
        ("qwen3-next-80b", "77.27"),
    ],
)
def test_session_bytes_in_megabytes(name: str, megabytes: str) -> None:
    assert f"{float(bytes_model(name).bytes_per_session) / 1e6:.2f}" == megabytes


def test_the_recurrent_states_without_their_convolutions() -> None:
    state = {part.label: part.per_session for part in bytes_model("kimi-k3").parts}
    assert state["KDA state"] == 434_110_464
    assert state["convolution state"] == 15_261_696
    state = {part.label: part.per_session for part in bytes_model("qwen3-next-80b").parts}
    assert state["Gated DeltaNet state"] == 75_497_472


def test_v41_is_not_counted_with_the_index_keys_of_all_eight_index_layers() -> None:
    assert bytes_model("deepseek-v4.1-flash").bytes_per_token != 890 + 4 * 68 == 1_162


# ------------------------------------------------------------------------------------------------- engine layouts


def layouts(name: str) -> dict[str, tuple[int, Fraction]]:
    return {found.layout: (found.page_bytes, found.bytes_per_token) for found in allocated(bytes_model(name))[0]}


def test_vllms_page_of_v4_flash() -> None:
    # 64 rows of 584 are 37,376 B: 65 pads of 576; 2 rows 1,168: 3 pads; 64 keys of 132 are 8,448: 15 pads
    assert 21 * 37_440 + 20 * 1_728 + 21 * 8_640 == 1_002_240
    assert layouts("deepseek-v4-flash") == {"fp8_ds_mla, block 256": (1_002_240, Fraction(3_915))}


def test_vllms_layouts_of_v41_flash() -> None:
    assert [per_token for _, per_token in layouts("deepseek-v4.1-flash").values()] == [1_800, 1_650, 900, 890]


def test_layouts_of_one_kind_of_layers_are_not_padded() -> None:
    assert layouts("llama-3-8b") == {"bf16, block 16": (16 * 131_072, Fraction(131_072))}
    assert layouts("deepseek-v3.2") == {"fp8_ds_mla, block 64": (64 * 48_068, Fraction(48_068))}


@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-120b", "kimi-k3", "qwen3-next-80b"])
def test_a_layout_that_is_not_known_is_not_made_up(name: str) -> None:
    found, remark = allocated(bytes_model(name))
    assert found == ()
    assert remark is not None
    assert remark.startswith("not derived")


# --------------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("name", "dtype", "per_token", "per_session"),
    [
        ("llama-3-8b", "fp8", 65_536, 0),
        ("llama-3-8b", "fp32", 262_144, 0),
        ("kimi-k3", "bf16", 24 * 576 * 2, 449_372_160),
        ("deepseek-v3.2", "bf16", 61 * (576 * 2 + 132), 0),
        ("deepseek-v4-flash", "bf16", Fraction(21 * (1024 + 256), 4) + Fraction(20 * 1024, 128), 43 * 128 * 1024),
        ("deepseek-v4.1-flash", "fp8", 1_650, 40 * 128 * 528 + 24_576),
        ("deepseek-v4.1-flash", "fp8_ds_mla", 1_790, 40 * 128 * 584 + 24_576),
        ("deepseek-v4.1-flash", "bf16", Fraction(5, 2) * (512 + 128) * 2, 40 * 128 * 1024 + 24_576),
        ("gemma-3-27b", "fp8", 40_960, 218_103_808),
    ],
)
def test_other_cache_dtypes(name: str, dtype: str, per_token: int, per_session: int) -> None:
    model = bytes_model(name, dtype)
    assert (model.bytes_per_token, model.bytes_per_session) == (per_token, per_session)


@pytest.mark.parametrize(("name", "dtype"), [("llama-3-8b", "nvfp4"), ("deepseek-v4-flash", "fp16")])
def test_a_dtype_the_cache_does_not_have_is_refused_with_those_it_has(name: str, dtype: str) -> None:
    with pytest.raises(UsageError) as caught:
        bytes_model(name, dtype)
    assert dtype in caught.value.message
    assert "bf16" in str(caught.value.hint)


# ------------------------------------------------------------------------------------------------ tensor parallel


@pytest.mark.parametrize(
    ("name", "ranks", "per_token", "per_session"),
    [
        ("llama-3-8b", 4, 131_072 // 4, 0),
        ("llama-3-8b", 8, 131_072 // 8, 0),
        ("llama-3-8b", 32, 131_072 // 8, 0),
        ("qwen3-30b-a3b", 8, 98_304 // 4, 0),
        ("deepseek-v3.2", 8, 48_068, 0),
        ("deepseek-v4.1-flash", 8, 890, 2_727_936),
        ("kimi-k3", 8, 13_824, 449_372_160 // 8),
        ("gemma-3-27b", 32, 81_920 // 16, 436_207_616 // 16),
        # 2 KV heads on 4 ranks are held twice, 32 value heads are shared out
        ("qwen3-next-80b", 4, 12_288, 77_266_944 // 4),
    ],
)
def test_what_a_rank_holds(name: str, ranks: int, per_token: int, per_session: int) -> None:
    rank = bytes_model(name).per_rank(ranks)
    assert (rank.bytes_per_token, rank.bytes_per_session) == (per_token, per_session)


@pytest.mark.parametrize(
    ("name", "ranks", "field"),
    [
        ("llama-3-8b", 3, "num_attention_heads 32"),
        ("llama-3-8b", 0, "1 or more"),
        ("kimi-k3", 64, "num_attention_heads 96"),
        ("gpt-oss-120b", 5, "num_attention_heads 64"),
    ],
)
def test_ranks_that_do_not_split_evenly_are_refused(name: str, ranks: int, field: str) -> None:
    with pytest.raises(UsageError, match=field):
        bytes_model(name).per_rank(ranks)


# -------------------------------------------------------------------------------------------------------- context


@pytest.mark.parametrize(
    ("name", "tokens", "held"),
    [
        ("llama-3-8b", 1_000, 131_072_000),
        ("deepseek-v4.1-flash", 131_072, 119_382_016),
        ("deepseek-v4.1-flash", 1_000_000, 892_727_936),
        # a window that is not full holds a row a token: 40 x 528 B, and the compressor tails are there from the start
        ("deepseek-v4.1-flash", 100, 100 * 890 + 100 * 40 * 528 + 24_576),
        ("deepseek-v4-flash", 131_072, 463_834_112),
        ("kimi-k3", 1_000_000, 14_273_372_160),
        ("gemma-3-27b", 500, 500 * 62 * 8_192),
        ("gemma-3-27b", 1_024, 1_024 * 62 * 8_192),
        ("gemma-3-27b", 2_000, 2_000 * 10 * 8_192 + 1_024 * 52 * 8_192),
    ],
)
def test_bytes_of_a_session(name: str, tokens: int, held: int) -> None:
    assert bytes_model(name).at(tokens) == held
