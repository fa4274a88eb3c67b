"""How often an answer from the cache differs from the one that was computed, and how often answers differ anyway."""

from __future__ import annotations

import math

from kvbench.analysis.fit.steps import failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe consistency"
Z90 = 1.645


def fit_consistency(run: Run) -> FitReport:
    """cached_answers_differ and computed_answers_differ, shares of prompts with their 90% intervals (Wilson)."""
    name = str(run.path)
    by: dict[str, dict[str, tuple[str, int | None]]] = {}
    for s in steps(run):
        text = f"{s.record.reasoning_text or ''}\0{s.record.output_text or ''}"
        by.setdefault(s.number, {})[s.role] = (text, s.cached_tokens)
    whole = [r for r in by.values() if {"cold", "cached", "control"} <= r.keys()]
    cached = [r for r in whole if r["cached"][1] and not r["cold"][1]]
    why = failure(run)
    if why is None and not cached:
        nothing = stop_reason(run) or "no prompt was sent three times"
        why = nothing if not whole else "no second answer came from the cache, as far as it is reported"
    if why is not None:
        refusal = Refusal(name="cached_answers_differ", reason=why, experiment=f"{PROBE} again")
        return FitReport(runs=(name,), refusals=(refusal,))
    differ = sum(1 for r in cached if r["cached"][0] != r["cold"][0])
    estimates = [_share("cached_answers_differ", differ, len(cached), "the same prompt cold and cached, greedy")]
    notes = ["texts are compared, token by token probabilities are not"]
    computed = [r for r in cached if not r["control"][1]]
    if computed:
        differ = sum(1 for r in computed if r["control"][0] != r["cold"][0])
        estimates.append(_share("computed_answers_differ", differ, len(computed), "the same prompt cold twice, greedy"))
        floor = estimates[1].high or 0.0
        if (estimates[0].low or 0.0) > floor:
            notes.append("answers from the cache differ more often than answers differ by themselves")
    else:
        notes.append("the endpoint has no salt, so how often computed answers differ by themselves is not known")
    return FitReport(runs=(name,), estimates=tuple(estimates), notes=tuple(notes))


def _share(name: str, hits: int, n: int, method: str) -> Estimate:
    """Wilson's interval at 90%."""
    p, z2 = hits / n, Z90**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z90 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Estimate(
        name=name,
        value=p,
        low=max(0.0, middle - half),
        high=min(1.0, middle + half),
        unit="share of prompts",
        method=method,
        n=n,
    )
