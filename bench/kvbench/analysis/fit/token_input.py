"""Whether the prompt tokens that are reported are those that were sent: one function a check.

An accusation needs counts that no honest endpoint gives: a slope whose bounds are above 1 for all kinds of text, the
same text counted in two ways, counts that are all whole multiples. What a wrong tokenizer or a chat template would
explain is told and not accused.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from kvbench.analysis.fit.token_line import SLACK_TOKENS, Line, Points, fit_line, grain_of
from kvbench.analysis.fit.token_sent import SHOWN, Audit, Sent, grain_check, shown
from kvbench.model import Check

DETECTED = 0.95
"""A random overcount on so many requests or more is seen at least this often."""
MOST_TEMPLATE_TOKENS = 64
"""By which two chat templates may differ."""
LEAST_POWER = 0.01
"""Where an overcount of so much could have been missed, nothing is confirmed."""


def input_checks(audit: Audit) -> tuple[list[Check], Line | None]:
    """`input`, `input_grain`; the line is of what was sent without the template."""
    sent = [s for s in audit.sent if s.series in ("size", "again") and s.usage.input_tokens is not None]
    texts = _points(sent, "text_tokens")
    line = fit_line(texts)
    if audit.source is None:
        why = "nothing could count the tokens of what was sent: the endpoint has no /tokenize, the profile no tokenizer"
        return [Check(name="input", verdict="not verifiable", says=why, n=len(sent))], None
    if not sent:
        return [Check(name="input", verdict="not reported", says="no prompt tokens are reported", n=0)], None
    whole = _points(sent, "prompt_tokens")
    points = whole if len(whole) == len(sent) else texts
    grain = grain_of(points)
    checked = fit_line(points, SLACK_TOKENS if grain == 1 else grain + 1)
    return [_slope(audit, sent, points, checked, grain), grain_check("input", points, grain)], line


def _slope(audit: Audit, sent: Sequence[Sent], points: Points, line: Line | None, grain: int) -> Check:
    n = len(points)
    if line is None:
        return Check(name="input", verdict="cannot tell", says="too few lengths were answered for a line", n=n)
    if not line.holds:
        return _scattered(audit, sent, points, line)
    figure = f"{line.slope:.4f} reported for each exact token ({line.low:.4f} to {line.high:.4f})"
    power: dict[str, Any] = {"n": n, "detectable": line.detectable, "detectable_unit": "of the input tokens"}
    if line.low > 1:
        return Check(
            name="input", verdict="disputed", says=f"{figure}, on all kinds of text alike", excess=line.slope - 1,
            excess_unit="of the input tokens", evidence=_worst(sent, line.intercept), **power,
        )  # fmt: skip
    if line.high < 1:
        says = f"{figure}: fewer than were sent; the tokenizer is not the endpoint's, or the prompt was cut"
        return Check(name="input", verdict="cannot tell", says=says, **power)
    if line.detectable is None or line.detectable > LEAST_POWER:
        why = f"counts rounded to {grain} are too coarse" if grain > 1 else "the prompts are too short"
        return Check(name="input", verdict="cannot tell", says=f"{figure}, but {why} to tell 1% more", **power)
    return Check(name="input", verdict="confirmed", says=figure, **power)


def _scattered(audit: Audit, sent: Sequence[Sent], points: Points, line: Line) -> Check:
    """No line explains the counts."""
    n, off = len(points), [reported - exact for exact, reported in points]
    base = min(off)
    excess = sum(d - base for d in off) / sum(exact for exact, _ in points)
    apart = f"counts are up to {max(off) - base:,} tokens apart from one line"
    evidence = _worst(sent, base)
    if _proved(_again(sent)):
        says = f"{apart}, and the same text is counted in more than one way; {excess:.2%} above the least on average"
        return Check(
            name="input", verdict="disputed", says=says, n=n, excess=excess, excess_unit="of the input tokens",
            evidence=evidence,
        )  # fmt: skip
    whole = [s for s in sent if s.counted.prompt_tokens is not None]
    over = [s for s in whole if _off(s, s.counted.prompt_tokens) > SLACK_TOKENS]
    grows = _grows([_off(s, s.counted.prompt_tokens) for s in over])
    if grows and len(whole) == len(sent) and base >= -SLACK_TOKENS:
        says = (
            f"{len(over)} of {n} prompts are reported with more tokens than the server's own /tokenize gives; {apart}"
        )
        return Check(
            name="input", verdict="disputed", says=says, n=n, excess=excess, excess_unit="of the input tokens",
            evidence=evidence,
        )  # fmt: skip
    kinds = [f"{kind} {own:.4f}" for kind, own in _slopes_by_kind(sent)]
    says = f"{apart}, and the same text always counts the same: {audit.source} may not be the endpoint's"
    if kinds:
        says += f" (reported for each exact token, by kind of text: {', '.join(kinds)})"
    return Check(name="input", verdict="cannot tell", says=says, n=n, evidence=evidence)


def template_check(audit: Audit) -> list[Check]:
    """`template`: what is reported beyond the text is what the server's /tokenize has beyond it."""
    sent = [
        s for s in audit.sent
        if s.series == "size" and None not in (s.counted.prompt_tokens, s.counted.text_tokens, s.usage.input_tokens)
    ]  # fmt: skip
    if not sent:
        return []
    beyond = [_off(s, s.counted.prompt_tokens) for s in sent]
    added = statistics.median(_off(s, s.counted.text_tokens) for s in sent)
    told = statistics.median((s.counted.prompt_tokens or 0) - (s.counted.text_tokens or 0) for s in sent)
    if not any(beyond):
        says = f"{added:g} tokens are reported beyond the text, and the chat template has {told:g}"
        return [Check(name="template", verdict="confirmed", says=says, n=len(sent))]
    says = f"{added:g} tokens are reported beyond the text (median), where /tokenize tells of {told:g}"
    return [Check(name="template", verdict="cannot tell", says=says, n=len(sent))]


def tokenizer_check(audit: Audit) -> list[Check]:
    """`tokenizer`: the server's count of the texts is that of the profile's tokenizer, where there are both."""
    both = [s for s in audit.sent if s.series == "size" and s.counted.local_tokens is not None]
    points = [(s.counted.local_tokens or 0, s.counted.text_tokens) for s in both if s.counted.text_tokens is not None]
    if not points:
        return []
    n = len(points)
    differ = [s for s in both if s.counted.local_tokens != s.counted.text_tokens]
    if not differ:
        says = f"the server's /tokenize counts as {audit.local} does"
        return [Check(name="tokenizer", verdict="confirmed", says=says, n=n)]
    line = fit_line(points)
    if line is not None and line.holds and line.low > 1:
        says = (
            f"the server's /tokenize gives {line.slope:.4f} for each token of {audit.local}, on all kinds of text alike"
        )
        return [
            Check(
                name="tokenizer", verdict="disputed", says=says, n=n, detectable=line.detectable,
                detectable_unit="of the input tokens", excess=line.slope - 1, excess_unit="of the input tokens",
            )
        ]  # fmt: skip
    kinds = sorted({s.counted.text_kind for s in differ})
    says = (
        f"{len(differ)} of {n} texts have another count by the server's /tokenize than by {audit.local} "
        f"({', '.join(kinds)}): one of them is not the model's"
    )
    return [Check(name="tokenizer", verdict="cannot tell", says=says, n=n)]


def repeated_check(audit: Audit) -> Check:
    """`repeated`: the same text is counted the same each time."""
    pairs = _again([s for s in audit.sent if s.series in ("size", "again") and s.usage.input_tokens is not None])
    n = sum(times - 1 for *_, times in pairs)
    if not n:
        return Check(name="repeated", verdict="cannot tell", says="no text was counted twice", n=0)
    worst = max(most - least for least, most, _ in pairs)
    differ = sum(1 for least, most, _ in pairs if most > least)
    # a share p of requests counted otherwise is missed by a pair with p^2 + (1 - p)^2
    missed = (1 - DETECTED) ** (1 / n)
    inside = 2 * missed - 1
    share = (1 - inside**0.5) / 2 if inside >= 0 else None
    power: dict[str, Any] = {"n": n, "detectable": share, "detectable_unit": "of the requests, struck at random,"}
    if worst > SLACK_TOKENS and not _proved(pairs):
        says = f"the same text is counted with {worst} tokens more at times, whatever its length: several servers with "
        says += "chat templates of their own would do that"
        return Check(name="repeated", verdict="cannot tell", says=says, **power)
    if worst > SLACK_TOKENS:
        says = f"{differ} of {len(pairs)} texts are counted in more than one way, up to {worst:,} tokens apart"
        excess = sum(most - least for least, most, _ in pairs) / sum(least for least, _, _ in pairs)
        return Check(
            name="repeated", verdict="disputed", says=says, excess=excess, excess_unit="of the tokens of these texts",
            **power,
        )  # fmt: skip
    if worst:
        says = f"the same text differs by up to {worst} tokens: a date or a counter in the template would do that"
        return Check(name="repeated", verdict="cannot tell", says=says, **power)
    return Check(name="repeated", verdict="confirmed", says="the same text has the same count each time", **power)


def stream_check(audit: Audit) -> Check:
    """`stream`: a stream's usage is that of the same prompt's whole answer."""
    by: dict[str, dict[str, Sent]] = defaultdict(dict)
    for s in audit.sent:
        if s.series == "other":
            by[s.text][s.role] = s
    both = [(r["stream"], r["whole"]) for r in by.values() if {"stream", "whole"} <= r.keys()]
    absent = [(a.reported, b.reported) for a, b in both if a.reported != b.reported]
    if absent:
        without = "a whole answer" if absent[0][0] else "a stream"
        return Check(name="stream", verdict="not reported", says=f"{without} has no usage", n=len(both))
    counts = [
        (a.usage.input_tokens, b.usage.input_tokens) for a, b in both
    ]  # fmt: skip
    known = [(a, b) for a, b in counts if a is not None and b is not None]
    if not known:
        return Check(name="stream", verdict="not reported", says="no prompt was reported both ways", n=0)
    apart = [a - b for a, b in known]
    least = min(max(a, b) for a, b in known)
    power: dict[str, Any] = {
        "n": len(known), "detectable": (SLACK_TOKENS + 1) / max(b for _, b in known),
        "detectable_unit": "of the input tokens",
    }  # fmt: skip
    if max(map(abs, apart)) <= SLACK_TOKENS:
        same = "a stream and a whole answer report the same"
        return Check(name="stream", verdict="confirmed", says=same, **power)
    more = "stream" if sum(apart) > 0 else "whole answer"
    share = max(abs(a - b) / min(a, b) for a, b in known)
    says = f"a {more} reports up to {max(map(abs, apart)):,} input tokens more than the other, of the same prompt"
    if any(most - low > SLACK_TOKENS for low, most, _ in _again(audit.sent)):
        says += "; but counts differ anyway from time to time"
        return Check(name="stream", verdict="cannot tell", says=says, **power)
    return Check(
        name="stream", verdict="disputed", says=says, excess=share if least else None,
        excess_unit="of the input tokens", **power,
    )  # fmt: skip


def _points(sent: Iterable[Sent], field: str) -> Points:
    found = ((getattr(s.counted, field), s.usage.input_tokens) for s in sent)
    return [(exact, reported) for exact, reported in found if exact is not None and reported is not None]


def _off(s: Sent, exact: int | None) -> int:
    assert exact is not None
    assert s.usage.input_tokens is not None
    return s.usage.input_tokens - exact


def _again(sent: Iterable[Sent]) -> list[tuple[int, int, int]]:
    """(least, most, how often) of the counts of each text that was counted more than once."""
    by: dict[str, list[int]] = defaultdict(list)
    for s in sent:
        if s.series in ("size", "again") and s.usage.input_tokens is not None:
            by[s.text].append(s.usage.input_tokens)
    return [(min(counts), max(counts), len(counts)) for counts in by.values() if len(counts) > 1]


def _proved(again: Sequence[tuple[int, int, int]]) -> bool:
    """Whether counts of the same text differ by more than a constant, which another template could be."""
    return _grows([most - least for least, most, _ in again])


def _grows(more: Sequence[int]) -> bool:
    """Whether what is too much is not the same few tokens each time."""
    above = [tokens for tokens in more if tokens > 0]
    return any(tokens > SLACK_TOKENS for tokens in above) and (
        max(above) - min(above) > SLACK_TOKENS or max(above) > MOST_TEMPLATE_TOKENS
    )


def _slopes_by_kind(sent: Sequence[Sent]) -> list[tuple[str, float]]:
    kinds = dict.fromkeys(s.counted.text_kind for s in sent)
    lines = [
        (kind, fit_line(_points([s for s in sent if s.counted.text_kind == kind], "text_tokens"))) for kind in kinds
    ]
    return [(kind, line.slope) for kind, line in lines if line is not None]


def _worst(sent: Sequence[Sent], base: float) -> tuple[dict[str, Any], ...]:
    exact = {
        s.request: s.counted.prompt_tokens if s.counted.prompt_tokens is not None else s.counted.text_tokens
        for s in sent
    }
    known = [s for s in sent if exact[s.request] is not None]
    ordered = sorted(known, key=lambda s: -abs(_off(s, exact[s.request]) - base))
    return tuple(shown(s) for s in ordered[:SHOWN])
