"""Runs to hits: for each run the capacity from which it is found, then sums over runs for any capacity.

The cache is LRU over blocks that stand for whole prefixes; a lookup ends at the first block that is not there, and a
request then touches all of its blocks, last to first (leaf-first: the tail is the oldest) or first to last (root-first:
the head is).

Let N(p) be the number of blocks last touched after request p, as request t finds them: all blocks of the requests
between p and t, less those of them that were touched again, which are the runs i with request_i < t and previous_i > p.
Of a run last touched by p, leaf-first finds clip(C - N(p), 0, blocks) in a cache of C blocks: its own blocks lie in
order, and none of p's before them is left. Root-first finds all of it or nothing: its head is the oldest of all that p
touched last, and is there from C = N(p - 1), the blocks last touched by p or later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.traces.curve.dominance import Ints, earlier_greater

Order = Literal["leaf-first", "root-first"]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Runs:
    """What requests, numbered in order of time, find touched before. One entry a run, by request.

    request; previous: the request that touched the run's blocks last; blocks: how many they are. Within a request the
    entries go from the deepest run to the first, and `previous` rises. depth: blocks of each request, found or not.
    """

    request: Ints
    previous: Ints
    blocks: Ints
    depth: Ints


@dataclass(frozen=True)
class Found:
    """From which capacity each run is found: its first block in more than `above` blocks, all of it in `whole`."""

    above: Ints
    whole: Ints


def find(runs: Runs, order: Order) -> Found:
    """Capacities for each run, in blocks. Memory: some 100 bytes a run."""
    before = np.concatenate(([0], np.cumsum(runs.depth)))
    if order == "leaf-first":
        above = before[runs.request] - before[runs.previous + 1]
        above -= earlier_greater(runs.previous, runs.blocks)
        return Found(above, above + runs.blocks)
    whole = before[runs.request] - before[runs.previous]
    whole -= earlier_greater(runs.previous, runs.blocks, or_equal=True)
    return Found(whole - 1, whole)


class HitCounts:
    """Hits of some of the requests, at any capacity.

    counted: which requests count; all of them touch. fresh: which runs were touched recently enough (all where None).
    input_tokens: a request's tokens; its last block may be partial, where depth * block_size exceeds them.
    """

    def __init__(
        self,
        runs: Runs,
        found: Found,
        order: Order,
        *,
        block_size: int,
        input_tokens: Ints,
        counted: Mask | None = None,
        fresh: Mask | None = None,
    ) -> None:
        self.block_size = block_size
        everyone = slice(None) if counted is None else counted
        self.requests = len(runs.depth[everyone])
        self.blocks = int(runs.depth[everyone].sum())
        self.tokens = int(input_tokens[everyone].sum())
        taken = np.ones(len(runs.request), bool) if fresh is None else fresh.copy()
        if counted is not None:
            taken &= counted[runs.request]
        blocks = runs.blocks[taken]
        self.hit_blocks_unbounded = int(blocks.sum())
        self._by_block = order == "leaf-first"
        self._above, self._above_sums = _sorted_sums(found.above[taken], None if self._by_block else blocks)
        self._whole, self._whole_sums = (
            _sorted_sums(found.whole[taken], None) if self._by_block else (self._above, self._above_sums)
        )
        self._tails, self._tail_sums = self._partial_tails(runs, found, input_tokens, taken)
        self.hit_tokens_unbounded = self.hit_blocks_unbounded * block_size - int(self._tail_sums[-1])
        self.sufficient_blocks = int(found.whole[taken].max(initial=0))
        """The least capacity with as many hits as an unbounded cache."""

    def _partial_tails(self, runs: Runs, found: Found, input_tokens: Ints, taken: Mask) -> tuple[Ints, Ints]:
        """Last blocks that are not full and can be hit: from which capacity, and sums of the tokens they lack."""
        lacks = np.maximum(runs.depth * self.block_size - input_tokens, 0)
        deepest = np.concatenate(([True], runs.request[1:] != runs.request[:-1]))[: len(runs.request)]
        sums = np.bincount(runs.request, runs.blocks, len(runs.depth)).astype(np.int64)
        tails = deepest & taken & (lacks[runs.request] > 0) & (sums == runs.depth)[runs.request]
        return _sorted_sums(found.whole[tails], lacks[runs.request[tails]])

    def hit_blocks(self, capacity_blocks: Ints) -> Ints:
        """Blocks found, of all requests that count, for each capacity."""
        capacity = np.asarray(capacity_blocks, np.int64)
        i = np.searchsorted(self._above, capacity)
        if not self._by_block:
            return self._above_sums[i]
        j = np.searchsorted(self._whole, capacity)
        return (capacity * i - self._above_sums[i]) - (capacity * j - self._whole_sums[j])

    def hit_tokens(self, capacity_blocks: Ints) -> Ints:
        """Tokens found: block_size a block, and of a partial last block what it has."""
        capacity = np.asarray(capacity_blocks, np.int64)
        lacking = self._tail_sums[np.searchsorted(self._tails, capacity, side="right")]
        return self.hit_blocks(capacity) * self.block_size - lacking

    def capacity_for(self, hit_rate: float, by: Literal["block", "token"]) -> int | None:
        """The least capacity in blocks with at least this hit rate; None where an unbounded cache has less."""
        count, total = (self.hit_blocks, self.blocks) if by == "block" else (self.hit_tokens, self.tokens)
        most = self.hit_blocks_unbounded if by == "block" else self.hit_tokens_unbounded
        # a quotient of integers is rounded once: 7 of 100 is 0.07, which 0.07 * 100 is not 7
        if not total or most / total < hit_rate:
            return None
        low, high = 0, self.sufficient_blocks
        while low < high:
            middle = (low + high) // 2
            if int(count(np.array([middle]))[0]) / total >= hit_rate:
                high = middle
            else:
                low = middle + 1
        return low


def _sorted_sums(values: Ints, weights: Ints | None) -> tuple[Ints, Ints]:
    """Sorted values, and the sums of the first k of them (of their weights, where there are any)."""
    if weights is None:
        ordered = np.sort(values)
        return ordered, np.concatenate(([0], np.cumsum(ordered)))
    by = np.argsort(values, kind="stable")
    return values[by], np.concatenate(([0], np.cumsum(weights[by])))
