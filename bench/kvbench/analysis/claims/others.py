"""Claims about anything but bytes: prefill, structure, lifetimes, FLOPs, price, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from kvbench.analysis.claims import compute
from kvbench.analysis.claims.claim import Claim, OnTrace, at_least, judged, rounded
from kvbench.analysis.claims.sizes import MILLION, PAPER, UNKNOWN_SHARING
from kvbench.analysis.claims.traffic import Traffic
from kvbench.analysis.models import bytes_model
from kvbench.analysis.models.numbers import text

K3_USD_PER_MTOK = {"miss": Decimal("3.00"), "hit": Decimal("0.30"), "output": Decimal("15.00")}


def prefill(traffic: Traffic | None) -> Iterator[Claim]:
    v41 = bytes_model(compute.V41)
    short, long = compute.cold_prefill(1_000), compute.cold_prefill(MILLION)
    fitted = f"by a fit to 8 H100 from 1K to {compute.FITTED_TO_TOKENS // 1000}K tokens: at 10^6 it is carried on"
    yield Claim(
        id="kv-linear-prefill-quadratic",
        claim="KV grows linearly with the context, prefill quadratically",
        source=PAPER,
        gives=(
            f"KV {text(v41.bytes_per_session)} + {text(v41.bytes_per_token)} n B; the quadratic part of a cold "
            f"prefill is {short.quadratic_share:.1%} at 10^3 and {long.quadratic_share:.0%} at 10^6 tokens"
        ),
        verdict=judged(long.quadratic_share > short.quadratic_share, fitted),
        correction=f"prefill {fitted}",
        figures={"quadratic_share_at_1k": short.quadratic_share, "quadratic_share_at_1m": long.quadratic_share},
    )
    yield Claim(
        id="compute-limits-at-1m",
        claim="At 10^6 tokens compute is the limit, not KV memory",
        source=PAPER,
        gives=(
            f"{long.seconds:.1f} s for a cold prefill, {long.quadratic_share:.0%} of it quadratic; its KV is "
            f"{rounded(v41.at(MILLION) / 10**6, 0)} MB"
        ),
        verdict=judged(long.quadratic_share > 0.5, fitted),
        correction=fitted,
        figures={"cold_prefill_s": long.seconds, "quadratic_share": long.quadratic_share},
        on_trace=_prefill_on(traffic) if traffic else None,
    )


def _prefill_on(traffic: Traffic) -> OnTrace:
    longest = max(traffic.contexts)
    cold = compute.cold_prefill(longest)
    return OnTrace(
        gives=f"{cold.seconds:.1f} s for the longest context, {longest:,} tokens, {cold.quadratic_share:.0%} quadratic",
        figures={"cold_prefill_s": cold.seconds, "quadratic_share": cold.quadratic_share},
    )


def structure() -> Iterator[Claim]:
    fields = compute.v41_fields()
    pool = fields["candidate_topk_blocks"] * fields["candidate_block_size"]
    yield Claim(
        id="candidate-pool",
        claim="A pool of 2,048 blocks of 8 = 16,384 candidates",
        source=PAPER,
        gives=f"candidate_topk_blocks {fields['candidate_topk_blocks']} x candidate_block_size "
        f"{fields['candidate_block_size']} = {pool:,}",
        verdict=judged(pool == 16_384),
        figures={"candidates": pool},
    )
    encoder = compute.encoder_layers()
    decoder = fields["num_hidden_layers"] - encoder
    yield Claim(
        id="layers-20-20",
        claim="20 + 20 layers: half of them build the global KV, half read the last source's",
        source=PAPER,
        gives=f"{encoder} layers before the last KV source, {decoder} from it on",
        verdict=judged((encoder, decoder) == (20, 20)),
        figures={"layers_before": encoder, "layers_from": decoder},
    )
    count = compute.weights()
    billions = {name: value / 10**9 for name, value in count._asdict().items()}
    rest = "counted from below: without norms, hyper-connections, index and Engram projections"
    claimed = {"active_prefill": 8, "active_decode": 16, "total": 552, "engram": 196}
    ok = all(0.93 <= billions[name] / figure <= 1.005 for name, figure in claimed.items())
    yield Claim(
        id="active-weights",
        claim="8B weights active in prefill, 16B in decode, of 552B (and 196B Engram)",
        source=PAPER,
        gives=f"{billions['active_prefill']:.1f}B, {billions['active_decode']:.1f}B, {billions['total']:.1f}B and "
        f"{billions['engram']:.1f}B",
        verdict=judged(ok, rest),
        correction=rest,
        figures=dict(count._asdict()),
    )
    yield Claim(
        id="window-128",
        claim="A window of 128 tokens",
        source=PAPER,
        gives=f"sliding_window {fields['sliding_window']}",
        verdict=judged(fields["sliding_window"] == 128),
        figures={"sliding_window": fields["sliding_window"]},
    )
    yield Claim(
        id="replay-128",
        claim="After a hit only the last 128 tokens are replayed",
        source=PAPER,
        gives="nothing: a config does not say what an engine replays",
        verdict="cannot tell",
        correction=(
            "in vLLM's support of V4.1 every hit replays 128 tokens, and hits of 128 or fewer are not taken: measure it"
        ),
    )
    yield decode_growth()


def decode_growth() -> Claim:
    short, long = compute.decode_flops(4_096), compute.decode_flops(MILLION)
    weighted = long.weighted(1, 2, 0.5) / short.weighted(1, 2, 0.5) - 1
    plain = long.weighted(1, 1, 1) / short.weighted(1, 1, 1) - 1
    correction = (
        f"it depends on what a FLOP counts: {weighted:+.0%} with FP8 = 1, BF16 attention = 2 and FP4 indexing = 1/2, "
        f"{plain:+.0%} unweighted"
    )
    return Claim(
        id="decode-flops",
        claim="+25% FLOPs a decoded token from 4K to 10^6 tokens",
        source=PAPER,
        gives=f"{weighted:+.0%} weighted by precision, {plain:+.0%} unweighted",
        verdict=judged(abs(weighted - 0.25) < 0.05, correction),
        correction=correction,
        figures={"growth_weighted": weighted, "growth_unweighted": plain},
    )


def behaviour() -> Iterator[Claim]:
    yield Claim(
        id="ttl-minutes",
        claim="Cached state lives for minutes",
        source=PAPER,
        gives="nothing: bytes say nothing of lifetimes",
        verdict="holds with correction",
        correction=(
            "the minutes are those of the sliding-window state in host RAM; global KV is kept 72 h or more by the "
            "paper, hours to days by the API documentation"
        ),
    )
    yield Claim(
        id="hit-frees-hbm",
        claim="A prefix hit saves HBM",
        source=PAPER,
        gives="a session holds F + m n bytes, hit or not",
        verdict="holds with correction",
        correction="a prefix hit removes compute; it frees HBM only where resident sessions share blocks",
    )
    for name in ("DeepSWE", "Terminal-Bench"):
        yield Claim(
            id=f"score-{name.lower()}",
            claim=f"The score on {name}",
            source=PAPER,
            gives="nothing: kvbench measures serving, not answers",
            verdict="out of scope",
        )


def price(traffic: Traffic | None) -> Claim:
    return Claim(
        id="k3-price",
        claim="Kimi K3: USD 3.00 / 0.30 cached / 15.00, so 96% hits cost USD 0.408 a million input tokens",
        source="price of Kimi K3 as Together lists it, not verified",
        gives=f"USD {_blended(Fraction(96, 100))}",
        verdict=judged(_blended(Fraction(96, 100)) == Decimal("0.408")),
        figures={"usd_per_mtok": str(_blended(Fraction(96, 100)))},
        on_trace=_price_on(traffic) if traffic else None,
    )


def _blended(hits: Fraction) -> Decimal:
    """USD a million input tokens, to a tenth of a cent."""
    miss, hit = Fraction(K3_USD_PER_MTOK["miss"]), Fraction(K3_USD_PER_MTOK["hit"])
    return rounded(miss * (1 - hits) + hit * hits, 3)


def _price_on(traffic: Traffic) -> OnTrace:
    if not traffic.sharing_known:
        return UNKNOWN_SHARING
    hits = traffic.hit_ceiling
    return OnTrace(
        gives=f"at most {float(hits):.1%} can hit: USD {_blended(hits)} at the least",
        verdict=at_least(hits * 100, "96"),
        figures={"hit_rate_ceiling": float(hits), "usd_per_mtok_at_least": str(_blended(hits))},
    )
