"""Lifetimes from ages at which prompts were found or lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from tests.analysis.fit.capacity_runs import Lapsing, Mixed, Serve, ttl_probe

from kvbench.analysis.fit.ttl import fit_ttl
from kvbench.model import Clock, FitReport, Record, RunInfo, Usage
from kvbench.replay.probes.ttl import TtlDesign
from kvbench.runs.reader import Run

S = 1_000_000_000


def fit(rows: list[tuple[float, bool]], template_tokens: int = 0) -> FitReport:
    """rows: (age in s, found); a request takes 10 ms. template_tokens: what all prompts begin with, always there."""
    records, at = [], 0
    for i, (age, hit) in enumerate(rows):
        for role, cached in (("prime", 0), ("read", 992 if hit else template_tokens)):
            sent = at if role == "prime" else at + S // 100 + round(age * S)
            clock = Clock(scheduled=sent, due=sent, sent=sent, first_token=sent + 5, end=sent + S // 100)
            usage = Usage(input_tokens=1001, cached_tokens=cached, output_tokens=1)
            name = f"age/{i}"
            records.append(Record(request_id=f"{name}.{role}", session_id=name, turn=0, clock=clock, usage=usage))
    info = RunInfo(kvbench_version="0", run_id="r", name="t", status="done", started_at="")
    return fit_ttl(Run(info=info, records=records, events=[], warnings=[], path=Path("r")))


def test_a_step_lies_between_the_oldest_found_and_the_youngest_lost() -> None:
    found = fit([(10, True), (250, True), (299, True), (301, False), (900, False)]).named("ttl_s")
    assert found is not None
    # both requests' own 10 ms are not known from outside
    assert found.low == 299
    assert found.high == 301.02


def test_nothing_lost_is_a_lower_bound_and_nothing_found_a_refusal() -> None:
    lived = fit([(10, True), (3600, True)]).named("ttl_s")
    assert lived is not None
    assert (lived.value, lived.low, lived.high) == (None, 3600, None)
    assert not fit([(10, False), (20, False)]).estimates


def test_a_chat_template_that_is_always_there_is_no_prompt_found() -> None:
    """llama.cpp: 9 tokens are in some slot, the prompt in none."""
    assert not fit([(10, False), (20, False)], template_tokens=9).estimates
    found = fit([(10, True), (20, False)], template_tokens=9).named("ttl_s")
    assert found is not None
    assert found.high == 20.02


def test_lapses_and_a_step_are_told_apart() -> None:
    """300 s, and one in ten lost at any age: the intervals hold both."""
    held = {"ttl_s": 0, "lapse_share": 0}
    for seed in range(2):
        rng = random.Random(seed)
        ages = [300 * 8 ** rng.uniform(-1, 0.6) for _ in range(80)]
        report = fit([(age, age < 300 and rng.random() > 0.1) for age in ages])
        for name, truth in (("ttl_s", 300), ("lapse_share", 0.1)):
            found = report.named(name)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low * 0.97 <= truth <= found.high * 1.03
            if name == "ttl_s":
                assert found.value is not None
                assert 250 < found.value < 350
    assert min(held.values()) >= 1


def test_too_few_for_a_curve_are_refused() -> None:
    report = fit([(10, True), (20, False), (30, True), (40, False)])
    assert not report.estimates
    assert "too few" in report.refusals[0].reason


def test_a_step_with_lapses_has_an_interval_that_a_count_gives() -> None:
    """Of 20 younger prompts 2 lapsed, all 10 older ones were lost. Were the next one a lapse too, 3 of 21, the
    likelihood would fall from 18 ln(18/20) + 2 ln(2/20) = -6.50 to 18 ln(18/21) + 3 ln(3/21) = -8.61: twice that is
    4.2, more than 2.71, so the life ends before it."""
    young = [(10.0 * i, i not in (3, 7)) for i in range(1, 21)]
    found = fit([*young, *((200 + 10.0 * i, False) for i in range(1, 11))])
    ttl, lapses = found.named("ttl_s"), found.named("lapse_share")
    assert ttl is not None
    assert lapses is not None
    assert "a step" in ttl.method
    assert ttl.low == 200
    assert ttl.high is not None
    assert abs(ttl.high - 210.02) < 1e-6
    assert lapses.value == 0.1
    assert lapses.n == 20
    # 5% of samples would have as few where the share is high, and as many where it is low
    assert lapses.low is not None
    assert lapses.high is not None
    assert abs(sum(math.comb(20, k) * lapses.high**k * (1 - lapses.high) ** (20 - k) for k in range(3)) - 0.05) < 1e-9
    assert abs(sum(math.comb(20, k) * lapses.low**k * (1 - lapses.low) ** (20 - k) for k in range(2)) - 0.95) < 1e-9


def outcomes(serve: Callable[[float, int], Serve]) -> list[bool | None]:
    """Of whole probes, for lives of 20 to 400 s: whether the interval of 90% holds the truth; None: refused."""
    found = []
    for seed in range(40):
        ttl_s = random.Random(seed).uniform(20.0, 400.0)
        run = ttl_probe(serve(ttl_s, seed), TtlDesign(max_age_s=1_000.0, min_age_s=10.0))
        told = fit_ttl(run).named("ttl_s")
        if told is None:
            found.append(None)
            continue
        assert told.low is not None
        found.append(told.low <= ttl_s <= (math.inf if told.high is None else told.high))
    return found


def test_replicas_taken_by_chance_are_not_taken_for_a_shorter_life() -> None:
    """Half of the prompts are asked for at the other door: what a run of luck in the first pass said of a life went
    by the ages that it had drawn all others to."""
    found = outcomes(lambda ttl_s, seed: Mixed(ttl_s, 32, seed).serve)
    assert found.count(False) <= 1
    assert found.count(None) >= 36


def test_a_life_beside_lapses_is_in_its_interval() -> None:
    """Were it so in nine cases of ten, 8 or more of 40 would miss one time in a hundred and fifty."""
    found = outcomes(lambda ttl_s, seed: Lapsing(ttl_s, 32, 0.1, seed).serve)
    assert found.count(None) <= 2
    assert found.count(False) <= 7
