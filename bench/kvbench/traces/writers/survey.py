"""What a trace holds that a target may have no place for: one pass over its trees, one in memory at a time."""

from __future__ import annotations

import msgspec

from kvbench.model import Session, Tree, Turn
from kvbench.traces.native import TraceFile


class Survey(msgspec.Struct):
    """Counts of turns, unless the name says otherwise."""

    trees: int = 0
    sessions: int = 0
    turns: int = 0
    sub_agents: int = 0
    """Sessions."""
    joins: int = 0
    late_starts: int = 0
    """Trees that do not start at trace time 0."""
    with_text: int = 0
    with_hash_ids: int = 0
    with_tools: int = 0
    """Of those with hash ids: schemas beside the ids."""
    with_model: int = 0
    with_dates: int = 0
    """at_s."""
    with_times: int = 0
    """ttft_s or e2e_s."""
    with_usage: int = 0
    """cached_tokens or a usage object."""
    head_extra: int = 0
    """Fields the native format does not know, of the header and shared prompts; those of turns in turn_extra."""
    turn_extra: int = 0
    without_output: int = 0
    largest_id: int = -1
    models: dict[str, None] = {}

    def add(self, tree: Tree) -> None:
        self.trees += 1
        self.sessions += len(tree.sessions)
        self.sub_agents += len(tree.sessions) - 1
        self.late_starts += tree.start_s != 0
        for session in tree.sessions:
            self._session(session)

    def _session(self, session: Session) -> None:
        model: str | None = None
        for turn in session.turns:
            model = turn.model or model
            self.with_model += model is not None
            if turn.model is not None:
                self.models[turn.model] = None
            self._turn(turn)

    def _turn(self, turn: Turn) -> None:
        self.turns += 1
        self.joins += bool(turn.after)
        self.without_output += turn.output_tokens is None
        self.turn_extra += len(turn.extra)
        if turn.recorded is not None:
            done = turn.recorded
            self.with_dates += done.at_s is not None
            self.with_times += done.ttft_s is not None or done.e2e_s is not None
            self.with_usage += done.cached_tokens is not None or done.usage is not None
        if turn.hash_ids is not None:
            self.with_hash_ids += 1
            self.with_tools += bool(turn.tools)
            self.largest_id = max(self.largest_id, max(turn.hash_ids, default=-1))
            return
        self.with_text += 1


def survey(trace: TraceFile) -> Survey:
    found = Survey(head_extra=len(trace.header.extra) + sum(len(prompt.extra) for prompt in trace.prefixes.values()))
    for tree in trace.trees():
        found.add(tree)
    return found
