"""Which hit rule a granularity probe's counts follow: the rules tried on every prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvbench.analysis.fit.steps import Step, failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe granularity"
WINDOW = 128

Rule = Callable[[int, int], int]
"""(tokens shared with what is stored, prompt's length) to cached tokens."""


def fit_granularity(run: Run) -> FitReport:
    """granularity_tokens and least_hit_tokens; a note names the rule. Refused where counts follow none."""
    name = str(run.path)
    found = steps(run)
    counted = [(shared, s) for s in found if (shared := _shared(s)) is not None]
    why = failure(run) or (None if counted else stop_reason(run) or "nothing was sent")
    if why is None and all(s.cached_tokens is None for _, s in counted):
        why = "the endpoint reports no cached tokens"
    if why is None and not any(s.cached_tokens for _, s in counted):
        why = "nothing was cached: prefix caching is off, or begins with longer prompts"
    if why is not None:
        return _refused(name, why, f"{PROBE} again, once cached tokens are reported")
    grain = math.gcd(*(s.cached_tokens or 0 for _, s in counted))
    by_length = [
        words
        for words, rule in _rules(grain).items()
        if all(rule(shared, s.sent_tokens) == (s.cached_tokens or 0) for shared, s in counted)
    ]
    fitting = by_length or _whole_rules(counted, grain)
    hits = [s.cached_tokens for _, s in counted if s.cached_tokens]
    missed = [shared for shared, s in counted if not s.cached_tokens and shared < min(hits) + grain]
    estimates = (
        Estimate(
            name="granularity_tokens",
            value=grain,
            low=grain if fitting else None,
            high=grain,
            unit="tokens",
            method="greatest common divisor of all cached counts"
            + ("; every count is the one this grain gives" if fitting else ", which the grain divides"),
            n=len(counted),
        ),
        Estimate(
            name="least_hit_tokens",
            value=min(hits),
            # where hits depend on what was sent before, a beginning that was none tells nothing
            low=max([1, *missed]) if by_length else None,
            high=min(hits),
            unit="tokens",
            method="smallest hit, and the longest shared beginning below it that was none",
            n=len(counted),
        ),
    )
    if fitting:
        return FitReport(runs=(name,), estimates=estimates, notes=(f"hit rule: {fitting[0]}",))
    wrong = tuple(
        {"shared_tokens": shared, "input_tokens": s.sent_tokens, "cached_tokens": s.cached_tokens}
        for shared, s in counted
    )
    refusal = Refusal(
        name="hit_rule",
        reason=f"the counts follow no rule that is known: grains of {grain}, but not at every length",
        experiment=f"{PROBE} on one replica with nothing else on it; prefix units (DeepSeek) look like this too",
    )
    return FitReport(runs=(name,), estimates=estimates, refusals=(refusal,), residuals=wrong)


def _rules(grain: int) -> dict[str, Rule]:
    def block(shared: int, length: int) -> int:
        return min(shared, length - 1) // grain * grain

    def window(shared: int, length: int) -> int:
        hit = block(shared, length)
        return hit if hit > WINDOW else 0

    def whole(shared: int, length: int) -> int:
        return shared // grain * grain

    def stepped(shared: int, length: int) -> int:
        return 0 if shared < 1024 else 1024 + (shared - 1024) // 128 * 128

    return {
        f"block, {grain} tokens, the last token is computed again": block,
        f"block, {grain} tokens, hits of up to {WINDOW} tokens are not taken (bounded replay)": window,
        f"block, {grain} tokens, nothing is computed again": whole,
        "steps, 1,024 tokens and then 128": stepped,
    }


def _whole_rules(counted: Sequence[tuple[int, Step]], grain: int) -> list[str]:
    """Rules by which a hit needs what only the ends of earlier prompts leave behind: for prompts that begin like the
    base, of those sent before them."""

    def last_full(length: int) -> int:
        return length // grain * grain

    def last_hit(length: int) -> int:
        return (length - 1) // grain * grain

    near = f"whole, {grain} tokens, up to where an earlier prompt ended or parted near its end (sliding windows)"
    at = f"whole, {grain} tokens, up to where an earlier prompt ended (layers with a state, windows kept as one)"
    seen = [s.cached_tokens or 0 for _, s in counted]
    kinds = ((near, last_hit, True), (at, last_hit, False), (at, last_full, False))
    return [words for words, end, parted in kinds if seen == _by_ends(counted, end, parted=parted)]


def _by_ends(counted: Sequence[tuple[int, Step]], end: Callable[[int], int], *, parted: bool) -> list[int]:
    """Cached tokens where a prompt can be hit up to `end` of its length; parted: and, if it parted from the base near
    its end, up to there."""
    ends: list[int] = []
    predicted = []
    for shared, step in counted:
        left = end(step.sent_tokens)
        if step.series.startswith("same"):
            predicted.append(left if left < step.sent_tokens else 0)
            continue
        predicted.append(max((e for e in ends if e <= shared), default=0))
        if parted or left <= shared:
            ends.append(min(left, end(shared + 1)))
    return predicted


def _shared(step: Step) -> int | None:
    if step.series.startswith("shared") and step.role == "read":
        return int(step.series.removeprefix("shared"))
    return step.sent_tokens if step.series.startswith("same") and step.role == "again" else None


def _refused(name: str, reason: str, experiment: str) -> FitReport:
    return FitReport(runs=(name,), refusals=(Refusal(name="granularity_tokens", reason=reason, experiment=experiment),))
