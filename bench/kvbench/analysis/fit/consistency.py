"""How often an answer from the cache differs from the one that was computed, by how much its log probabilities do, and
how far answers differ anyway."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from kvbench.analysis.fit.steps import failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Record, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe consistency"
Z90 = 1.645
BOOTSTRAPS = 200

Given = dict[str, tuple[Record, bool]]
"""The answers to one prompt by role, and whether most of the prompt was cached."""


def fit_consistency(run: Run) -> FitReport:
    """cached_answers_differ and computed_answers_differ, shares of prompts with their 90% intervals (Wilson); and,
    where log probabilities are given, cached_logprob_off_median and _largest, computed_logprob_off_... the same, in
    nats: absolute differences at the tokens before the first that is another."""
    name = str(run.path)
    by: dict[str, Given] = {}
    for s in steps(run):
        if s.role != "trial":
            by.setdefault(s.number, {})[s.role] = (s.record, s.mostly_cached)
    whole = [r for r in by.values() if {"cold", "cached", "control"} <= r.keys()]
    cached = [r for r in whole if r["cached"][1] and not r["cold"][1]]
    why = failure(run)
    if why is None and not cached:
        nothing = stop_reason(run) or "no prompt was sent three times"
        why = nothing if not whole else "no second answer came from the cache, as far as it is reported"
    if why is not None:
        refusal = Refusal(name="cached_answers_differ", reason=why, experiment=f"{PROBE} again")
        return FitReport(runs=(name,), refusals=(refusal,))
    computed = [r for r in cached if not r["control"][1]]
    estimates = [_differing("cached", cached)]
    notes: list[str] = []
    if computed:
        estimates.append(_differing("computed", computed))
        if (estimates[0].low or 0.0) > (estimates[1].high or 0.0):
            notes.append("answers from the cache differ more often than answers differ by themselves")
    else:
        notes.append("the endpoint has no salt, so how far computed answers differ by themselves is not known")
    if any(r["cold"][0].output_logprobs is None for r in cached):
        reason = "not reported: the endpoint gives no log probabilities, so only the texts are compared"
        refusal = Refusal(
            name="cached_logprob_off_largest", reason=reason, experiment="an endpoint that gives logprobs"
        )
        return FitReport(runs=(name,), estimates=tuple(estimates), refusals=(refusal,), notes=tuple(notes))
    for group, answers in (("cached", cached), ("computed", computed)):
        estimates += _differences(group, answers)
    largest = {e.name: e.value or 0.0 for e in estimates if e.name.endswith("_largest")}
    if computed and largest["cached_logprob_off_largest"] > largest["computed_logprob_off_largest"]:
        notes.append("log probabilities differ more from the cache than they do when computed twice")
    return FitReport(runs=(name,), estimates=tuple(estimates), notes=tuple(notes))


def logprob_differences(one: Record, other: Record) -> list[float]:
    """Absolute differences of log probability, nats, of the tokens before the first that is not the same."""
    found = []
    for (token, number), (again, also) in zip(one.output_logprobs or (), other.output_logprobs or (), strict=False):
        if token != again:
            break
        found.append(abs(number - also))
    return found


_AGAINST = {"cached": "cached", "computed": "control"}
_WORDS = {"cached": "the same prompt cold and cached, greedy", "computed": "the same prompt cold twice, greedy"}


def _text(record: Record) -> tuple[str | None, str | None]:
    return record.reasoning_text, record.output_text


def _differing(group: str, answers: Sequence[Given]) -> Estimate:
    """Wilson's interval at 90%."""
    n = len(answers)
    hits = sum(1 for r in answers if _text(r[_AGAINST[group]][0]) != _text(r["cold"][0]))
    p, z2 = hits / n, Z90**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z90 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Estimate(
        name=f"{group}_answers_differ",
        value=p,
        low=0.0 if not hits else middle - half,
        high=1.0 if hits == n else middle + half,
        unit="share of prompts",
        method=_WORDS[group],
        n=n,
    )


def _differences(group: str, answers: Sequence[Given]) -> list[Estimate]:
    """Median, with its 90% interval from drawing prompts again, and largest, which more prompts can only raise."""
    each = [found for r in answers if (found := logprob_differences(r["cold"][0], r[_AGAINST[group]][0]))]
    if not each:
        return []
    pooled = [difference for found in each for difference in found]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(difference for found in rng.choices(each, k=len(each)) for difference in found)
        for _ in range(BOOTSTRAPS)
    )
    method = f"{_WORDS[group]}; tokens before the first that differs, {len(each)} prompts"
    value, low = statistics.median(pooled), medians[BOOTSTRAPS // 20]
    made = (
        ("median", value, min(low, value), max(medians[-1 - BOOTSTRAPS // 20], value)),
        ("largest", max(pooled), max(pooled), None),
    )
    return [
        Estimate(
            name=f"{group}_logprob_off_{which}",
            value=figure,
            low=least,
            high=most,
            unit="nats",
            method=method,
            n=len(pooled),
        )
        for which, figure, least, most in made
    ]
