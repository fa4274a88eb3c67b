"""Which tokens a plan puts a price on: a task as it is said, a trace's requests, sessions and trees, or a profile's."""

from __future__ import annotations

from decimal import Decimal

from kvbench.analysis.planning.fields import Task, Traffic
from kvbench.analysis.planning.money import Spent, session_spent
from kvbench.analysis.planning.source import Source
from kvbench.analysis.planning.traffic import Observed
from kvbench.analysis.planning.work import Work


def of_task(task: Task) -> Spent:
    hits = task.hit_rate * task.input_tokens
    return Spent(what="task", input_tokens=task.input_tokens, hit_tokens=hits, output_tokens=task.output_tokens)


def of_trace(observed: Observed, work: Work) -> list[Spent]:
    """A mean request, session and tree of sessions, at the hits of all tiers together."""
    tokens, output = int(observed.input_tokens.sum()), int(observed.output_tokens.sum())
    hits = Decimal(sum(share.tokens for share in work.shares))
    return [
        Spent(what=what, input_tokens=tokens, hit_tokens=hits, output_tokens=output, count=count)
        for what, count in (
            ("request", observed.requests),
            ("session", observed.sessions),
            ("task (a session with its sub-agents)", observed.trees),
        )
    ]


def of_profile(traffic: Traffic, source: Source) -> list[Spent]:
    """The last request of a session, and where the turns are said the whole session; nothing without a context."""
    if traffic.context is None or traffic.new_tokens is None or traffic.output_tokens is None:
        return []
    prompt = traffic.context - traffic.output_tokens
    hits = Decimal(prompt - traffic.new_tokens)
    what = "request at full context"
    out = [Spent(what=what, input_tokens=prompt, hit_tokens=hits, output_tokens=traffic.output_tokens)]
    if traffic.turns is not None:
        one = session_spent(prompt, traffic.new_tokens, traffic.output_tokens, traffic.turns, traffic.shared_tokens)
        if one is None:
            raise source.wrong(
                "traffic.turns",
                f"{traffic.turns:,} turns of {traffic.new_tokens:,} new tokens each are more than a prompt of "
                f"{prompt:,} can have grown by",
            )
        out.append(one)
    return out
