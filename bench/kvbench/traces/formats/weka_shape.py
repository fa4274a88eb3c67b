"""One Weka trace as it is written, and its requests and sub-agents put into trace time."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.traces.formats.weka_times import AgentTimes, Marker, Reading
from kvbench.traces.lines import LineError

DEFAULT_BLOCK_SIZE = 64
ROUNDING_S = 1.0
"""Times of requests are whole seconds: two of them may be off by this much in their difference."""

_Time = Annotated[float, Meta(ge=0, le=1e9)]
_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Entry(msgspec.Struct, rename={"input": "in"}, omit_defaults=True):
    """A request, or (type subagent) a sub-agent with its own. What is None is not written."""

    t: _Time
    type: str
    model: str | None = None
    input: _Tokens | None = None
    out: _Count | None = None
    hash_ids: list[int] | None = None
    api_time: _Time | None = None
    think_time: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    ttft: _Time | None = None
    stop: str | None = None
    input_types: list[str] | None = None
    output_types: list[str] | None = None
    agent_id: str | int | None = None
    subagent_type: str | None = None
    duration_ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    status: str | None = None
    models: Any = None
    tool_tokens: Any = None
    system_tokens: Any = None
    requests: list[Entry] | None = None


class WekaTrace(msgspec.Struct):
    requests: list[Entry]
    id: str | int | None = None
    block_size: _Tokens = DEFAULT_BLOCK_SIZE
    hash_id_scope: str = "local"
    tool_tokens: Any = None
    system_tokens: Any = None
    totals: dict[str, Any] | None = None


class Timed(msgspec.Struct):
    """A request with where it stands in the source, and when it ran in the trace's time."""

    field: str
    entry: Entry
    start_s: float
    end_s: float
    """start_s where the source has no api_time."""
    written_s: float
    """Start as the source writes it: nested times count from the entry's, whatever that dates."""


class Agent(msgspec.Struct):
    """A sub-agent with requests of its own, as a session to be."""

    field: str
    entry: Entry
    requests: list[Timed]
    agents: list[Agent]
    name: str = ""

    @property
    def start_s(self) -> float:
        return self.requests[0].start_s

    @property
    def end_s(self) -> float:
        return max(request.end_s for request in self.requests)


def collect_agents(
    entries: list[Entry], path: str, out: list[AgentTimes], notes: Counter[str], *, deep: bool = True
) -> None:
    for index, entry in enumerate(entries):
        field = f"{path}[{index}]"
        if entry.type not in ("n", "s", "subagent"):
            raise LineError(f'unknown type "{entry.type}"; n, s or subagent', field=f"{field}.type")
        if entry.type != "subagent":
            if entry.requests:
                raise LineError("only a sub-agent has requests", field=f"{field}.requests")
            continue
        own = [request for request in entry.requests or () if request.type != "subagent"]
        if own:
            last = max(request.t + (request.api_time or 0.0) for request in own)
            duration_s = None if entry.duration_ms is None else entry.duration_ms / 1000
            out.append(AgentTimes(field, entry.t, duration_s, min(request.t for request in own), last))
        elif not entry.requests:
            notes["empty_subagent"] += 1
        if deep and entry.requests:
            collect_agents(entry.requests, f"{field}.requests", out, notes)


def place(
    entries: list[Entry],
    path: str,
    reading: Reading,
    marker: Marker,
    session: Agent,
    base_s: float = 0.0,
    written_s: float = 0.0,
) -> None:
    """Put requests and sub-agents of one level into `session`, in trace time; base_s is when its `t` counts from, and
    written_s the same as the source writes it."""
    for index, entry in enumerate(entries):
        field = f"{path}[{index}]"
        if entry.type != "subagent":
            start_s = base_s + entry.t
            end_s = start_s + (entry.api_time or 0.0)
            session.requests.append(Timed(field, entry, start_s, end_s, written_s + entry.t))
            continue
        nested = entry.requests or []
        inner_s = inner_written_s = 0.0
        if reading == "relative":
            inner_s = base_s + entry.t
            inner_written_s = written_s + entry.t
            if marker == "end":
                ends = [request.t + (request.api_time or 0.0) for request in nested]
                length = entry.duration_ms / 1000 if entry.duration_ms is not None else max(ends, default=0.0)
                inner_s = max(inner_s - length, 0.0)
        agent = Agent(field, entry, [], [])
        place(nested, f"{field}.requests", reading, marker, agent, inner_s, inner_written_s)
        if agent.requests:
            session.agents.append(agent)
        else:  # Of one that only called others, those others are what there is to replay.
            session.agents.extend(agent.agents)


def root_sessions(root: Agent, notes: Counter[str]) -> list[Agent]:
    """The root session, and the sub-agents that no request of it can have called."""
    first_s = min((request.start_s for request in root.requests), default=float("inf"))
    own = [agent for agent in root.agents if agent.start_s < first_s - ROUNDING_S]
    notes["own_root"] += len(own)
    root.agents = [agent for agent in root.agents if agent not in own]
    return [root, *own] if root.requests else own


def calling_turn(agent: Agent, requests: list[Timed], notes: Counter[str]) -> int:
    """The turn after whose end the sub-agent starts: the last that had ended when it began."""
    called = 0
    ended = False
    for number, request in enumerate(requests):
        if request.start_s > agent.start_s:
            continue
        if request.end_s <= agent.start_s + ROUNDING_S:
            called, ended = number, True
    if not ended:
        notes["started_early"] += 1
    return called


def joining_turn(agent: Agent, requests: list[Timed], called: int) -> int | None:
    """The turn that waits for a sub-agent called by turn `called`: the next one, if it begins after the agent's end."""
    following = requests[called + 1] if called + 1 < len(requests) else None
    return called + 1 if following is not None and following.start_s >= agent.end_s - ROUNDING_S else None


def totals_doubts(trace: WekaTrace) -> list[str]:
    """Where the trace's own totals are not the sums of its requests."""
    if not trace.totals:
        return []
    parent, agents, count = [0, 0], [0, 0], 0

    def add(entries: list[Entry], sums: list[int]) -> int:
        found = 0
        for entry in entries:
            if entry.type == "subagent":
                found += 1 + add(entry.requests or [], agents)
            else:
                sums[0] += entry.input or 0
                sums[1] += entry.out or 0
        return found

    count = add(trace.requests, parent)
    combined = [parent[0] + agents[0], parent[1] + agents[1]]
    doubts = []
    for name, sums in (("parent_tokens", parent), ("subagent_tokens", agents), ("combined_tokens", combined)):
        said = trace.totals.get(name)
        for side, value in zip(("input", "output"), sums, strict=True):
            if isinstance(said, dict) and isinstance(said.get(side), int) and said[side] != value:
                doubts.append(f"totals.{name}.{side} is {said[side]}, and the requests add up to {value}")
    said = trace.totals.get("subagent_count")
    if isinstance(said, int) and said != count:
        doubts.append(f"totals.subagent_count is {said}, and there are {count}")
    return doubts
