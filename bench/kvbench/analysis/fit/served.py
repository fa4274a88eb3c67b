"""A run's requests as a cache saw them: chains of blocks in the order of sending, and what each was reported to hit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.model import Record
from kvbench.runs.blocks import BlockRow, read_blocks
from kvbench.runs.reader import Run
from kvbench.traces.curve.hits import Order, Runs, find
from kvbench.traces.curve.paths import PathTree
from kvbench.traces.curve.runs import cut

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_OUTPUT_BASE = 1 << 53
"""Numbers of blocks of generated text, which nothing finds again: above those of prompts."""


@dataclass(frozen=True)
class Served:
    """What a cache saw, in order of time: an entry when a request was sent, which looks up its prompt, and one when it
    ended, which leaves its blocks and those it generated as the latest used.

    most: blocks it may hit (at least one token is computed). observed: cached tokens; -1 = an end, or not reported, or
    failed. root: index of its session tree. held: for each run of blocks, blocks that requests held at that time which
    had begun before it was last touched, and those partly full since the send before: they take room and are not in the
    order of eviction. written: for each run of blocks, blocks that were computed since it was last touched, what was
    reported as cached being found and not computed. pinned_blocks: in use by others, as a mean over the sends.
    """

    block_size: int
    runs: Runs
    most: Ints
    observed: Ints
    root: Ints
    roots: int
    held: Ints
    written: Ints
    pinned_blocks: float

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.observed >= 0

    def bounds(self, order: Order = "leaf-first", others: float = 0.0) -> tuple[Ints, Floats, Floats]:
        """(request, above, whole) of each run of blocks: found in part above `above` blocks, all of it from `whole`.

        others: blocks that other traffic writes for each one that is computed here.
        """
        found = find(self.runs, order)
        room: Floats = self.held + others * self.written
        return self.runs.request, np.asarray(found.above + room), np.asarray(found.whole + room)


class _Sent(NamedTuple):
    """One request: its chain's end in the tree when sent, and when it ended."""

    record: Record
    node: int
    depth: int
    end_node: int
    end_depth: int
    most: int
    in_part: bool


def served(run: Run) -> Served | None:
    """None where the run has no blocks.jsonl: nobody knew the token ids, or the hit rule has no blocks."""
    return served_of(read_blocks(run.path), run.records)


def served_of(rows: Iterable[BlockRow], records: Iterable[Record]) -> Served | None:
    """Of a run that was, or is only thought of. rows: in the order of sending inside each session."""
    tree = PathTree()
    size, sent = _read(rows, records, tree)
    if not sent:
        return None
    names: dict[str, int] = {}
    events: list[tuple[int, bool, int]] = []
    for i, one in enumerate(sent):
        clock = one.record.clock
        at = clock.sent if clock.sent is not None else clock.due
        events += [(at, True, i), (max(at, clock.end if clock.end is not None else at), False, i)]
    events.sort(key=lambda e: (e[0], e[2], not e[1]))
    nodes, depths, most, observed, roots = array("i"), array("q"), array("q"), array("q"), array("q")
    running: dict[int, tuple[int, int]] = {}
    running_at: list[list[tuple[int, int]]] = []
    partly: set[int] = set()
    partly_full, written = array("q"), array("q")
    in_part, pinned = 0, 0
    for number, (_, begins, i) in enumerate(events):
        one = sent[i]
        record = one.record
        running.pop(i, None)
        partly.discard(i)
        running_at.append(list(running.values()) if begins else [])
        pinned += sum(depth for _, depth in running_at[-1])
        partly_full.append(in_part)
        if begins:
            running[i] = (number, one.end_depth)
            if one.in_part:
                partly.add(i)
            in_part = len(partly)
        nodes.append(one.node if begins else one.end_node)
        depths.append(one.depth if begins else one.end_depth)
        most.append(one.most if begins else 0)
        cached = record.usage.cached_tokens if begins and record.ok else None
        observed.append(-1 if cached is None else cached)
        written.append(one.depth - (cached or 0) // size if begins else one.end_depth - one.depth)
        roots.append(names.setdefault(record.root_id or record.session_id, len(names)))
    runs = cut(tree, np.array(nodes, np.int32), np.array(depths, np.int64))
    return Served(
        block_size=size,
        runs=runs,
        most=np.array(most, np.int64),
        observed=np.array(observed, np.int64),
        root=np.array(roots, np.int64),
        roots=len(names),
        held=_held(runs, running_at) + np.array(partly_full, np.int64)[runs.request],
        written=_since(runs, np.cumsum(np.array(written, np.int64))),
        pinned_blocks=pinned / len(sent),
    )


def _read(rows: Iterable[BlockRow], records_of: Iterable[Record], tree: PathTree) -> tuple[int, list[_Sent]]:
    records = {(r.request_id, r.attempt): r for r in records_of}
    ends: dict[str, int] = {}
    sent: list[_Sent] = []
    size, outputs = 0, _OUTPUT_BASE
    for row in rows:
        record = records.get((row.request_id, row.attempt))
        if record is None:
            continue
        size = row.block_size
        start = ends.get(row.session_id, 0) if row.kept else 0
        node, depth = tree.extend(start, row.kept, row.new[: max(0, row.own - row.kept)])
        end_node, end_depth = tree.extend(node, depth, row.new[max(0, row.own - row.kept) :])
        ends[row.session_id] = end_node
        generated = record.usage.output_tokens or len(record.clock.chunks)
        tokens = row.input_tokens + max(0, generated - 1)
        extra = max(0, tokens // size - end_depth)
        if extra:
            end_node, end_depth = tree.extend(end_node, end_depth, range(outputs, outputs + extra))
            outputs += extra
        sent.append(
            _Sent(record, node, depth, end_node, end_depth, max(0, row.input_tokens - 1) // size, tokens % size > 0)
        )
    return size, sent


def _held(runs: Runs, running_at: list[list[tuple[int, int]]]) -> Ints:
    held = np.zeros(len(runs.request), np.int64)
    for k, (event, previous) in enumerate(zip(runs.request.tolist(), runs.previous.tolist(), strict=True)):
        for began, blocks in running_at[event]:
            if began < previous:
                held[k] += blocks
    return held


def _since(runs: Runs, written: Ints) -> Ints:
    """Of a sum over events, what came between a run's last touch and its request."""
    since: Ints = np.maximum(0, written[np.maximum(runs.request - 1, 0)] - written[runs.previous])
    return since
