"""An exact least-recently-used cache of prefix blocks, evicted leaf first, as vLLM's pool of blocks does it.

A request touches its blocks last to first, so a block is never older than the blocks that follow it and the oldest
one of all is a leaf. Blocks found are touched, the rest is computed: a block that is there but was not taken as a hit
(the last block of a prompt that ends with it is always computed again) then has a second copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class LruPool:
    """Blocks by id, oldest first. An id stands for the whole prefix up to its block (a chained hash, or such a trace's
    block id). Its size is the caller's: `shrink`."""

    def __init__(self) -> None:
        self.stored = 0
        """Blocks ever put in."""
        self._order: OrderedDict[Hashable, Hashable] = OrderedDict()  # copy -> its block
        self._further: dict[Hashable, list[Hashable]] = {}  # copies of a block beside the one named by its id

    def __len__(self) -> int:
        return len(self._order)

    def leading(self, blocks: Sequence[Hashable]) -> int:
        """How many leading blocks are there. By bisection: a block is there wherever one that follows it is."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in self._order or blocks[middle] in self._further:
                low = middle + 1
            else:
                high = middle
        return low

    def touch(self, blocks: Sequence[Hashable], hits: int, unnamed: int = 0) -> list[Hashable]:
        """Use `blocks`, of which the first `hits` are there and taken; `unnamed` blocks of other content follow them.
        Returns names of those, for `forget`."""
        order, further = self._order, self._further
        names = [self._store(None) for _ in range(unnamed)]
        for block in reversed(blocks[hits:]):
            if block in order or block in further:
                self._store(block)
            else:
                order[block] = block
                self.stored += 1
        move_to_end = order.move_to_end
        for block in reversed(blocks[:hits]):
            try:
                move_to_end(block)
            except KeyError:  # of several copies the first that is left
                move_to_end(further[block][0])
        return names

    def shrink(self, blocks: int) -> None:
        """Evict the oldest until at most `blocks` are left."""
        while len(self._order) > max(0, blocks):
            copy, block = self._order.popitem(last=False)
            if copy != block and block is not None:
                copies = self._further[block]
                copies.remove(copy)
                if not copies:
                    del self._further[block]

    def forget(self, copies: Sequence[Hashable]) -> None:
        """Take unnamed blocks out, as far as they are still there."""
        for copy in copies:
            self._order.pop(copy, None)

    def _store(self, block: Hashable) -> Hashable:
        copy = (self.stored, block)
        self.stored += 1
        self._order[copy] = block
        if block is not None:
            self._further.setdefault(block, []).append(copy)
        return copy
