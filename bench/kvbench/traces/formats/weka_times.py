"""When a Weka trace's sub-agents ran: corpora differ in what a nested `t`, and the entry's own `t`, mean.

Nested `t` counts from the sub-agent's start in the public git corpus and from the trace's start in later ones. The
entry's `t` is the sub-agent's end in the git corpus (entry - duration_ms falls within two seconds after the end of the
request that called it, in all ten traces looked at), where a reader would expect its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from kvbench.traces.lines import LineError

SLACK_S = 2.0
"""Times of requests are rounded to a second, on both sides of a difference."""

NestedT = Literal["auto", "absolute", "relative"]
Reading = Literal["absolute", "relative"]
Marker = Literal["start", "end"]


@dataclass(frozen=True)
class AgentTimes:
    """A sub-agent's entry. at_s is its `t`; first_s, last_s and end_s are of its requests, as they are written."""

    field: str
    at_s: float
    duration_s: float | None
    first_s: float
    end_s: float


def nested_reading(agents: Sequence[AgentTimes], asked: NestedT) -> Reading:
    """The reading of nested `t` that fits every sub-agent of a trace. Raises LineError where neither does.

    A reading fits where the requests lie inside the sub-agent: relative, inside [0, duration]; absolute, inside
    [entry - duration, entry + duration]. Where both fit, the one under which the first request comes sooner.
    """
    if asked != "auto":
        return asked
    relative = next((agent for agent in agents if not _fits_relative(agent)), None)
    absolute = next((agent for agent in agents if not _fits_absolute(agent)), None)
    if relative is not None and absolute is not None:
        length = "no duration_ms" if relative.duration_s is None else f"{relative.duration_s:g} s"
        raise LineError(
            f"the times of its requests, {relative.first_s:g} to {relative.end_s:g} s, fit no reading: counted from "
            f"the sub-agent's start they leave its duration ({length}), counted from the trace's start "
            f"{absolute.field} ({absolute.first_s:g} to {absolute.end_s:g} s) leaves its entry at {absolute.at_s:g} s",
            field=relative.field,
            hint="say which is meant: --nested-t relative, or --nested-t absolute",
        )
    if relative is None and absolute is None:
        sooner = sum(agent.first_s <= abs(agent.at_s - agent.first_s) for agent in agents)
        return "relative" if 2 * sooner >= len(agents) else "absolute"
    return "relative" if relative is None else "absolute"


def _fits_relative(agent: AgentTimes) -> bool:
    return agent.first_s >= 0 and (agent.duration_s is None or agent.end_s <= agent.duration_s + SLACK_S)


def _fits_absolute(agent: AgentTimes) -> bool:
    if agent.duration_s is None:
        return agent.first_s >= agent.at_s - SLACK_S
    return (
        agent.first_s >= agent.at_s - agent.duration_s - SLACK_S
        and agent.end_s <= agent.at_s + agent.duration_s + SLACK_S
    )


def marker_reading(agents: Sequence[AgentTimes], request_ends_s: Sequence[float]) -> Marker:
    """Whether entries are dated by their sub-agents' start or end: the reading that puts starts nearer behind the end
    of a request, by the median; a call is followed by its start at once, and by its end much later.
    """
    if any(agent.duration_s is None for agent in agents):
        return "start"
    starts = [_behind(agent.at_s, request_ends_s) for agent in agents]
    ends = [_behind(agent.at_s - (agent.duration_s or 0.0), request_ends_s) for agent in agents]
    return "end" if median(ends) < median(starts) else "start"


def _behind(at_s: float, ends_s: Sequence[float]) -> float:
    return min((max(at_s - end, 0.0) for end in ends_s if end <= at_s + SLACK_S), default=float("inf"))
