"""Every claim against figures worked out here from the architectures' own numbers."""

from __future__ import annotations

from array import array
from fractions import Fraction
from typing import Any

import pytest

from kvbench.analysis.claims import Claim, Traffic, check_claims, compute, failed, sizes
from kvbench.analysis.claims.claim import at_least, rounded
from kvbench.analysis.models import bytes_model, catalogue
from kvbench.analysis.models.architectures import model_bytes

V1, V32, V4, V41, K3 = 389_120, 48_068, Fraction(14_057, 4), 890, 13_824
F4, F41, FK3 = 3_214_336, 2_727_936, 449_372_160

VERDICTS = {
    "v1-bytes-per-token": "holds",
    "v3.2-bytes-per-token": "holds",
    "v4-bytes-per-token": "holds",
    "v4.1-bytes-per-token": "holds",
    "v1-to-v3.2": "holds",
    "v3.2-to-v4": "holds",
    "v4-to-v4.1": "holds",
    "v1-to-v4.1": "holds",
    "v1-session-at-1m": "holds",
    "v4.1-session-at-1m": "holds with correction",
    "hbm-quarter": "holds with correction",
    "ssd-eighth": "holds with correction",
    "kv-linear-prefill-quadratic": "holds with correction",
    "compute-limits-at-1m": "holds with correction",
    "candidate-pool": "holds",
    "layers-20-20": "holds",
    "active-weights": "holds with correction",
    "window-128": "holds",
    "replay-128": "cannot tell",
    "decode-flops": "holds with correction",
    "ttl-minutes": "holds with correction",
    "hit-frees-hbm": "holds with correction",
    "score-deepswe": "out of scope",
    "score-terminal-bench": "out of scope",
    "k3-bytes-per-token": "holds with correction",
    "k3-session-at-1m": "holds with correction",
    "k3-1000-sessions": "holds with correction",
    "k3-price": "holds",
}


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.id: claim for claim in check_claims()}


def test_every_claim_and_its_verdict(claims: dict[str, Claim]) -> None:
    assert {name: claim.verdict for name, claim in claims.items()} == VERDICTS
    assert failed(list(claims.values())) == []
    assert all(claim.on_trace is None for claim in claims.values())


def test_a_verdict_with_a_correction_says_which(claims: dict[str, Claim]) -> None:
    for claim in claims.values():
        assert (claim.correction is not None) == (claim.verdict in ("holds with correction", "cannot tell"))


@pytest.mark.parametrize(
    ("name", "ratio", "printed"),
    [
        ("v1-to-v3.2", Fraction(V1, V32), "8.1x"),
        ("v3.2-to-v4", V32 / V4, "13.7x"),
        ("v4-to-v4.1", V4 / V41, "3.9x"),
        ("v1-to-v4.1", Fraction(V1, V41), "437.2x"),
    ],
)
def test_steps(claims: dict[str, Claim], name: str, ratio: Fraction, printed: str) -> None:
    assert claims[name].figures["ratio"] == float(ratio)
    assert claims[name].gives == printed


def test_a_quarter_of_the_hbm_with_what_a_session_takes(claims: dict[str, Claim]) -> None:
    claim = claims["hbm-quarter"]
    for n in (4_096, 16_384, 131_072):
        assert claim.figures[f"ratio_at_{n}"] == float((F4 + V4 * n) / (F41 + V41 * n))
    assert claim.figures["ratio_by_pages_hopper"] == 3_915 / 1_800
    assert claim.figures["ratio_by_pages_nvfp4"] == 3_915 / 890
    correction = str(claim.correction)
    assert "2.8x at 4K, 3.5x at 16K, 3.9x at 128K" in correction
    assert "2.2x (Hopper), 4.4x (nvfp4)" in correction


@pytest.mark.parametrize(("n", "ratio"), [(1_000, "11.2"), (1_783, "8.0"), (4_000, "5.8")])
def test_an_eighth_of_the_ssd_by_new_tokens(n: int, ratio: str) -> None:
    found = compute.disk_ratio(Fraction(n))
    assert found == (V4 + Fraction(2 * F4, n)) / V41
    assert str(rounded(found, 1)) == ratio


def test_where_it_is_an_eighth(claims: dict[str, Claim]) -> None:
    # (3514.25 + 6,428,672 / n) / 890 = 8
    assert claims["ssd-eighth"].figures["new_tokens_at_1_8"] == pytest.approx(6_428_672 / (7_120 - 3_514.25))


def test_sessions_of_a_million_tokens(claims: dict[str, Claim]) -> None:
    assert claims["v1-session-at-1m"].figures["session_bytes"] == 389_120_000_000
    assert claims["v4.1-session-at-1m"].figures["session_bytes"] == 890_000_000 + F41
    assert claims["k3-session-at-1m"].figures["session_bytes"] == 13_824_000_000 + FK3
    assert claims["k3-1000-sessions"].figures["bytes"] == 1_000 * (13_824_000_000 + FK3)
    assert "434 MB of KDA state" in str(claims["k3-session-at-1m"].correction)


def test_prefill_by_the_fit(claims: dict[str, Claim]) -> None:
    figures = claims["compute-limits-at-1m"].figures
    assert figures["cold_prefill_s"] == pytest.approx(0.037 + 50.5 + 67.0)
    assert figures["quadratic_share"] == pytest.approx(67.0 / 117.537)


def test_structure(claims: dict[str, Claim]) -> None:
    assert claims["candidate-pool"].figures == {"candidates": 16_384}
    assert claims["layers-20-20"].figures == {"layers_before": 20, "layers_from": 20}
    attention = 5120 * 1280 + 1280 * 64 * 512 + 5120 * 512 + 64 * 512 * 1024 + 8 * 1024 * 5120
    layer = attention + 5120 * 384
    expert = 3 * 5120 * 2304
    assert claims["active-weights"].figures == {
        "total": 40 * (385 * expert + layer) + 2 * 129_280 * 5120,
        "active_decode": 40 * (7 * expert + layer) + 129_280 * 5120,
        "active_prefill": 20 * (7 * expert + layer),
        "engram": (384_006_168 + 384_016_682) * 256,
    }


def test_flops_of_a_decoded_token() -> None:
    flops = compute.decode_flops(1_000_000)
    assert flops.weights == 32e9
    # 38 layers attend to 128 + 512 rows and 2 to 128; a row takes q k and p v, 64 heads of 512, 2 FLOPs each
    assert flops.attention == (38 * 640 + 2 * 128) * 64 * 512 * 2 * 2
    # three owners score n / 2 keys, one n, four the pool of 16,384; a key takes 32 heads of 128, 2 FLOPs each
    assert flops.indexing == (3 * 500_000 + 1_000_000 + 4 * 16_384) * 32 * 128 * 2
    short = compute.decode_flops(4_096)
    assert short.indexing == (3 * 2_048 + 4_096 + 4 * 4_096) * 32 * 128 * 2
    long, brief = 32e9 + 2 * flops.attention + flops.indexing / 2, 32e9 + 2 * short.attention + short.indexing / 2
    assert round(100 * (long / brief - 1)) == 27


def test_price_of_96_percent_hits(claims: dict[str, Claim]) -> None:
    assert claims["k3-price"].figures == {"usd_per_mtok": "0.408"}  # 0.04 x 3.00 + 0.96 x 0.30


def test_claims_that_the_model_contradicts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """V4.1 with all eight index layers as owners of rows and keys: (288 + 68) x (3/2 + 5) = 2,314 B/token."""
    row = catalogue()["deepseek-v4.1-flash"].config
    text = row["text_config"] | {"kv_source_layer_ids": row["text_config"]["index_source_layer_ids"]}
    wrong = model_bytes(row | {"text_config": text}, "deepseek-v4.1-flash", "wrong")
    assert wrong.bytes_per_token == 2_314
    monkeypatch.setattr(sizes, "bytes_model", lambda name: wrong if name == wrong.name else bytes_model(name))
    assert [claim.id for claim in failed(list(sizes.deepseek(None)))] == [
        "v4.1-bytes-per-token",
        "v4-to-v4.1",
        "v1-to-v4.1",
        "v4.1-session-at-1m",
        "hbm-quarter",
    ]


def traffic(contexts: list[int], new_tokens: int = 0, input_tokens: int | None = None, **fields: Any) -> Traffic:
    return Traffic(
        name="toy",
        contexts=array("q", contexts),
        input_tokens=sum(contexts) if input_tokens is None else input_tokens,
        output_tokens=0,
        new_tokens=new_tokens,
        without_output=0,
        block_size=64,
        tokens="by hand",
        estimated=False,
        **fields,
    )


@pytest.mark.parametrize(
    ("contexts", "ratio", "verdict"),
    [
        ([4_096], "2.8", "does not hold"),
        ([16_384], "3.5", "holds"),
        ([131_072, 131_072], "3.9", "holds"),
        # a window that is not full: 100 rows of it
        ([100], "1.3", "does not hold"),
    ],
)
def test_a_quarter_on_a_trace(contexts: list[int], ratio: str, verdict: str) -> None:
    here = {claim.id: claim for claim in check_claims(traffic(contexts))}["hbm-quarter"].on_trace
    assert here is not None
    v4 = sum(n * V4 + min(n, 128) * 43 * 584 for n in contexts)
    v41 = sum(n * V41 + min(n, 128) * 40 * 528 + 24_576 for n in contexts)
    assert here.figures["ratio"] == float(v4 / v41)
    assert here.gives.startswith(f"1/{ratio},")
    assert here.verdict == verdict


@pytest.mark.parametrize(
    ("new_tokens", "gives", "verdict"),
    [
        (4_000, "1/5.8, at 4,000 new tokens a request", "does not hold"),
        (1_783, "1/8.0, at 1,783 new tokens a request", "holds"),
        (1_000, "1/11.2, at 1,000 new tokens a request", "holds with correction"),
        (0, "no request has a new token", "cannot tell"),
    ],
)
def test_an_eighth_on_a_trace(new_tokens: int, gives: str, verdict: str) -> None:
    found = {claim.id: claim for claim in check_claims(traffic([10_000] * 5, 5 * new_tokens))}["ssd-eighth"].on_trace
    assert found is not None
    assert (found.gives, found.verdict) == (gives, verdict)


@pytest.mark.parametrize(
    ("new_tokens", "usd", "verdict"),
    [(5_000, "0.435", "does not hold"), (4_000, "0.408", "holds"), (1_000, "0.327", "holds with correction")],
)
def test_the_price_on_a_trace(new_tokens: int, usd: str, verdict: str) -> None:
    found = {claim.id: claim for claim in check_claims(traffic([100_000], new_tokens))}["k3-price"].on_trace
    assert found is not None
    assert found.figures["usd_per_mtok_at_least"] == usd
    assert found.verdict == verdict


def test_where_a_trace_does_not_say_what_prompts_share() -> None:
    found = {claim.id: claim.on_trace for claim in check_claims(traffic([9_000], 9_000, sharing_known=False))}
    for name in ("ssd-eighth", "k3-price"):
        here = found[name]
        assert here is not None
        assert here.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("value", "claimed", "verdict"),
    [
        ("3.5", "4", "holds"),
        ("3.49", "4", "does not hold"),
        ("4.49", "4", "holds"),
        ("4.5", "4", "holds with correction"),
    ],
)
def test_rounding_decides(value: str, claimed: str, verdict: str) -> None:
    assert at_least(Fraction(value), claimed) == verdict
