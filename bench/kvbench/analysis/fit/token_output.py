"""Whether the output tokens that are reported are those that came: one function a check.

The ids of generated tokens are exact; a text encoded again is where the model repeated what it was asked to, and may be
a little off where it wrote freely. An end mark is a constant, and what is shown of the reasoning may be a summary:
neither is accused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvbench.analysis.fit.token_line import SLACK_TOKENS, Line, Points, fit_line, grain_of
from kvbench.analysis.fit.token_sent import Audit, Sent, grain_check
from kvbench.model import Check

FULL_REASONING = ("deepseek", "vllm")
"""Dialects that show all of what was thought; elsewhere it may be a summary."""
LEAST_POWER = 0.02
"""Where an overcount of so much could have been missed, nothing is confirmed."""
ENCODED_AGAIN = 0.05
"""By how much of its length a free text, encoded again, may differ from the tokens that were generated."""
MARK_TOKENS = 16
"""Of marks around the reasoning that no text shows."""
FEWEST_REPEATED = 5


def output_checks(audit: Audit) -> tuple[list[Check], Line | None]:
    """`output`, and `output_grain` where there is one."""
    answers = [s for s in audit.sent if s.series == "repeat"]
    reported = [s for s in answers if s.usage.output_tokens is not None]
    if not reported:
        return [Check(name="output", verdict="not reported", says="no output tokens are reported", n=0)], None
    if audit.source is None and not any(s.counted.output_by == "ids" for s in reported):
        why = "nothing could count the tokens of what came: the endpoint has no /tokenize, the profile no tokenizer"
        return [Check(name="output", verdict="not verifiable", says=why, n=len(reported))], None
    by_ids = all(s.counted.output_by == "ids" for s in reported)
    kept = reported if by_ids else [s for s in reported if s.counted.repeated]
    firm = by_ids or (len(kept) >= FEWEST_REPEATED and fit_line(_output_points(audit, kept)) is not None)
    if not firm:
        kept = reported
    points = _output_points(audit, kept)
    grain = grain_of(points)
    line = fit_line(points, SLACK_TOKENS if grain == 1 else grain + 1)
    if line is None:
        why = "the answers are empty, of one length, or hidden behind reasoning of which only a part is shown"
        return [Check(name="output", verdict="cannot tell", says=why, n=len(points))], None
    doubt = ""
    if not firm and not (line.holds and line.low <= 1 <= line.high):
        longest = max(exact for exact, _ in points)
        line = fit_line(points, line.window + ENCODED_AGAIN * longest) or line
        doubt = "; the model did not repeat what it was asked to, and a free text encoded again may be up to 5% off"
    basis = "ids of the generated tokens" if by_ids else audit.source
    figure = f"{line.slope:.4f} reported for each token that came ({line.low:.4f} to {line.high:.4f}, by {basis})"
    hidden = sum(1 for s in kept if s.usage.reasoning_tokens and not s.counted.reasoning_tokens)
    if hidden:
        doubt += f"; without the reasoning of {hidden} answers, which is not shown"
    power: dict[str, Any] = {
        "n": len(points), "detectable": line.detectable, "detectable_unit": "of the output tokens",
    }  # fmt: skip
    checks = [grain_check("output", points, grain)] if grain > 1 else []
    if not line.holds:
        base = min(y - x for x, y in points)
        excess = sum(y - x - base for x, y in points) / max(1, sum(x for x, _ in points))
        says = f"counts of what came are up to {line.scatter:.0f} tokens apart from one line{doubt}"
        proved = by_ids and base >= 0
        return [
            Check(
                name="output", verdict="disputed" if proved else "cannot tell", says=says, n=len(points),
                excess=excess if proved else None, excess_unit="of the output tokens" if proved else None,
            ),
            *checks,
        ], line  # fmt: skip
    if line.low > 1:
        check = Check(
            name="output", verdict="disputed", says=figure + doubt, excess=line.slope - 1,
            excess_unit="of the output tokens", **power,
        )  # fmt: skip
    elif line.high < 1:
        check = Check(name="output", verdict="cannot tell", says=f"{figure}: fewer than came{doubt}", **power)
    elif line.detectable is None or line.detectable > LEAST_POWER:
        check = Check(name="output", verdict="cannot tell", says=f"{figure}, too wide to tell 2% more{doubt}", **power)
    else:
        check = Check(name="output", verdict="confirmed", says=figure + doubt, **power)
    return [check, *checks], line


def _output_points(audit: Audit, answers: Iterable[Sent]) -> Points:
    """(came, reported), without reasoning where that is hidden or may be shown in part."""
    points = []
    for s in answers:
        came, reported = s.counted.output_tokens, s.usage.output_tokens
        shown, thought = s.counted.reasoning_tokens or 0, s.usage.reasoning_tokens or 0
        if came is None or reported is None:
            continue
        if s.counted.output_by == "ids" or (audit.dialect in FULL_REASONING and (shown or not thought)):
            points.append((came, reported))
        elif thought:
            points.append((came - shown, reported - thought))
        elif not shown:
            points.append((came, reported))
    return points


def cap_check(audit: Audit) -> Check:
    """`cap`: no answer is reported longer than max_tokens allowed."""
    known = [s for s in audit.sent if s.usage.output_tokens is not None and s.counted.max_tokens is not None]
    if not known:
        return Check(name="cap", verdict="not reported", says="no output tokens are reported", n=0)
    over = [(_over(s), s) for s in known]
    ended = [s for more, s in over if more >= 0 or s.finish_reason == "length"]
    worst, which = max(over, key=lambda each: each[0])
    if worst > 0:
        told = f"{which.usage.output_tokens:,} tokens are reported where max_tokens was {which.counted.max_tokens:,}"
        n = sum(1 for more, _ in over if more > 0)
        thought = which.usage.reasoning_tokens or 0
        if worst == 1 or worst <= thought:
            why = "an end mark would do that" if worst == 1 else "the limit may be one of the answer without reasoning"
            return Check(name="cap", verdict="cannot tell", says=f"{told} ({n} answers): {why}", n=len(ended))
        came = which.counted.output_tokens
        if came is not None:
            told += f", and {came:,} came"
        return Check(
            name="cap", verdict="disputed", says=f"{told} ({n} answers above it)", n=len(ended), excess=worst,
            excess_unit="tokens of that answer", detectable=2, detectable_unit="tokens of an answer",
        )  # fmt: skip
    if not ended:
        return Check(name="cap", verdict="cannot tell", says="every answer ended by itself", n=0)
    says = "no answer is reported longer than max_tokens"
    return Check(
        name="cap", verdict="confirmed", says=says, n=len(ended), detectable=2, detectable_unit="tokens of an answer"
    )


def reasoning_check(audit: Audit) -> Check:
    """`reasoning`: reasoning tokens are those of the reasoning that is shown, where all of it is."""
    counted = [s for s in audit.sent if s.usage.reasoning_tokens]
    shown = [s for s in audit.sent if s.counted.reasoning_tokens]
    hidden = [s for s in counted if not s.counted.reasoning_tokens]
    if hidden:
        tokens = sum(s.usage.reasoning_tokens or 0 for s in hidden)
        says = f"{tokens:,} tokens of reasoning are counted in {len(hidden)} answers that show none of it"
        return Check(name="reasoning", verdict="not verifiable", says=says, n=len(hidden))
    if not counted:
        says = "reasoning is shown, and not told apart" if shown else "no answer has reasoning, shown or counted"
        return Check(name="reasoning", verdict="not reported", says=says, n=len(shown))
    exact = sum(s.counted.reasoning_tokens or 0 for s in counted)
    reported = sum(s.usage.reasoning_tokens or 0 for s in counted)
    room = MARK_TOKENS * len(counted) + ENCODED_AGAIN * exact
    power: dict[str, Any] = {
        "n": len(counted), "detectable": (room + 1) / exact, "detectable_unit": "of the reasoning tokens",
    }  # fmt: skip
    says = f"{reported:,} tokens of reasoning are reported, and the text that is shown has {exact:,}"
    if reported <= exact + room and reported >= exact - room:
        return Check(name="reasoning", verdict="confirmed", says=says, **power)
    if reported < exact or audit.dialect not in FULL_REASONING:
        why = "more is shown than counted" if reported < exact else "what is shown may be a summary"
        return Check(name="reasoning", verdict="cannot tell", says=f"{says}: {why}", **power)
    return Check(
        name="reasoning", verdict="disputed", says=says, excess=reported / exact - 1,
        excess_unit="of the reasoning tokens", **power,
    )  # fmt: skip


def _over(s: Sent) -> int:
    return (s.usage.output_tokens or 0) - (s.counted.max_tokens or 0)
