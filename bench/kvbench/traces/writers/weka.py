"""Write Weka traces: an object a tree, sub-agents nested where they were called, ids of whole blocks numbered from 1.

The format says neither which request called a sub-agent nor which waits for it: readers take both from times. What a
reader (formats/weka_shape.py) takes is compared with what the trace says, and differences are counted. An entry's `t`
is its sub-agent's start, and nested times count from there; where a reader would take that for the end (as in the
public git corpus), the end is written, and where that is no help either, no duration.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Session, Tree, Turn
from kvbench.traces.formats.weka_shape import Agent, Entry, calling_turn, collect_agents, joining_turn, place
from kvbench.traces.formats.weka_times import AgentTimes, Marker, marker_reading, nested_reading
from kvbench.traces.lines import LineError
from kvbench.traces.timeline import timeline
from kvbench.traces.writers.survey import Survey

SAID = {
    "starts": "starts of traces: {n} (each begins at its own time 0)",
    "shared": "blocks that an earlier trace has too: {n} (ids hold for one trace)",
    "dates": "turns that the source dates itself: {n} (t is when each starts by the pauses and answers before it)",
    "tails": "ids of last, partial blocks: {n} (ids are of whole blocks)",
    "joins": "joins that times do not show: {n}",
    "joins_seen": "sub-agents that a reader will take their caller to wait for: {n} (it went on after their end)",
    "callers": "sub-agents that a reader will take for called by a later request: {n} (they began after its end)",
    "no_model": "requests without a model: {n} (the source names none)",
}
UNKNOWN_KIND = "unknown"
"""Of a sub-agent whose type the source does not say; readers demand one."""
_EXTRA = frozenset(
    {"streamed", "stop", "input_types", "output_types", "subagent_type", "status", "tool_tokens", "system_tokens"}
)

_Dating = tuple[Marker, bool]
_DATINGS: tuple[_Dating, ...] = (("start", True), ("end", True), ("start", False))
"""What an entry's t is, and whether it has its sub-agent's duration."""


class _Placed(msgspec.Struct):
    """A session and its entries. start_s: its first turn's; base_s: what the times of its own entry count from."""

    session: Session
    start_s: float
    base_s: float
    end_s: float
    entry: Entry
    """Of the root: one that is not written."""


class WekaTraces:
    """Trees with hash ids, one object each."""

    def __init__(self, block_size: int, path: str) -> None:
        self.notes: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._block_size = block_size
        self._path = path
        self._written: set[int] = set()
        """Blocks of the trees before."""
        self._encode = msgspec.json.Encoder().encode

    def line(self, tree: Tree) -> bytes:
        """Raises InputError for a turn whose answer's length is not known."""
        numbers: dict[int, int] = {}
        placed = self._placed(tree, numbers)
        root = placed[0]
        agents = placed[1:]
        dating = _dated(root, agents)
        self._compare(tree, placed, dating)
        self.lost["shared"] += sum(block in self._written for block in numbers)
        self._written.update(numbers)
        entries = root.entry.requests or []
        extra = tree.sessions[0].turns[0].extra
        known = {name: extra[name] for name in ("tool_tokens", "system_tokens") if name in extra}
        return (
            self._encode(
                {
                    "id": tree.root_id,
                    "models": root.entry.models or [],
                    "block_size": self._block_size,
                    "hash_id_scope": "local",
                    **known,
                    "requests": entries,
                    "totals": _totals(placed),
                }
            )
            + b"\n"
        )

    def _placed(self, tree: Tree, numbers: dict[int, int]) -> list[_Placed]:
        starts: dict[tuple[int, int], float] = {}
        ends: dict[tuple[int, int], float] = {}
        for start_s, number, at, end_s in timeline(tree):
            starts[number, at], ends[number, at] = start_s, end_s
        index = {session.session_id: number for number, session in enumerate(tree.sessions)}
        joined = {name for session in tree.sessions for turn in session.turns for name in turn.after}
        placed: list[_Placed] = []
        for number, session in enumerate(tree.sessions):
            first_s = starts[number, 0]
            parent = session.parent
            above = starts[index[parent.session_id], 0] if parent is not None else first_s
            entry = self._agent(session, joined) if parent is not None else Entry(t=0.0, type="subagent")
            times = [(starts[number, at], ends[number, at]) for at in range(len(session.turns))]
            entry.requests = self._requests(session, times, numbers)
            entry.models = list(dict.fromkeys(request.model for request in entry.requests if request.model))
            end_s = max(end_s for _, end_s in times)
            placed.append(_Placed(session, first_s, above, end_s, entry))
        # Last to first, so that those behind one request end up in the order in which they begin.
        for child in sorted(placed[1:], key=lambda each: each.start_s)[::-1]:
            parent = child.session.parent
            assert parent is not None
            number = index[parent.session_id]
            _insert(
                child,
                placed[number],
                parent.turn,
                [starts[number, at] for at in range(len(placed[number].session.turns))],
            )
        return placed

    def _agent(self, session: Session, joined: set[str]) -> Entry:
        first = session.turns[0]
        assert first.parent is not None
        name = session.session_id.removeprefix(f"{first.parent.session_id}.")
        status = "completed" if session.session_id in joined else "async_launched"
        return Entry(
            t=0.0,
            type="subagent",
            agent_id=name,
            subagent_type=_text(first, "subagent_type") or UNKNOWN_KIND,
            status=_text(first, "status") or status,
        )

    def _requests(self, session: Session, times: list[tuple[float, float]], numbers: dict[int, int]) -> list[Entry]:
        entries: list[Entry] = []
        chain: list[int] = []
        model: str | None = None
        for turn, (start_s, _) in zip(session.turns, times, strict=True):
            model = turn.model or model
            del chain[turn.keep_blocks or 0 :]
            chain.extend(turn.hash_ids or ())
            assert turn.input_tokens is not None
            whole = turn.input_tokens // self._block_size
            self.lost["tails"] += len(chain) - whole
            self.lost["extra"] += len(turn.extra.keys() - _EXTRA)
            self.notes["no_model"] += model is None
            pause_s = start_s - times[turn.turn - 1][1] if turn.turn else 0.0
            entries.append(
                Entry(
                    t=_seconds(start_s - times[0][0]),
                    type="s" if _streamed(turn) else "n",
                    model=model,
                    input=turn.input_tokens,
                    out=self._output_tokens(turn),
                    hash_ids=[numbers.setdefault(block, len(numbers) + 1) for block in chain[:whole]],
                    api_time=turn.recorded.e2e_s if turn.recorded is not None else None,
                    think_time=turn.delay_s if turn.turn and not turn.after else _seconds(pause_s),
                    ttft=turn.recorded.ttft_s if turn.recorded is not None else None,
                    stop=_text(turn, "stop"),
                    input_types=_texts(turn, "input_types"),
                    output_types=_texts(turn, "output_types"),
                )
            )
        return entries

    def _output_tokens(self, turn: Turn) -> int:
        if turn.output_tokens is None:
            raise InputError(
                f'turn {turn.turn} of session "{turn.session_id}" does not say how long its answer was, and a Weka '
                "request does",
                path=self._path,
                line=turn.line or None,
                field="output_tokens",
                hint="convert to native or mooncake, which can leave it open",
            )
        return turn.output_tokens

    def _compare(self, tree: Tree, placed: list[_Placed], dating: Marker) -> None:
        """Count where a reader will see other callers and joins than the trace has."""
        if len(placed) == 1:
            return
        root = Agent("", Entry(t=0.0, type="subagent"), [], [])
        place(placed[0].entry.requests or [], "requests", "relative", dating, root)
        sessions = {id(each.entry): each.session for each in placed}
        joins = {
            (session.session_id, turn.turn, name)
            for session in tree.sessions
            for turn in session.turns
            for name in turn.after
        }
        seen: set[tuple[str, int, str]] = set()
        levels = [(placed[0].session, root)]
        while levels:
            above, level = levels.pop()
            for agent in level.agents:
                session = sessions[id(agent.entry)]
                called = calling_turn(agent, level.requests, Counter())
                assert session.parent is not None
                self.notes["callers"] += (above.session_id, called) != (session.parent.session_id, session.parent.turn)
                waiting = joining_turn(agent, level.requests, called)
                if waiting is not None:
                    seen.add((above.session_id, waiting, session.session_id))
                levels.append((session, agent))
        self.lost["joins"] += len(joins - seen)
        self.notes["joins_seen"] += len(seen - joins)


def lost(found: Survey) -> dict[str, int]:
    """What a survey tells; the rest is counted while traces are written."""
    return {
        "texts": found.with_text,
        "tools": found.with_tools,
        "starts": found.late_starts,
        "dates": found.with_dates,
        "usage": found.with_usage,
        "extra": found.head_extra,
    }


def _insert(child: _Placed, above: _Placed, called: int, starts: list[float]) -> None:
    """Put a sub-agent behind the requests that had begun when it began, its caller at least."""
    before = max(called, *(at for at, start_s in enumerate(starts) if start_s <= child.start_s))
    entries = above.entry.requests
    assert entries is not None
    at = [i for i, entry in enumerate(entries) if entry.type != "subagent"][before]
    entries.insert(at + 1, child.entry)


def _dated(root: _Placed, agents: list[_Placed]) -> Marker:
    """Date the entries of sub-agents so that a reader dates them as they were; returns what their `t` is."""
    if not agents:
        return "start"
    entries = root.entry.requests or []
    ends = [entry.t + (entry.api_time or 0.0) for entry in entries if entry.type != "subagent"]
    marker: Marker = "start"
    for marker, durations in _DATINGS:
        for agent in agents:
            length_ms = round((agent.end_s - agent.start_s) * 1000)
            at_s = agent.start_s - agent.base_s + (length_ms / 1000 if marker == "end" else 0.0)
            agent.entry.t, agent.entry.duration_ms = _seconds(at_s), length_ms if durations else None
        times: list[AgentTimes] = []
        collect_agents(entries, "requests", times, Counter())
        top: list[AgentTimes] = []
        collect_agents(entries, "requests", top, Counter(), deep=False)
        try:
            fits = nested_reading(times, "auto") == "relative"
        except LineError:
            fits = False
        if fits and marker_reading(top, ends) == marker:
            break
    return marker


def _totals(placed: list[_Placed]) -> dict[str, Any]:
    sums = []
    for group in (placed[:1], placed[1:]):
        requests = [request for each in group for request in each.entry.requests or () if request.type != "subagent"]
        sums.append({"input": sum(r.input or 0 for r in requests), "output": sum(r.out or 0 for r in requests)})
    combined = {side: sums[0][side] + sums[1][side] for side in sums[0]}
    return {
        "parent_tokens": sums[0],
        "subagent_tokens": sums[1],
        "combined_tokens": combined,
        "subagent_count": len(placed) - 1,
    }


def _streamed(turn: Turn) -> bool:
    said = turn.extra.get("streamed")
    return bool(said) if said is not None else turn.recorded is not None and turn.recorded.ttft_s is not None


def _text(turn: Turn, name: str) -> str | None:
    value = turn.extra.get(name)
    return value if isinstance(value, str) else None


def _texts(turn: Turn, name: str) -> list[str] | None:
    value = turn.extra.get(name)
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def _seconds(value: float) -> float:
    """To the microsecond: what is finer is the rounding of sums."""
    return round(value, 6)
