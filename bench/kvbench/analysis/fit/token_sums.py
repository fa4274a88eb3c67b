"""Whether the counts of one usage report agree with each other."""

from __future__ import annotations

from kvbench.analysis.fit.token_sent import SHOWN, Audit, shown
from kvbench.model import Check


def total_check(audit: Audit) -> Check:
    """`total`: total_tokens is the sum of prompt and completion."""
    known = [s for s in audit.sent if None not in (s.total, s.usage.input_tokens, s.usage.output_tokens)]
    if not known:
        return Check(name="total", verdict="not reported", says="no total is reported", n=0)
    off = [((s.total or 0) - (s.usage.input_tokens or 0) - (s.usage.output_tokens or 0), s) for s in known]
    wrong = [(more, s) for more, s in off if more]
    if not wrong:
        says = "total_tokens is prompt and completion"
        return Check(name="total", verdict="confirmed", says=says, n=len(known), detectable=1, detectable_unit="tokens")
    more, worst = max(wrong, key=lambda each: abs(each[0]))
    says = f"{len(wrong)} of {len(known)} totals are no sum of prompt and completion, by up to {more:+,} tokens"
    # reasoning that is told in the total alone has to fit under max_tokens
    if all(more > 0 and (s.usage.output_tokens or 0) + more <= (s.counted.max_tokens or 0) + 1 for more, s in wrong):
        says += ": what is beyond may be reasoning that is not told apart"
        return Check(name="total", verdict="cannot tell", says=says, n=len(known))
    return Check(name="total", verdict="disputed", says=says, n=len(known), evidence=(shown(worst),))


def cached_check(audit: Audit) -> Check:
    """`cached`: what is reported as cached is a part of the prompt, and the counts do not contradict each other."""
    bad = [s for s in audit.sent if s.usage.problem is not None]
    known = [s for s in audit.sent if s.usage.cached_tokens is not None]
    if bad:
        says = f"{len(bad)} of {len(audit.sent)} reports contradict themselves: {bad[0].usage.problem}"
        return Check(
            name="cached",
            verdict="disputed",
            says=says,
            n=len(audit.sent),
            evidence=tuple(shown(s) for s in bad[:SHOWN]),
        )
    if not known:
        return Check(name="cached", verdict="not reported", says="no cached tokens are reported", n=0)
    says = "cached tokens are never above the prompt's"
    return Check(name="cached", verdict="confirmed", says=says, n=len(known), detectable=1, detectable_unit="tokens")
