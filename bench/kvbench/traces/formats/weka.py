"""Weka / kv-cache-tester traces: one JSON object a trace, a root session with its sub-agents, block ids and no text.

Ids are of full blocks and local to their trace. They are numbered anew in the order in which they first appear, on
and on through a file, so that ids of different traces never meet and a lone trace that counts from 1 keeps its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvbench.model import Recorded, Turn, TurnRef
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.chains import BROKEN, BROKEN_SENTENCE, Chains
from kvbench.traces.formats.sink import shared_blocks
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.weka_shape import (
    ROUNDING_S,
    Agent,
    Entry,
    Timed,
    WekaTrace,
    calling_turn,
    collect_agents,
    joining_turn,
    place,
    root_sessions,
    totals_doubts,
)
from kvbench.traces.formats.weka_times import AgentTimes, Marker, Reading, marker_reading, nested_reading
from kvbench.traces.lines import LineError, convert_object


class WekaConverter:
    """The traces of one source, in order; each an object of its own, or one a line."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._nested_t: Counter[str] = Counter()
        self._marker: Counter[str] = Counter()
        self._sink = target.sink
        self._asked = target.options.nested_t
        self._global_ids: dict[int, int] = {}
        self._ids = self._global_ids
        self._global_chains = Chains()
        self._chains = self._global_chains
        self._next_id = 1

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            try:
                for doubt in self._add(obj, line, file.path.stem):
                    self._import.log.warning(line, doubt)
            except LineError as error:
                self._import.error(line, error)
            del obj  # a trace is large: not two of them at a time

    def end(self) -> None:
        done = self._import
        done.nested_t, done.marker = dict(self._nested_t), dict(self._marker)
        if done.block_size is not None:
            done.block_size_from = "of the source"
        if done.units > 1:
            done.facts["ids and times"] = (
                "block ids count on through the file, because each trace has its own; every trace starts at its own "
                "time 0 (--sessions or --rate spread them)"
            )
        if self._nested_t:
            asked = "as asked" if self._asked != "auto" else "the reading that fits; --nested-t says otherwise"
            done.facts["times inside sub-agents"] = f"{_counts(self._nested_t)} ({asked})"
        if self._marker:
            done.facts["the time of a sub-agent's entry"] = f"its {_counts(self._marker)}"

    def _add(self, obj: dict[str, Any], line: int, default_name: str) -> list[str]:
        """Convert one trace; returns doubts. Raises LineError naming the request; nothing is then written."""
        trace = convert_object(obj, WekaTrace)
        if self._import.block_size not in (None, trace.block_size):
            raise LineError(
                f"block size {trace.block_size}, where the traces before have {self._import.block_size}",
                field="block_size",
                hint="one run has one block size: split the file",
            )
        if trace.hash_id_scope not in ("local", "global"):
            raise LineError(f'unknown scope "{trace.hash_id_scope}"; local or global', field="hash_id_scope")
        local = trace.hash_id_scope == "local"
        self._ids = {} if local else self._global_ids
        self._chains = Chains() if local else self._global_chains
        notes: Counter[str] = Counter()
        reading, marker, agent_count = self._readings(trace, notes)
        doubts = totals_doubts(trace)
        root = Agent("", Entry(t=0.0, type="subagent"), [], [])
        place(trace.requests, "requests", reading, marker, root)
        name = str(trace.id) if trace.id not in (None, "") else default_name
        turns: list[Turn] = []
        for session in root_sessions(root, notes):
            session.name = self._sink.name(name if session is root else f"{name}.{_agent_name(session)}")
            extra = {"tool_tokens": trace.tool_tokens, "system_tokens": trace.system_tokens} if session is root else {}
            self._session(session, None, session.start_s, trace.block_size, line, extra, notes, turns)
        self._write(turns, trace.block_size)
        if not turns:
            self._import.drop("empty_trace", line, "a trace without any request")
        for _ in range(notes.pop("empty_subagent", 0)):
            self._import.drop("empty_subagent", line, "a sub-agent without any request")
        self._sink.notes.update(notes)
        self._sink.notes["totals_differ"] += bool(doubts)
        self._import.units += 1
        if agent_count:
            self._nested_t[reading] += agent_count
            if reading == "relative":
                self._marker[marker] += agent_count
        return doubts

    def _readings(self, trace: WekaTrace, notes: Counter[str]) -> tuple[Reading, Marker, int]:
        agents: list[AgentTimes] = []
        collect_agents(trace.requests, "requests", agents, notes)
        reading = nested_reading(agents, self._asked) if agents else "relative"
        top: list[AgentTimes] = []
        collect_agents(trace.requests, "requests", top, Counter(), deep=False)
        ends = [entry.t + (entry.api_time or 0.0) for entry in trace.requests if entry.type != "subagent"]
        return reading, marker_reading(top, ends) if top else "start", len(agents)

    def _write(self, turns: list[Turn], block_size: int) -> None:
        if turns and self._import.block_size is None:
            self._import.block_size = block_size
            self._sink.header(msgspec.structs.replace(self._import.header, block_size=block_size))
        for turn in turns:
            self._sink.turn(turn)

    def _session(
        self,
        session: Agent,
        parent: tuple[Agent, int] | None,
        tree_s: float,
        block_size: int,
        line: int,
        extra: dict[str, Any],
        notes: Counter[str],
        turns: list[Turn],
    ) -> None:
        """Append the turns of a session, then those of its sub-agents."""
        if parent is not None:
            self._sink.sub_agents += 1
        children: dict[int, list[Agent]] = {}
        joins: dict[int, list[Agent]] = {}
        for agent in session.agents:
            turn = calling_turn(agent, session.requests, notes)
            agent.name = self._sink.name(f"{session.name}.{_agent_name(agent)}")
            children.setdefault(turn, []).append(agent)
            waiting = joining_turn(agent, session.requests, turn)
            if waiting is not None:
                joins.setdefault(waiting, []).append(agent)
                notes["joined"] += 1
            else:
                notes["not_joined"] += 1
        before: list[int] = []
        model: str | None = None
        for number, request in enumerate(session.requests):
            entry = request.entry
            ids = _hash_ids(request, block_size)
            keep = shared_blocks(before, ids)
            notes[BROKEN] += self._chains.broken(ids, keep)
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
                    recorded=_recorded(request, tree_s),
                    extra=_extra(entry, extra if number == 0 else {}, session.entry if number == 0 else None),
                )
            )
            model = entry.model or model
        for number, agents in children.items():
            for agent in agents:
                self._session(agent, (session, number), tree_s, block_size, line, {}, notes, turns)

    def _renumbered(self, ids: list[int]) -> tuple[int, ...]:
        known = self._ids
        for block in ids:
            if block not in known:
                known[block] = self._next_id
                self._next_id += 1
        return tuple(map(known.__getitem__, ids))


def _delay_s(
    session: Agent, number: int, parent: tuple[Agent, int] | None, waits: list[Agent], notes: Counter[str]
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
    elif number and request.entry.think_time is not None and before.entry.api_time is not None:
        # Behind a request whose end was not recorded, think_time counts from the last end that was.
        return max(request.entry.think_time, 0.0)
    else:
        end_s = before.end_s
        notes["pauses_with_answer"] += before.entry.api_time is None
    return round(max(request.start_s - end_s, 0.0), 6)


def _hash_ids(request: Timed, block_size: int) -> list[int]:
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


def _output_tokens(request: Timed, notes: Counter[str]) -> int:
    out = request.entry.out
    if out is None:
        raise LineError("missing; a request has its answer's length", field=f"{request.field}.out")
    notes["zero_output"] += out == 0
    return max(out, 1)


def _recorded(request: Timed, tree_s: float) -> Recorded:
    entry = request.entry
    at_s = round(max(request.written_s - tree_s, 0.0), 6)
    return Recorded(at_s=at_s, ttft_s=entry.ttft, e2e_s=entry.api_time)


def _extra(entry: Entry, trace: dict[str, Any], agent: Entry | None) -> dict[str, Any]:
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


def _agent_name(agent: Agent) -> str:
    return str(agent.entry.agent_id) if agent.entry.agent_id not in (None, "") else "agent"


def _counts(readings: Counter[str]) -> str:
    return ", ".join(f"{how} in {n:,}" for how, n in sorted(readings.items()))


def _matches(head: Head) -> bool:
    fields = head.fields()
    return ("requests" in fields and not fields & {"turns", "kvbench_trace"}) or "hash_id_scope" in fields


WEKA = Format(
    name="weka",
    about="Weka / kv-cache-tester",
    unit="trace",
    matches=_matches,
    converter=WekaConverter,
    notes={
        BROKEN: BROKEN_SENTENCE,
        "clipped_pauses": "requests that began before the one they follow had ended: {n} (they follow without a pause)",
        "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the trace does not say how long it "
        "took)",
        "joined": "sub-agents that ended before their parent's next request: {n} (it waits for them)",
        "not_joined": "sub-agents that ran on beside their parent: {n} (nothing waits for them)",
        "started_early": "sub-agents that began while the request before them still ran: {n} (they start at its end)",
        "own_root": "sub-agents that began before their parent's first request: {n} (they start on their own, "
        "as roots)",
        "totals_differ": "traces whose totals are not the sums of their requests: {n}",
        "empty_trace": "traces without any request: {n}",
        "empty_subagent": "sub-agents without any request: {n}",
    },
)
