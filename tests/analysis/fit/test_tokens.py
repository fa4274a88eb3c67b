"""The token audit on counts that are made up: what is wrong is named, and what is honest is never accused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from kvbench.analysis.fit.token_line import fit_line, grain_of
from kvbench.analysis.fit.token_sent import Audit, Sent
from kvbench.analysis.fit.tokens import audited
from kvbench.model import Check, Counted, FitReport, Usage

SIZES = (64, 147, 338, 776, 1783, 4096)
KINDS = ("words", "code", "numbers", "scripts")
Count = Callable[[int], int]
EXACT: Count = lambda tokens: tokens  # noqa: E731


def made(
    seed: int,
    template: int = 17,
    *,
    reported: Count = EXACT,
    streamed: Count | None = None,
    output: Count = EXACT,
    overrun: int = 0,
    server: bool = True,
    local: Callable[[str, int], int] | None = None,
    counted: Callable[[str, int], int] = lambda kind, tokens: tokens,
    dialect: str = "vllm",
    reasoning: tuple[int | None, int | None] = (None, None),
) -> Audit:
    """What the probe would have sent. reported, output: from true tokens to usage; streamed: of the streams of series
    other. counted: what the tokenizer at hand takes a text for. local: the
    profile's, beside the server's. reasoning: (shown, reported) of the series think."""
    rng = random.Random(seed)
    sent: list[Sent] = []
    lengths = {(i, kind): size + rng.randrange(9) for i, size in enumerate(SIZES) for kind in KINDS}

    def add(series: str, text: str, role: str, counted: Counted, usage: Usage) -> None:
        total = None if usage.input_tokens is None else usage.input_tokens + (usage.output_tokens or 0)
        name = f"{series}/{text}.{role}{len(sent)}"
        sent.append(Sent(name, series, text, role, counted, usage, total, usage.input_tokens is not None, "length"))

    def prompt(series: str, number: int, kind: str, role: str = "once", count: Count = reported) -> None:
        tokens = lengths[number, kind]
        own = Counted(
            request="",
            text_kind=kind,
            text_tokens=counted(kind, tokens),
            prompt_tokens=tokens + template if server else None,
            local_tokens=None if local is None else local(kind, tokens),
            max_tokens=1,
            output_tokens=1,
            output_by="ids" if server else "text",
        )
        usage = Usage(input_tokens=count(tokens + template), output_tokens=1, cached_tokens=0)
        add(series, f"{kind}{number}", role, own, usage)

    for number, kind in lengths:
        prompt("size", number, kind)
    for number in range(len(SIZES)):
        prompt("again", number, KINDS[number % 4], "again")
    for number in (2, 3, 4):
        prompt("other", number, KINDS[number % 4], "stream", streamed or reported)
        prompt("other", number, KINDS[number % 4], "whole")
    for number, words in enumerate((8, 19, 45, 108, 256)):
        for which in range(2):
            came = words + rng.randrange(5)
            own = Counted(
                request="", max_tokens=3 * words + 32, output_tokens=came, repeated=True,
                output_by="ids" if server else "text",
            )  # fmt: skip
            add("repeat", f"{number}/{which}", "once", own, Usage(input_tokens=80, output_tokens=output(came) + 1))
    for cap in (4, 16, 64):
        own = Counted(request="", max_tokens=cap, output_tokens=cap, output_by="ids" if server else "text")
        add("cap", str(cap), "once", own, Usage(input_tokens=40, output_tokens=cap + overrun))
    shown, told = reasoning
    for number in range(3 if reasoning != (None, None) else 0):
        own = Counted(request="", max_tokens=512, output_tokens=50 + (shown or 0), reasoning_tokens=shown)
        usage = Usage(input_tokens=40, output_tokens=50 + (told or 0), reasoning_tokens=told)
        add("think", str(number), "once", own, usage)
    return Audit(sent, "the server's /tokenize" if server else "tokenizer x", server, None, dialect)


def check(report: FitReport, name: str) -> Check:
    (found,) = [c for c in report.checks if c.name == name]
    return found


def disputed(report: FitReport) -> set[str]:
    return {c.name for c in report.checks if c.verdict == "disputed"}


@pytest.mark.parametrize("template", [0, 17, 200])
@pytest.mark.parametrize("server", [True, False])
def test_no_constant_template_is_accused(template: int, server: bool) -> None:
    for seed in range(60):
        report = audited(made(seed, template, server=server))
        assert (report.verdict, disputed(report)) == ("confirmed", set())
        slope, added = report.estimates[:2]
        assert (slope.value, added.value) == (1.0, template)
        assert check(report, "input").detectable == pytest.approx(3 / 4030, rel=0.01)


def test_counts_off_by_one_are_not_accused() -> None:
    """Merges at the joins of text and template."""
    for seed in range(60):
        rng = random.Random(seed)
        report = audited(made(seed, reported=lambda n, rng=rng: n + rng.randrange(2), server=False))  # type: ignore[misc]
        assert disputed(report) == set()
        assert check(report, "input").verdict == "confirmed"


def more(share: float) -> Count:
    return lambda tokens: math.ceil(tokens * (1 + share))


@pytest.mark.parametrize("template", [0, 200])
@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize(
    ("name", "excess", "faults"),
    [
        ("input", 0.01, {"reported": more(0.01)}),
        ("input", 0.05, {"reported": more(0.05)}),
        ("output", 0.03, {"output": more(0.03)}),
        ("output", 0.30, {"output": more(0.30)}),
        ("input_grain", 31.5, {"reported": lambda tokens: -(-tokens // 64) * 64}),
        ("stream", 0.02, {"streamed": more(0.02)}),
        ("cap", 13, {"overrun": 13}),
    ],
)
def test_each_fault_is_named_with_its_size(
    name: str, excess: float, faults: dict[str, Any], server: bool, template: int
) -> None:
    for seed in range(30):
        report = audited(made(seed, template, server=server, **faults))
        assert report.verdict == "disputed"
        assert disputed(report) == {name}
        found = check(report, name).excess
        assert found == pytest.approx(excess, abs=0.006 if excess < 1 else 1e-9)


def test_what_is_as_small_as_can_be_seen_is_seen() -> None:
    for seed in range(30):
        least = check(audited(made(seed)), "input").detectable
        assert least is not None
        assert "input" in disputed(audited(made(seed, reported=more(least))))


def test_a_random_overcount_shows_as_one() -> None:
    """Three in ten requests have 5% more."""
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        count: Count = lambda n, rng=rng: n if rng.random() < 0.7 else math.ceil(1.05 * n)  # type: ignore[misc]  # noqa: E731
        report = audited(made(seed, reported=count, server=False))
        assert check(report, "input").verdict != "confirmed"
        found += "repeated" in disputed(report)
    assert found >= 30  # of six pairs, each differs with 2 * 0.3 * 0.7: nearly all runs


def test_a_wrong_tokenizer_is_not_taken_for_an_overcount() -> None:
    """It makes 6% fewer tokens of code and 10% fewer of other scripts than the model does."""
    shares = {"words": 1.0, "code": 0.94, "numbers": 1.0, "scripts": 0.9}
    for seed in range(40):
        report = audited(made(seed, server=False, counted=lambda kind, n: round(n * shares[kind])))
        assert disputed(report) == set()
        assert report.verdict == "cannot tell"
        assert "code 1.06" in check(report, "input").says


def test_a_server_that_inflates_its_tokenizer_too_is_found_by_the_profile_s() -> None:
    for seed in range(20):
        report = audited(made(seed, local=lambda kind, n: round(n / 1.05)))
        assert (disputed(report), report.verdict) == ({"tokenizer"}, "disputed")
        assert check(report, "tokenizer").excess == pytest.approx(0.05, abs=0.001)
        assert audited(made(seed, local=lambda kind, n: n)).verdict == "confirmed"
        other = audited(made(seed, local=lambda kind, n: round(n * 0.94) if kind == "code" else n))
        assert (disputed(other), other.verdict) == (set(), "cannot tell")


@pytest.mark.parametrize("server", [True, False])
def test_two_servers_with_templates_of_their_own_are_not_accused(server: bool) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        report = audited(made(seed, reported=lambda n, rng=rng: n + rng.choice((0, 20)), server=server))  # type: ignore[misc]
        assert disputed(report) <= {"stream"}
        assert report.verdict != "confirmed"


@pytest.mark.parametrize(
    ("reasoning", "dialect", "verdict"),
    [
        ((None, None), "vllm", "not reported"),
        ((300, 302), "deepseek", "confirmed"),
        ((300, 400), "deepseek", "disputed"),
        ((300, 400), "openai", "cannot tell"),  # what is shown may be a summary
        ((None, 400), "openai", "not verifiable"),
    ],
)
def test_reasoning(reasoning: tuple[int | None, int | None], dialect: str, verdict: str) -> None:
    report = audited(made(0, reasoning=reasoning, dialect=dialect))
    assert check(report, "reasoning").verdict == verdict
    assert report.verdict == {"disputed": "disputed", "not verifiable": "cannot tell"}.get(verdict, "confirmed")


def test_totals_and_cached_tokens_are_held_against_the_counts() -> None:
    audit = made(0)
    sent = list(audit.sent)
    sent[3] = sent[3]._replace(total=(sent[3].total or 0) + 100)
    assert disputed(audited(audit._replace(sent=sent))) == {"total"}
    sent[3] = audit.sent[3]._replace(total=(audit.sent[3].total or 0) - 1)
    assert disputed(audited(audit._replace(sent=sent))) == {"total"}
    sent = list(audit.sent)
    sent[-1] = sent[-1]._replace(total=(sent[-1].total or 0) + 1)
    assert check(audited(audit._replace(sent=sent)), "total").verdict == "cannot tell"
    sent = list(audit.sent)
    sent[5] = sent[5]._replace(usage=Usage(output_tokens=1, problem="cached tokens 9 above prompt_tokens 5"))
    assert disputed(audited(audit._replace(sent=sent))) == {"cached"}


def test_absent_usage_is_not_reported() -> None:
    audit = made(0)
    report = audited(audit._replace(sent=[s._replace(usage=Usage(), total=None, reported=False) for s in audit.sent]))
    assert report.verdict == "cannot tell"
    for name in ("usage", "input", "output", "stream", "cap", "total", "cached"):
        assert check(report, name).verdict == "not reported"


def test_the_bounds_are_those_of_a_linear_programme() -> None:
    """least and most slope, and intercept t, with t <= d - slope * x <= t + window for all."""
    rng = random.Random(5)
    for _ in range(20):
        window = rng.choice((2, 65))
        points = [(x, x + 11 + rng.randrange(-1, 1) * (window // 2)) for x in rng.sample(range(50, 4000), 12)]
        line = fit_line(points, window)
        assert line is not None
        rows, limits = [], []
        for x, y in points:
            rows += [[x, 1], [-x, -1]]
            limits += [y - x, window - (y - x)]
        found = [
            linprog([sign, 0], A_ub=np.array(rows), b_ub=np.array(limits), bounds=[(None, None)] * 2).x[0]
            for sign in (1, -1)
        ]
        assert (line.low - 1, line.high - 1) == pytest.approx(tuple(found), abs=1e-7)


def test_a_grain_is_one_only_where_chance_is_not() -> None:
    assert grain_of([(n, -(-n // 64) * 64) for n in range(101, 3000, 217)]) == 64
    assert grain_of([(n, 2 * n) for n in range(100, 110)]) == 1  # 2 in common, ten times: one in 500
    assert grain_of([(64 * n, 64 * n + 64) for n in range(1, 20)]) == 1  # the exact ones have it too
