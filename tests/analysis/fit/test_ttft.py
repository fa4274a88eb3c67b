"""The TTFT model on times made from known terms."""

from __future__ import annotations

import random

import pytest
from tests.analysis.fit.latency_runs import Sent, formula, run_of

from kvbench.analysis.fit.given import Given
from kvbench.analysis.fit.ttft import fit_latency
from kvbench.model import FitReport, Trust

T0, A, B = 0.037, 50.5e-6, 1.34e-10
"""Measured on a real server: DeepSeek-V4.1 on eight H100, 1K to 260K tokens."""
TRUTH = {"ttft_base_s": T0, "prefill_s_per_token": A, "attention_s_per_token2": B}


def cells(rng: random.Random, count: int = 60, hot: bool = True) -> list[tuple[str, int, int]]:
    found = []
    for cell in range(count):
        uncached = round(1000 * 260 ** rng.random())
        cached = round(1000 * 100 ** rng.random()) if hot and cell % 4 else 0
        found.append((f"cell{cell}", uncached, cached))
    return found


def measured(seed: int, noise: float, hot: bool = True, given: Given | None = None, **more: float | int) -> FitReport:
    rng = random.Random(seed)
    terms = {"base": T0, "token": A, "square": B, **more}
    sent = [
        Sent(name, u, c, formula(u, c, **terms) * rng.lognormvariate(0, noise))  # type: ignore[arg-type]
        for name, u, c in cells(rng, hot=hot)
        for _ in range(5)
    ]
    return fit_latency(run_of(sent), given or Given())


def value(report: FitReport, name: str) -> float:
    found = report.named(name)
    assert found is not None, report.refusals
    assert found.value is not None
    return found.value


def holds(report: FitReport, name: str, truth: float) -> bool:
    found = report.named(name)
    assert found is not None, report.refusals
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


def test_the_terms_are_found_at_five_percent_noise() -> None:
    inside = 0
    for seed in range(8):
        report = measured(seed, 0.05)
        assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=0.03)
        assert value(report, "attention_s_per_token2") == pytest.approx(B, rel=0.08)
        inside += sum(holds(report, name, truth) for name, truth in TRUTH.items())
        assert {e.name for e in report.estimates} == {*TRUTH, "prefill_s_per_cached_token"}
    assert inside >= 17  # of 24 intervals of 90%


def test_without_noise_the_terms_are_exact() -> None:
    report = measured(1, 0.0)
    for name, truth in TRUTH.items():
        assert value(report, name) == pytest.approx(truth, rel=1e-3)
    cached = report.named("prefill_s_per_cached_token")
    assert cached is not None
    assert cached.low == 0


@pytest.mark.parametrize("known", [8192, None])
def test_the_time_of_a_step_and_its_size_are_found(known: int | None) -> None:
    report = measured(2, 0.02, given=Given(chunk_tokens=known), chunk=8192, chunk_s=0.4)
    assert value(report, "chunk_tokens") == 8192
    assert value(report, "prefill_s_per_chunk") == pytest.approx(0.4, rel=0.1)
    assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=0.05)


@pytest.mark.parametrize("known", [2048, None])
def test_a_size_of_a_step_that_the_lengths_cannot_tell_is_refused(known: int | None) -> None:
    """Steps of 2,048 tokens cut these lengths into 1, 1, 1, 2 and 4; of 1,024 into 1, 1, 1, 3 and 7: the same steps at
    half the time each, so that 0.025 s a step and 0.045 s at the start explain them as 0.05 s and 0.02 s do."""
    rng, sent = random.Random(5), []
    for _ in range(6):
        for cached in (0, 512, 2_048, 8_192):
            for uncached in (64, 300, 1_000, 3_000, 7_000):
                took = formula(uncached, cached, base=0.02, token=1e-5, square=1e-10, chunk=2048, chunk_s=0.05)
                noisy = took * rng.lognormvariate(0, 0.02)
                sent.append(Sent(f"{cached}-{uncached}", uncached, cached, noisy))
    report = fit_latency(run_of(sent), Given(chunk_tokens=known))
    refused = {r.name for r in report.refusals if "explain these requests alike" in r.reason}
    if known:
        assert not refused
        assert value(report, "prefill_s_per_chunk") == pytest.approx(0.05, rel=0.1)
        return
    assert refused >= {"chunk_tokens", "prefill_s_per_chunk", "ttft_base_s"}
    assert not refused & {e.name for e in report.estimates}


def test_a_step_that_takes_no_time_is_not_found() -> None:
    report = measured(3, 0.05, given=Given(chunk_tokens=8192))
    assert report.named("prefill_s_per_chunk") is None
    assert any("steps of 8,192 tokens take no time" in note for note in report.notes)


def test_a_replay_counts_as_uncached_where_it_is_known() -> None:
    """128 of 1,000 uncached tokens: left out, the base would take them in."""
    report = measured(4, 0.0, given=Given(replay_tokens=128), replay=128)
    for name, truth in TRUTH.items():
        assert value(report, name) == pytest.approx(truth, rel=1e-3)
    assert any("128 tokens" in note for note in report.notes)
    without = value(measured(4, 0.0, replay=128), "ttft_base_s")
    assert abs(without / T0 - 1) > 0.05


def test_the_least_time_of_an_answer_is_found() -> None:
    report = measured(5, 0.03, floor=0.4)
    assert value(report, "ttft_floor_s") == pytest.approx(0.4, rel=0.02)
    assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=0.05)


# ------------------------------------------------------------------------------------------------ tiers


M, BANDWIDTH, TIER_S = 48_068, 20e9, 0.05
"""DeepSeek-V3.2's bytes a token, from a host whose memory gives 20 GB/s."""


def tiered(seed: int, noise: float, *, told: bool, left: float = 1.0, repeats: int = 4) -> list[Sent]:
    """Each hot cell from HBM and, as `tier1cell`, from below it; left: the share that had really gone down."""
    rng = random.Random(seed)
    sent = []
    for name, u, c in cells(rng):
        base = formula(u, c, base=T0, token=A, square=B)
        for _ in range(repeats):
            sent.append(Sent(name, u, c, base * rng.lognormvariate(0, noise), restored=0 if told else None))
            if c:
                gone = rng.random() < left
                slow = (base + gone * (TIER_S + c * M / BANDWIDTH)) * rng.lognormvariate(0, noise)
                sent.append(Sent(f"tier1{name}", u, c, slow, restored=c * gone if told else None))
    return sent


@pytest.mark.parametrize("told", [True, False])
def test_bytes_a_token_follow_from_a_tiers_bandwidth(told: bool) -> None:
    report = fit_latency(run_of(tiered(3, 0.03, told=told)), Given(tier_bytes_per_s=BANDWIDTH))
    assert value(report, "bytes_per_token_through_tier") == pytest.approx(M, rel=0.1)
    assert holds(report, "bytes_per_token_through_tier", M)
    assert holds(report, "tier_latency_s", TIER_S)
    assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=0.03)


def test_without_a_bandwidth_there_is_a_time_and_no_size() -> None:
    report = fit_latency(run_of(tiered(3, 0.03, told=True)))
    assert value(report, "tier_s_per_token") == pytest.approx(M / BANDWIDTH, rel=0.1)
    assert report.named("bytes_per_token_through_tier") is None


def test_prompts_that_had_not_left_are_noticed() -> None:
    """The server's word counts; without it, a tier is refused that a third of its prompts did not come from."""
    told = fit_latency(run_of(tiered(2, 0.03, told=True, left=0.6)))
    assert value(told, "tier_s_per_token") == pytest.approx(M / BANDWIDTH, rel=0.08)
    silent = fit_latency(run_of(tiered(2, 0.03, told=False, left=0.6)))
    assert silent.named("tier_s_per_token") is None
    assert any(r.name == "tier_s_per_token" and "left HBM" in r.reason for r in silent.refusals)


def replayed(seed: int, noise: float, *, tier_s: float, share: float) -> list[Sent]:
    """A replay's requests, of which a share of the hits comes from below HBM."""
    rng = random.Random(seed)
    sent = []
    for i in range(240):
        u = round(500 * 30 ** rng.random())
        c = 0 if i % 4 == 0 else round(4000 * 30 ** rng.random())
        slow = c > 0 and rng.random() < share
        ttft = formula(u, c, base=T0, token=A, square=B) + slow * (tier_s + c * M / BANDWIDTH)
        sent.append(Sent(f"s{i % 30}", u, c, ttft * rng.lognormvariate(0, noise)))
    return sent


def test_two_kinds_of_hits_are_told_apart_by_their_time() -> None:
    run = run_of(replayed(1, 0.01, tier_s=0.5, share=0.4), probe=False, metrics=(0.0, 1e6))
    report = fit_latency(run, Given(tier_bytes_per_s=BANDWIDTH))
    assert value(report, "bytes_per_token_through_tier") == pytest.approx(M, rel=0.05)
    assert any("slower tier" in note for note in report.notes)


def test_kinds_that_look_alike_are_refused() -> None:
    run = run_of(replayed(2, 0.05, tier_s=0.0, share=0.4), probe=False, metrics=(0.0, 1e6))
    report = fit_latency(run)
    assert report.named("tier_s_per_token") is None
    assert any(r.name == "tier_s_per_token" and "neither it nor their time" in r.reason for r in report.refusals)


def test_hits_of_one_kind_are_not_made_two() -> None:
    for seed in range(2):
        report = fit_latency(run_of(replayed(seed, 0.05, tier_s=0.0, share=0.0), probe=False))
        assert report.named("tier_s_per_token") is None
        assert not any("slower tier" in note for note in report.notes)


def test_what_was_sent_before_a_read_counts_where_it_surely_came_from_hbm() -> None:
    """Hits beside 16 uncached tokens: used where the server counts nothing from below HBM, and else not, as they may
    take a second as from a tier."""
    rng = random.Random(1)
    reads = [Sent(name, u, c, formula(u, c, base=T0, token=A, square=B)) for name, u, c in cells(rng)]
    hot = [(name, c) for name, _, c in cells(rng) if c]
    unsure = fit_latency(run_of([*reads, *(Sent(name, 16, c, 1.0, role="again") for name, c in hot)]))
    assert value(unsure, "ttft_base_s") == pytest.approx(T0, rel=1e-3)
    quick = [Sent(name, 16, c, formula(16, c, base=T0, token=A, square=B), role="again") for name, c in hot]
    counted = fit_latency(run_of([*reads, *quick], metrics=(0.0, 0.0)))
    assert [e.n for e in unsure.estimates if e.name == "prefill_s_per_token"] == [len(reads)]
    assert [e.n for e in counted.estimates if e.name == "prefill_s_per_token"] == [len(reads) + len(quick)]
    cold = [Sent(name, c, 0, formula(c, 0, base=T0, token=A, square=B), role="again") for name, _, c in cells(rng) if c]
    more = fit_latency(run_of([*reads, *cold])).named("prefill_s_per_token")
    assert more is not None
    assert more.n == len(reads) + len(cold)


# ------------------------------------------------------------------------------------------------ ordinary runs


def agent_sessions(seed: int, noise: float, cached_s: float) -> list[Sent]:
    """Turns that bring a tenth of what went before, all of which is hit: new and cached rise together."""
    rng = random.Random(seed)
    sent = []
    for session in range(24):
        context = 2000
        while context < 40_000:
            new = round(context * rng.uniform(0.0997, 0.1003))
            ttft = formula(new, context, base=T0, token=A, square=0) + cached_s * context
            sent.append(Sent(f"s{session}", new, context, ttft * rng.lognormvariate(0, noise)))
            context += new
    return sent


@pytest.mark.parametrize("cached_s", [0.0, 20e-6])
def test_terms_that_an_agents_turns_cannot_tell_are_refused(cached_s: float) -> None:
    """20 us a cached token look like 200 us more a new one."""
    report = fit_latency(run_of(agent_sessions(1, 0.05, cached_s), probe=False))
    refused = {r.name: r for r in report.refusals}
    assert {"prefill_s_per_token", "prefill_s_per_cached_token"} <= set(refused)
    assert "rises and falls" in refused["prefill_s_per_token"].reason
    assert "kvbench probe latency" in refused["prefill_s_per_token"].experiment
    assert value(report, "ttft_base_s") == pytest.approx(T0, rel=0.1)


def test_only_requests_that_nothing_ran_beside_count() -> None:
    """Every third session's requests are doubled by one sent meanwhile, which triples their time."""
    rng = random.Random(1)
    sent, clock = [], 0.0
    for i in range(300):
        u, c = rng.randint(200, 20_000), rng.choice([0, 10_000, 40_000])
        ttft = formula(u, c, base=T0, token=A, square=1e-9)
        if i % 3:
            sent.append(Sent(f"s{i % 20}", u, c, ttft, at_s=clock))
            clock += ttft + 0.01
        else:
            sent.append(Sent(f"s{i % 20}", u, c, 3 * ttft, at_s=clock))
            sent.append(Sent(f"t{i % 20}", u, c, 3 * ttft, at_s=clock + ttft / 2))
            clock += 5 * ttft
    report = fit_latency(run_of(sent, probe=False))
    assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=1e-3)
    assert any(note.startswith("200 requests are left out") for note in report.notes)


# ------------------------------------------------------------------------------------------------ refusals


def test_what_cannot_be_told_is_refused() -> None:
    cold = measured(1, 0.05, hot=False)
    assert [r.name for r in cold.refusals] == ["prefill_s_per_cached_token"]
    one_length = run_of([Sent("cell0", 1000, 0, 0.1) for _ in range(40)])
    assert "no slope" in fit_latency(one_length).refusals[0].reason
    few = run_of([Sent("cell0", 1000 * i, 0, 0.1) for i in range(1, 10)])
    assert "too few" in fit_latency(few).refusals[0].reason
    trust = Trust(verdict="degraded", reasons=("x",))
    degraded = run_of([Sent("cell0", 1000 * i, 0, 0.1 * i) for i in range(1, 60)], trust=trust)
    assert "own error" in fit_latency(degraded).refusals[0].reason
    rng = random.Random(3)
    queue = [Sent(f"cell{i % 30}", u := rng.randint(200, 50_000), 0, A * u * rng.choice([1, 3, 9])) for i in range(120)]
    loaded = fit_latency(run_of(queue))
    assert not loaded.estimates
    assert loaded.misfit is not None
    assert loaded.misfit.share > loaded.misfit.limit


def test_arrivals_that_are_dated_badly_are_left_out_one_by_one() -> None:
    """A third of the requests is read half a second late, and says so."""
    rng = random.Random(1)
    sent = []
    for name, u, c in cells(rng):
        for repeat in range(3):
            late = 0.5 * (repeat == 0)
            ttft = formula(u, c, base=T0, token=A, square=B) + late
            sent.append(Sent(name, u, c, ttft, bound_s=0.5 * late + 0.0005))
    degraded = Trust(verdict="degraded", reasons=("arrivals may be dated up to 250 ms late",))
    report = fit_latency(run_of(sent, trust=degraded))
    assert value(report, "ttft_base_s") == pytest.approx(T0, rel=0.02)
    assert value(report, "prefill_s_per_token") == pytest.approx(A, rel=0.02)
    assert any("left out: their arrival" in note for note in report.notes)
    mostly = fit_latency(run_of([one._replace(bound_s=one.ttft_s) for one in sent], trust=degraded))
    assert "own error is too large" in mostly.refusals[0].reason


def test_a_run_that_was_never_alone_says_so() -> None:
    together = [Sent(f"s{i}", 1000 * (1 + i % 9), 0, 0.5, at_s=0.1 * i) for i in range(50)]
    report = fit_latency(run_of(together, probe=False))
    assert not report.estimates
    assert "in flight beside them" in report.refusals[0].reason
    assert "--max-in-flight 1" in report.refusals[0].experiment
