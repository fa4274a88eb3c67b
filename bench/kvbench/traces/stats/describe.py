"""A trace described from one pass over its trees, one tree in memory at a time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np

from kvbench.model import Tree
from kvbench.traces.blocks import BlockedTrace, BlockRequest
from kvbench.traces.curve.traffic import TrafficReader
from kvbench.traces.native import TraceFile
from kvbench.traces.stats.overtime import Load, load
from kvbench.traces.stats.reuse import Ceiling, Sharing, Turns, ceiling, sharing
from kvbench.traces.stats.totals import Totals, TotalsCounter

DEFAULT_TTL_S = 300.0


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    """totals: what the lines say. The rest is about blocks of block_size tokens, which `tokens` says the source of.

    unique_blocks, ceiling, sharing and the load's working set are None where the trace's source does not know which
    prompts begin alike. text_doubt: where the text is not all that was sent.
    """

    totals: Totals
    block_size: int
    tokens: str
    text_doubt: str | None
    unique_blocks: int | None
    ceiling: Ceiling | None
    sharing: Sharing | None
    load: Load


def trace_stats(trace: TraceFile, *, ttl_s: float = DEFAULT_TTL_S) -> TraceStats:
    """ttl_s: what pauses are held against, and for how long a touched block belongs to the working set."""
    counter = TotalsCounter(trace, ttl_s)
    blocked = BlockedTrace(trace)
    reader, seen = TrafficReader(), _Seen()

    def trees() -> Iterator[Tree]:
        for tree in trace.trees():
            counter.add_tree(tree)
            yield tree

    for request in blocked.requests(trees()):
        reader.add(request)
        seen.add(request)
    traffic = reader.traffic(blocked)
    known = trace.header.prefixes != "unknown"
    by_time = np.argsort(np.array(seen.starts_s), kind="stable")
    return TraceStats(
        totals=counter.result(),
        block_size=blocked.block_size,
        tokens=traffic.blocking.tokens,
        text_doubt=blocked.text_doubt(),
        unique_blocks=traffic.unique_blocks if known else None,
        ceiling=ceiling(traffic, seen.turns, by_time) if known else None,
        sharing=sharing(reader, seen.turns, blocked.block_size) if known else None,
        load=load(
            traffic,
            session_begin_s=seen.session_begin_s,
            session_end_s=seen.session_end_s,
            ends_s=np.array(seen.ends_s)[by_time].tolist(),
            all_dated=not counter.undated,
            ttl_s=ttl_s,
            working_set=known,
        ),
    )


class _Seen:
    """What the requests say of time and of the turn before, in the order of reading."""

    def __init__(self) -> None:
        self.turns = Turns(array("q"), array("q"), array("q"), array("q"), [])
        self.starts_s, self.ends_s = array("d"), array("d")
        self.session_begin_s, self.session_end_s = array("d"), array("d")
        self._root: str | None = None
        self._sessions: dict[str, tuple[int, BlockRequest]] = {}

    def add(self, request: BlockRequest) -> None:
        if request.root_id != self._root:
            self._root = request.root_id
            self._sessions.clear()
        name, turns = request.session_id, self.turns
        number, before = self._sessions.get(name, (len(self.session_begin_s), None))
        if before is None:
            self.session_begin_s.append(request.start_s)
            self.session_end_s.append(request.end_s)
            turns.names.append(name)
        self.session_end_s[number] = max(self.session_end_s[number], request.end_s)
        self._sessions[name] = number, request
        turns.kept.append(request.kept)
        turns.before_input.append(0 if before is None else before.input_tokens)
        turns.before_output.append(-1 if before is None or before.output_tokens is None else before.output_tokens)
        turns.sessions.append(number)
        self.starts_s.append(request.start_s)
        self.ends_s.append(request.end_s)
