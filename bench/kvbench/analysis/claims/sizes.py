"""Claims about bytes: a token's, a session's, and their ratios between models."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from kvbench.analysis.claims import compute
from kvbench.analysis.claims.claim import Claim, OnTrace, agrees, at_least, judged, one_in, rounded, times
from kvbench.analysis.claims.traffic import Traffic
from kvbench.analysis.models import ModelBytes, bytes_model
from kvbench.analysis.models.layouts import allocated
from kvbench.analysis.models.numbers import plain, text

PAPER = "arXiv 2609.19969 (DeepSeek-V4.1-Flash), read through public notes"
KIMI = "published figures of Kimi K3, read through public notes"
MILLION = 1_000_000
UNKNOWN_SHARING = OnTrace(gives="the trace does not say what its prompts share", verdict="cannot tell")
CONTEXTS = (4_096, 16_384, 131_072)

GENERATIONS = (
    ("v1", "deepseek-v1", "DeepSeek-V1", "389120"),
    ("v3.2", "deepseek-v3.2", "DeepSeek-V3.2", "48068"),
    ("v4", "deepseek-v4-flash", "DeepSeek-V4-Flash", "3514"),
    ("v4.1", "deepseek-v4.1-flash", "DeepSeek-V4.1-Flash", "890"),
)
STEPS = (("v1", "v3.2", "8.1"), ("v3.2", "v4", "13.7"), ("v4", "v4.1", "3.9"), ("v1", "v4.1", "437"))


def deepseek(traffic: Traffic | None) -> Iterator[Claim]:
    models = {key: bytes_model(name) for key, name, _, _ in GENERATIONS}
    titles = {key: title for key, _, title, _ in GENERATIONS}
    for key, _, title, claimed in GENERATIONS:
        m = models[key].bytes_per_token
        yield Claim(
            id=f"{key}-bytes-per-token",
            claim=f"{title}: {int(claimed):,} B/token",
            source=PAPER,
            gives=f"{text(m)} B/token",
            verdict=judged(agrees(m, claimed)),
            figures={"bytes_per_token": plain(m)},
        )
    for a, b, claimed in STEPS:
        ratio = models[a].bytes_per_token / models[b].bytes_per_token
        yield Claim(
            id=f"{a}-to-{b}",
            claim=f"{titles[a]} to {titles[b]}: {claimed}x fewer bytes a token",
            source=PAPER,
            gives=times(ratio),
            verdict=judged(agrees(ratio, claimed)),
            figures={"ratio": plain(ratio)},
            on_trace=_step_on(traffic, models[a], models[b]) if traffic else None,
        )
    yield _session(models["v1"], "v1", titles["v1"], "389", 9, None)
    f = models["v4.1"].bytes_per_session
    correction = f"a session's windows and compressor tails, {text(f)} B, come on top"
    yield _session(models["v4.1"], "v4.1", titles["v4.1"], "890", 6, correction, traffic)
    yield _hbm(models["v4"], models["v4.1"], traffic)
    yield _disk(traffic)


def _step_on(traffic: Traffic, a: ModelBytes, b: ModelBytes) -> OnTrace:
    ratio = traffic.total(a) / traffic.total(b)
    return OnTrace(gives=f"{times(ratio)} with what a session takes besides", figures={"ratio": plain(ratio)})


def _session(
    model: ModelBytes,
    key: str,
    title: str,
    claimed: str,
    power: int,
    correction: str | None,
    traffic: Traffic | None = None,
) -> Claim:
    growing = model.bytes_per_token * MILLION
    unit = {6: "MB", 9: "GB"}[power]
    whole = model.at(MILLION)
    on_trace = None
    if traffic is not None:
        longest = max(traffic.contexts)
        held = model.at(longest)
        on_trace = OnTrace(
            gives=f"{rounded(held / 10**power, 1)} {unit} for the longest context, {longest:,} tokens",
            figures={"longest_context_tokens": longest, "session_bytes": plain(held)},
        )
    return Claim(
        id=f"{key}-session-at-1m",
        claim=f"{title}: {claimed} {unit} at 10^6 tokens",
        source=PAPER,
        gives=f"{rounded(whole / 10**power, 2)} {unit}",
        verdict=judged(agrees(growing / 10**power, claimed), correction),
        correction=correction,
        figures={"session_bytes": plain(whole), "growing_bytes": plain(growing)},
        on_trace=on_trace,
    )


def _hbm(v4: ModelBytes, v41: ModelBytes, traffic: Traffic | None) -> Claim:
    ratio = v4.bytes_per_token / v41.bytes_per_token
    at = {n: v4.at(n) / v41.at(n) for n in CONTEXTS}
    by_layout = _layout_ratios(v4, v41)
    with_f = ", ".join(f"{times(value)} at {n // 1024}K" for n, value in at.items())
    layouts = ", ".join(f"{times(value)} ({name})" for name, value in by_layout.items())
    correction = f"that is m alone; with F it is {with_f} tokens; by vLLM's pages {layouts}"
    return Claim(
        id="hbm-quarter",
        claim="DeepSeek-V4.1-Flash needs 1/4 of V4-Flash's HBM (3.95x)",
        source=PAPER,
        gives=f"{times(ratio, 2)} by bytes a token",
        verdict=judged(agrees(ratio, "3.95"), correction),
        correction=correction,
        figures={
            "ratio": plain(ratio),
            **{f"ratio_at_{n}": plain(value) for n, value in at.items()},
            **{f"ratio_by_pages_{name.lower()}": plain(value) for name, value in by_layout.items()},
        },
        on_trace=_hbm_on(traffic, v4, v41) if traffic else None,
    )


def _layout_ratios(v4: ModelBytes, v41: ModelBytes) -> dict[str, Fraction]:
    """Global KV by vLLM's pages, of V4-Flash to V4.1's Hopper and nvfp4 layouts."""
    pages = {layout.layout: layout.bytes_per_token for layout in allocated(v41)[0]}
    own = allocated(v4)[0][0].bytes_per_token
    return {
        "Hopper": own / pages["Hopper: fp8_ds_mla, block 128"],
        "nvfp4": own / pages["SM100: nvfp4, block 128, pages not padded"],
    }


def _hbm_on(traffic: Traffic, v4: ModelBytes, v41: ModelBytes) -> OnTrace:
    ratio = traffic.total(v4) / traffic.total(v41)
    mean = Fraction(sum(traffic.contexts), traffic.requests)
    return OnTrace(
        gives=f"{one_in(ratio)}, at a mean context of {round(mean):,} tokens",
        verdict=at_least(ratio, "4"),
        figures={"ratio": plain(ratio), "mean_context_tokens": plain(mean)},
    )


def _disk(traffic: Traffic | None) -> Claim:
    eighth = compute.new_tokens_for(8)
    at = {n: compute.disk_ratio(Fraction(n)) for n in (1_000, 4_000)}
    correction = (
        f"it depends on n, the new tokens a request: 1/8 at {round(eighth):,}, {one_in(at[1_000])} at 1,000, "
        f"{one_in(at[4_000])} at 4,000 (two window snapshots a request for V4-Flash, none for V4.1)"
    )
    return Claim(
        id="ssd-eighth",
        claim="DeepSeek-V4.1-Flash needs 1/8 of V4-Flash's SSD",
        source=PAPER,
        gives=f"1/8 at {round(eighth):,} new tokens a request, no other number",
        verdict=judged(eighth > 0, correction),
        correction=correction,
        figures={"new_tokens_at_1_8": float(eighth), **{f"ratio_at_{n}": plain(value) for n, value in at.items()}},
        on_trace=_disk_on(traffic) if traffic else None,
    )


def _disk_on(traffic: Traffic) -> OnTrace:
    if not traffic.sharing_known:
        return UNKNOWN_SHARING
    new = traffic.new_per_request
    if not new:
        return OnTrace(gives="no request has a new token", verdict="cannot tell")
    ratio = compute.disk_ratio(new)
    return OnTrace(
        gives=f"{one_in(ratio)}, at {round(new):,} new tokens a request",
        verdict=at_least(ratio, "8"),
        figures={"ratio": plain(ratio), "new_tokens_per_request": plain(new)},
    )


def kimi() -> Iterator[Claim]:
    model = bytes_model("kimi-k3")
    m, f = model.bytes_per_token, model.bytes_per_session
    wide = bytes_model("kimi-k3", "bf16").bytes_per_token
    dtype = f"with an fp8 cache; in bf16, the dtype of its config, {text(wide)} B"
    yield Claim(
        id="k3-bytes-per-token",
        claim="Kimi K3: 13.5 KiB a token",
        source=KIMI,
        gives=f"{text(m)} B/token = {rounded(m / 1024, 1)} KiB",
        verdict=judged(agrees(m / 1024, "13.5"), dtype),
        correction=dtype,
        figures={"bytes_per_token": plain(m), "bytes_per_token_bf16": plain(wide)},
    )
    state = sum(part.per_session for part in model.parts if part.label == "KDA state")
    left_out = (
        f"it leaves out {rounded(Fraction(state) / 10**6, 0)} MB of KDA state a session, and "
        f"{rounded((f - state) / 10**6, 0)} MB of convolution state"
    )
    growing = m * MILLION
    yield Claim(
        id="k3-session-at-1m",
        claim="Kimi K3: 13.82 GB at 10^6 tokens",
        source=KIMI,
        gives=f"{rounded(model.at(MILLION) / 10**9, 2)} GB",
        verdict=judged(agrees(growing / 10**9, "13.82"), left_out),
        correction=left_out,
        figures={"session_bytes": plain(model.at(MILLION)), "growing_bytes": plain(growing), "state_bytes": plain(f)},
    )
    yield Claim(
        id="k3-1000-sessions",
        claim="Kimi K3: 1,000 sessions of 10^6 tokens take about 14 TB",
        source=KIMI,
        gives=f"{rounded(model.at(MILLION) / 10**9, 2)} TB, nothing shared",
        verdict=judged(agrees(growing / 10**9, "14"), left_out),
        correction=f"{left_out}: {rounded(f / 10**9, 2)} TB of 1,000 sessions",
        figures={"bytes": plain(model.at(MILLION) * 1000), "growing_bytes": plain(growing * 1000)},
    )
