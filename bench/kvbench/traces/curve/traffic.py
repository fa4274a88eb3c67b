"""A trace as arrays: what each request is, in order of time, and the runs of blocks it finds touched before."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.traces.blocks import BlockedTrace, Blocking, BlockRequest
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

    @property
    def requests(self) -> int:
        return len(self.start_s)

    @property
    def ages_s(self) -> NDArray[np.float64]:
        """How long before each run's request it was touched, to the microsecond: starts are sums of fractions, and a
        pause of exactly a time to live must not come out longer than it."""
        return np.round(self.start_s[self.runs.request] - self.start_s[self.runs.previous], 6)


class TrafficReader:
    """Feed it a trace's requests as they are read; some 100 bytes a request, 8 a distinct block."""

    def __init__(self) -> None:
        self.paths = PathTree()
        self.nodes = array("i")
        """Where each request's chain ends in the paths, beside depths; in the order of reading."""
        self.depths = array("q")
        self._tokens, self._starts, self._agents, self._models = array("q"), array("d"), array("b"), array("q")
        self._names: dict[str | None, int] = {None: -1}
        self._ends: dict[str, int] = {}
        self._root: str | None = None

    @property
    def distinct_blocks(self) -> int:
        """So far; those that a request adds are its last ones, and it finds all before them."""
        return len(self.paths.pool)

    def add(self, request: BlockRequest) -> None:
        if request.root_id != self._root:
            self._root = request.root_id
            self._ends.clear()
        kept = request.kept
        node, depth = self.paths.extend(self._ends[request.session_id] if kept else 0, kept, request.new_ids)
        self._ends[request.session_id] = node
        self.nodes.append(node)
        self.depths.append(depth)
        self._tokens.append(request.input_tokens)
        self._starts.append(request.start_s)
        self._agents.append(request.sub_agent)
        self._models.append(self._names.setdefault(request.model, len(self._names) - 1))

    def traffic(self, blocked: BlockedTrace) -> Traffic:
        """What was read, of `blocked`."""
        start_s = np.array(self._starts)
        by_time = np.argsort(start_s, kind="stable")
        pool = np.array(self.paths.pool)
        return Traffic(
            runs=cut(self.paths, np.array(self.nodes)[by_time], np.array(self.depths)[by_time]),
            blocking=blocked.blocking(),
            start_s=start_s[by_time],
            input_tokens=np.array(self._tokens)[by_time],
            sub_agent=np.array(self._agents, bool)[by_time],
            model=np.array(self._models)[by_time],
            models=tuple(name for name in self._names if name is not None),
            unique_blocks=len(pool),
            repeated_ids=_repeated(pool),
            trees=blocked.trace.tree_count,
            recorded_trees=blocked.recorded_trees,
        )


def _repeated(ids: Ints) -> int:
    """How many values are there more than once."""
    if not len(ids):
        return 0
    low, high = int(ids.min()), int(ids.max())
    if high - low < 8 * len(ids):  # numbered ids: counting them is much quicker than sorting
        return int((np.bincount(ids - low) > 1).sum())
    _, times = np.unique(ids, return_counts=True)
    return int((times > 1).sum())


def read_traffic(blocked: BlockedTrace) -> Traffic:
    """One pass over the trace, one tree in memory at a time."""
    reader = TrafficReader()
    for request in blocked.requests():
        reader.add(request)
    return reader.traffic(blocked)
