"""Weka / kv-cache-tester traces: one JSON object a trace, a root session with its sub-agents, block ids and no text.

Ids are of full blocks and local to their trace. They are numbered anew in the order in which they first appear, on
and on through a file, so that ids of different traces never meet and a lone trace that counts from 1 keeps its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Recorded, TraceHeader, Turn, TurnRef
from kvbench.traces.foreign import NativeSink, shared_blocks
from kvbench.traces.lines import LineError, convert_object
from kvbench.traces.weka_times import AgentTimes, Marker, NestedT, Reading, marker_reading, nested_reading

DEFAULT_BLOCK_SIZE = 64
ROUNDING_S = 1.0
"""Times of requests are whole seconds: two of them may be off by this much in their difference."""

_Time = Annotated[float, Meta(ge=0, le=1e9)]
_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Entry(msgspec.Struct, rename={"input": "in"}):
    """A request, or (type subagent) a sub-agent with its own."""

    t: _Time
    type: str
    model: str | None = None
    input: _Tokens | None = None
    out: _Count | None = None
    hash_ids: list[int] | None = None
    api_time: _Time | None = None
    think_time: float | None = None
    ttft: _Time | None = None
    stop: str | None = None
    input_types: list[str] | None = None
    output_types: list[str] | None = None
    agent_id: str | int | None = None
    subagent_type: str | None = None
    duration_ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    status: str | None = None
    requests: list[_Entry] | None = None


class _Trace(msgspec.Struct):
    requests: list[_Entry]
    id: str | int | None = None
    block_size: _Tokens = DEFAULT_BLOCK_SIZE
    hash_id_scope: str = "local"
    tool_tokens: Any = None
    system_tokens: Any = None
    totals: dict[str, Any] | None = None


class _Timed(msgspec.Struct):
    """A request with where it stands in the source, and when it ran in the trace's time."""

    field: str
    entry: _Entry
    start_s: float
    end_s: float
    """start_s where the source has no api_time."""


class _Agent(msgspec.Struct):
    """A sub-agent with requests of its own, as a session to be."""

    field: str
    entry: _Entry
    requests: list[_Timed]
    agents: list[_Agent]
    name: str = ""

    @property
    def start_s(self) -> float:
        return self.requests[0].start_s

    @property
    def end_s(self) -> float:
        return max(request.end_s for request in self.requests)


class WekaConverter:
    """Feed it the traces of one source in order; native lines go to `sink`."""

    def __init__(self, sink: NativeSink, nested_t: NestedT, header: TraceHeader) -> None:
        self.traces = 0
        self.block_size: int | None = None
        self.nested_t: Counter[str] = Counter()
        self.marker: Counter[str] = Counter()
        self._sink = sink
        self._asked = nested_t
        self._header = header
        self._ids: dict[int, int] = {}
        self._next_id = 1

    def add(self, obj: dict[str, Any], line: int, default_name: str) -> list[str]:
        """Convert one trace; returns doubts. Raises LineError naming the request; nothing is then written."""
        trace = convert_object(obj, _Trace)
        if self.block_size not in (None, trace.block_size):
            raise LineError(
                f"block size {trace.block_size}, where the traces before have {self.block_size}",
                field="block_size",
                hint="one run has one block size: split the file",
            )
        if trace.hash_id_scope not in ("local", "global"):
            raise LineError(f'unknown scope "{trace.hash_id_scope}"; local or global', field="hash_id_scope")
        if trace.hash_id_scope == "local":
            self._ids = {}
        notes: Counter[str] = Counter()
        reading, marker, agent_count = self._readings(trace, notes)
        doubts = _check_totals(trace)
        root = _Agent("", _Entry(t=0.0, type="subagent"), [], [])
        _place(trace.requests, "requests", 0.0, reading, marker, root)
        name = str(trace.id) if trace.id not in (None, "") else default_name
        turns: list[Turn] = []
        for session in _roots(root, notes):
            session.name = self._sink.name(name if session is root else f"{name}.{_agent_name(session)}")
            extra = {"tool_tokens": trace.tool_tokens, "system_tokens": trace.system_tokens} if session is root else {}
            self._session(session, None, trace.block_size, line, extra, notes, turns)
        self._write(turns, trace.block_size)
        if not turns:
            self._sink.dropped["empty_trace"] += 1
        self._sink.dropped["empty_subagent"] += notes.pop("empty_subagent", 0)
        self._sink.notes.update(notes)
        self._sink.notes["totals_differ"] += bool(doubts)
        self.traces += 1
        if agent_count:
            self.nested_t[reading] += agent_count
            if reading == "relative":
                self.marker[marker] += agent_count
        return doubts

    def _readings(self, trace: _Trace, notes: Counter[str]) -> tuple[Reading, Marker, int]:
        agents: list[AgentTimes] = []
        _collect_agents(trace.requests, "requests", agents, notes)
        reading = nested_reading(agents, self._asked) if agents else "relative"
        top: list[AgentTimes] = []
        _collect_agents(trace.requests, "requests", top, Counter(), deep=False)
        ends = [entry.t + (entry.api_time or 0.0) for entry in trace.requests if entry.type != "subagent"]
        return reading, marker_reading(top, ends) if top else "start", len(agents)

    def _write(self, turns: list[Turn], block_size: int) -> None:
        if turns and self.block_size is None:
            self.block_size = block_size
            self._sink.header(msgspec.structs.replace(self._header, block_size=block_size))
        for turn in turns:
            self._sink.turn(turn)

    def _session(
        self,
        session: _Agent,
        parent: tuple[_Agent, int] | None,
        block_size: int,
        line: int,
        extra: dict[str, Any],
        notes: Counter[str],
        turns: list[Turn],
    ) -> None:
        """Append the turns of a session, then those of its sub-agents."""
        if parent is not None:
            self._sink.sub_agents += 1
        children: dict[int, list[_Agent]] = {}
        joins: dict[int, list[_Agent]] = {}
        for agent in session.agents:
            turn = _calling_turn(agent, session.requests, notes)
            agent.name = self._sink.name(f"{session.name}.{_agent_name(agent)}")
            children.setdefault(turn, []).append(agent)
            following = session.requests[turn + 1] if turn + 1 < len(session.requests) else None
            if following is not None and following.start_s >= agent.end_s - ROUNDING_S:
                joins.setdefault(turn + 1, []).append(agent)
                notes["joined"] += 1
            else:
                notes["not_joined"] += 1
        before: list[int] = []
        model: str | None = None
        for number, request in enumerate(session.requests):
            entry = request.entry
            ids = _hash_ids(request, block_size)
            keep = shared_blocks(before, ids)
            before = ids
            waits = joins.get(number, [])
            turns.append(
                Turn(
                    session_id=session.name,
                    turn=number,
                    line=line,
                    parent=TurnRef(parent[0].name, parent[1]) if parent is not None and number == 0 else None,
                    start_s=request.start_s if parent is None and number == 0 else None,
                    delay_s=_delay_s(session, number, parent, waits, notes),
                    after=tuple(agent.name for agent in waits),
                    input_tokens=entry.input,
                    output_tokens=_output_tokens(request, notes),
                    hash_ids=self._renumbered(ids[keep:]),
                    keep_blocks=keep or None,
                    model=entry.model if entry.model and entry.model != model else None,
                    recorded=_recorded(entry),
                    extra=_extra(entry, extra if number == 0 else {}, session.entry if number == 0 else None),
                )
            )
            model = entry.model or model
        for number, agents in children.items():
            for agent in agents:
                self._session(agent, (session, number), block_size, line, {}, notes, turns)

    def _renumbered(self, ids: list[int]) -> tuple[int, ...]:
        known = self._ids
        for block in ids:
            if block not in known:
                known[block] = self._next_id
                self._next_id += 1
        return tuple(map(known.__getitem__, ids))


# ------------------------------------------------------------------------------------------------ one trace's shape


def _collect_agents(
    entries: list[_Entry], path: str, out: list[AgentTimes], notes: Counter[str], *, deep: bool = True
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
            _collect_agents(entry.requests, f"{field}.requests", out, notes)


def _place(entries: list[_Entry], path: str, base_s: float, reading: Reading, marker: Marker, session: _Agent) -> None:
    """Put requests and sub-agents of one level into `session`, in trace time; base_s is when its `t` counts from."""
    for index, entry in enumerate(entries):
        field = f"{path}[{index}]"
        if entry.type != "subagent":
            start_s = base_s + entry.t
            session.requests.append(_Timed(field, entry, start_s, start_s + (entry.api_time or 0.0)))
            continue
        nested = entry.requests or []
        inner_s = 0.0
        if reading == "relative":
            inner_s = base_s + entry.t
            if marker == "end":
                ends = [request.t + (request.api_time or 0.0) for request in nested]
                length = entry.duration_ms / 1000 if entry.duration_ms is not None else max(ends, default=0.0)
                inner_s = max(inner_s - length, 0.0)
        agent = _Agent(field, entry, [], [])
        _place(nested, f"{field}.requests", inner_s, reading, marker, agent)
        if agent.requests:
            session.agents.append(agent)
        else:  # Of one that only called others, those others are what there is to replay.
            session.agents.extend(agent.agents)


def _roots(root: _Agent, notes: Counter[str]) -> list[_Agent]:
    """The root session, and the sub-agents that no request of it can have called."""
    first_s = min((request.start_s for request in root.requests), default=float("inf"))
    own = [agent for agent in root.agents if agent.start_s < first_s - ROUNDING_S]
    notes["own_root"] += len(own)
    root.agents = [agent for agent in root.agents if agent not in own]
    return [root, *own] if root.requests else own


def _calling_turn(agent: _Agent, requests: list[_Timed], notes: Counter[str]) -> int:
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


def _delay_s(
    session: _Agent, number: int, parent: tuple[_Agent, int] | None, waits: list[_Agent], notes: Counter[str]
) -> float:
    """Pause from the end of all the turn waits for to its start, never below 0."""
    request = session.requests[number]
    if number == 0 and parent is None:
        return 0.0
    before = session.requests[number - 1] if number else parent[0].requests[parent[1]] if parent else request
    if request.start_s < before.end_s - ROUNDING_S:
        notes["clipped_pauses"] += number > 0
        return 0.0
    if waits:
        end_s = max(before.end_s, *(agent.end_s for agent in waits))
    elif number and request.entry.think_time is not None:
        return max(request.entry.think_time, 0.0)
    else:
        end_s = before.end_s
        notes["pauses_with_answer"] += before.entry.api_time is None
    return round(max(request.start_s - end_s, 0.0), 6)


def _hash_ids(request: _Timed, block_size: int) -> list[int]:
    entry = request.entry
    if entry.input is None:
        raise LineError("missing; a request has its prompt's length", field=f"{request.field}.in")
    blocks = entry.input // block_size
    if entry.hash_ids is None:
        if blocks:
            raise LineError(
                f"missing, for {entry.input} input tokens: which blocks the prompt shares is not known",
                field=f"{request.field}.hash_ids",
                hint="leave the trace out; without ids it cannot be replayed",
            )
        return []
    if len(entry.hash_ids) != blocks:
        raise LineError(
            f"{len(entry.hash_ids)} block ids for {entry.input} input tokens of block size {block_size}; expected "
            f"{blocks}, one for each full block",
            field=f"{request.field}.hash_ids",
        )
    return entry.hash_ids


def _output_tokens(request: _Timed, notes: Counter[str]) -> int:
    out = request.entry.out
    if out is None:
        raise LineError("missing; a request has its answer's length", field=f"{request.field}.out")
    notes["zero_output"] += out == 0
    return max(out, 1)


def _recorded(entry: _Entry) -> Recorded | None:
    if entry.ttft is None and entry.api_time is None:
        return None
    return Recorded(ttft_s=entry.ttft, e2e_s=entry.api_time)


def _extra(entry: _Entry, trace: dict[str, Any], agent: _Entry | None) -> dict[str, Any]:
    fields = {
        "streamed": entry.type == "s",
        "stop": entry.stop,
        "input_types": entry.input_types,
        "output_types": entry.output_types,
        "subagent_type": agent.subagent_type if agent else None,
        "status": agent.status if agent else None,
        **trace,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _agent_name(agent: _Agent) -> str:
    return str(agent.entry.agent_id) if agent.entry.agent_id not in (None, "") else "agent"


def _check_totals(trace: _Trace) -> list[str]:
    """Where the trace's own totals are not the sums of its requests."""
    if not trace.totals:
        return []
    parent, agents, count = [0, 0], [0, 0], 0

    def add(entries: list[_Entry], sums: list[int]) -> int:
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
