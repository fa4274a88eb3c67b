"""All chains of blocks of a trace in one tree of paths, in which a block is the path that leads to it.

Edges hold runs of ids in one pool, so what a chain shares with those before it is compared, not stored again: memory is
8 bytes a distinct block and a few numbers a branch and request. An id that stands after two different prefixes is two
blocks, and is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_ROOT = 0


class PathTree:
    """Feed it chains; a chain's end is (node, depth), where depth is its number of blocks.

    An end stays valid when its node is split later: it then belongs to the node's nearest ancestor that begins above
    it (`resolved`).
    """

    def __init__(self) -> None:
        self.pool = array("q")
        self.parent = array("i", [-1])
        self.start = array("i", [0])
        """Depth at which a node's edge begins; it ends at `end`."""
        self.end = array("i", [0])
        self._offset = array("q", [0])
        self._only = array("i", [-1])
        self._more: dict[int, dict[int, int]] = {}

    def resolved(self, node: int, depth: int) -> int:
        """The node on whose edge the block at `depth` lies: start < depth <= end; the root for 0."""
        start, parent = self.start, self.parent
        while depth <= start[node] and node:
            node = parent[node]
        return node

    def extend(self, node: int, depth: int, new_ids: Sequence[int]) -> tuple[int, int]:
        """The end of the chain that has the first `depth` blocks of the one that ended at `node`, then new_ids."""
        node = self.resolved(node, depth)
        if not new_ids:
            return node, depth
        ids = _int64(new_ids)
        at, count = 0, len(ids)
        while at < count:
            end = self.end[node]
            if depth == end:
                child = self._child(node, ids[at])
                if child >= 0:
                    node = child
                    continue
                return self._add(node, depth, ids[at:] if at else ids)
            offset = self._offset[node] + depth - self.start[node]
            length = min(end - depth, count - at)
            same = _common(self.pool, offset, ids, at, length)
            at += same
            depth += same
            if same < length:
                return self._add(self._split(node, depth), depth, ids[at:])
        return node, depth

    def cut_at(self, node: int, depth: int) -> int:
        """Make `depth` the end of a node's edge; returns the node. Chains then pass edges whole, or not at all."""
        node = self.resolved(node, depth)
        return node if depth == self.end[node] else self._split(node, depth)

    def _child(self, node: int, first: int) -> int:
        only = self._only[node]
        if only < 0 or self.pool[self._offset[only]] == first:
            return only
        return self._more.get(node, {}).get(first, -1)

    def _add(self, node: int, depth: int, ids: array[int]) -> tuple[int, int]:
        pool = self.pool
        leaf = node != _ROOT and self._only[node] < 0
        if leaf and self._offset[node] + depth - self.start[node] == len(pool):
            pool.extend(ids)
            self.end[node] = depth + len(ids)
            return node, depth + len(ids)
        new = self._node(node, depth, depth + len(ids), len(pool))
        pool.extend(ids)
        if self._only[node] < 0:
            self._only[node] = new
        else:
            self._more.setdefault(node, {})[ids[0]] = new
        return new, depth + len(ids)

    def _split(self, node: int, depth: int) -> int:
        """Cut a node's edge at `depth`; returns the new node, which is the upper part."""
        parent, offset = self.parent[node], self._offset[node]
        upper = self._node(parent, self.start[node], depth, offset)
        if self._only[parent] == node:
            self._only[parent] = upper
        else:
            self._more[parent][self.pool[offset]] = upper
        self._offset[node] = offset + depth - self.start[node]
        self.start[node] = depth
        self.parent[node] = upper
        self._only[upper] = node
        return upper

    def _node(self, parent: int, start: int, end: int, offset: int) -> int:
        self.parent.append(parent)
        self.start.append(start)
        self.end.append(end)
        self._offset.append(offset)
        self._only.append(-1)
        return len(self.parent) - 1


def _common(pool: array[int], offset: int, ids: array[int], at: int, length: int) -> int:
    """How many of the `length` ids from `offset` in the pool and from `at` in ids agree, from the front."""
    if pool[offset] != ids[at]:
        return 0
    if pool[offset : offset + length] == ids[at : at + length]:
        return length
    low, high = 1, length
    while high - low > 1:
        middle = (low + high) // 2
        if pool[offset + low : offset + middle] == ids[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low


def _int64(ids: Sequence[int]) -> array[int]:
    if isinstance(ids, array):
        return ids
    try:
        return array("q", ids)
    except OverflowError:  # a source's unsigned or longer hashes: their low 64 bits tell them apart as well
        return array("q", [((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63) for value in ids])
