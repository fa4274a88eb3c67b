"""A trace as arrays: what each request is, in order of time, and the runs of blocks it finds touched before."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.traces.blocks import BlockedTrace, Blocking
from kvbench.traces.curve.dominance import Ints
from kvbench.traces.curve.hits import Runs
from kvbench.traces.curve.paths import PathTree
from kvbench.traces.curve.runs import cut


@dataclass(frozen=True)
class Traffic:
    """Requests in order of time (ties: file order); arrays have one entry a request. model: index into models, -1 none.

    repeated_ids: ids that stand after more than one prefix. recorded_trees: of the trees, how many the source's own
    times order.
    """

    runs: Runs
    blocking: Blocking
    start_s: NDArray[np.float64]
    input_tokens: Ints
    sub_agent: NDArray[np.bool_]
    model: Ints
    models: tuple[str, ...]
    unique_blocks: int
    repeated_ids: int
    trees: int
    recorded_trees: int
    other_parts: int

    @property
    def requests(self) -> int:
        return len(self.start_s)


def read_traffic(blocked: BlockedTrace) -> Traffic:
    """One pass over the trace, one tree in memory at a time; then some 100 bytes a request, 8 a distinct block."""
    tree = PathTree()
    nodes, depths, tokens = array("i"), array("q"), array("q")
    starts, agents, models = array("d"), array("b"), array("q")
    names: dict[str | None, int] = {None: -1}
    ends: dict[str, int] = {}
    root: str | None = None
    extend = tree.extend
    for request in blocked.requests():
        if request.root_id != root:
            root = request.root_id
            ends.clear()
        kept = request.kept
        node, depth = extend(ends[request.session_id] if kept else 0, kept, request.new_ids)
        ends[request.session_id] = node
        nodes.append(node)
        depths.append(depth)
        tokens.append(request.input_tokens)
        starts.append(request.start_s)
        agents.append(request.sub_agent)
        models.append(names.setdefault(request.model, len(names) - 1))
    start_s = np.array(starts)
    by_time = np.argsort(start_s, kind="stable")
    pool = np.array(tree.pool)
    _, times = np.unique(pool, return_counts=True)
    return Traffic(
        runs=cut(tree, np.array(nodes)[by_time], np.array(depths)[by_time]),
        blocking=blocked.blocking(),
        start_s=start_s[by_time],
        input_tokens=np.array(tokens)[by_time],
        sub_agent=np.array(agents, bool)[by_time],
        model=np.array(models)[by_time],
        models=tuple(name for name in names if name is not None),
        unique_blocks=len(pool),
        repeated_ids=int((times > 1).sum()),
        trees=blocked.trace.tree_count,
        recorded_trees=blocked.recorded_trees,
        other_parts=blocked.other_parts,
    )
