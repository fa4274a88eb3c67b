"""The simulated endpoint's KV cache: a pool of blocks, shared by prefix, freed least recently used first.

The rules are vLLM's. A block is known by a hash that chains over all tokens before it. Blocks of running requests are
pinned. A finished request frees its blocks last to first, so that a leaf is always evicted before its parent. Block
0 of the pool is the null block and holds nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvbench.sim.tokenizer import TOKEN_BYTES


class BlockHasher:
    """Hashes of a growing sequence's full blocks; each covers the salt and everything before it."""

    def __init__(self, block_size: int, salt: str | None) -> None:
        self._bytes = block_size * TOKEN_BYTES
        self._tail = b""
        self._last = hash(("salt", salt))
        self.hashes: list[int] = []

    def extend(self, tokens: bytes) -> None:
        """Take in more tokens (four bytes each)."""
        data = self._tail + tokens
        size, last = self._bytes, self._last
        full = len(data) // size * size
        for start in range(0, full, size):
            last = hash((last, data[start : start + size]))
            self.hashes.append(last)
        self._last, self._tail = last, data[full:]


class BlockPool:
    """Blocks of a stated number; the usable ones are one fewer. Times are ns of the caller's clock.

    idle_limit: cached blocks that are kept while no request holds them; None = as many as there are. With a limit it
    is the cache that has a size, not the pool: a block without content does not count.
    """

    def __init__(self, num_blocks: int, idle_ttl_ns: int | None = None, idle_limit: int | None = None) -> None:
        self.capacity = num_blocks - 1
        self.evictions = 0
        self._idle_ttl_ns = idle_ttl_ns
        self._idle_limit = idle_limit
        # Blocks are taken in order of number the first time round: those never used are the oldest of all.
        self._unused = self.capacity
        self._blank: list[int] = []
        self._free: OrderedDict[int, int] = OrderedDict()
        self._users: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        # Equal content may stand in several blocks: a recomputed last block is a second copy, as in vLLM.
        self._blocks_of: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Blocks that no running request holds, cached or not."""
        return self._unused + len(self._blank) + len(self._free)

    def find(self, hashes: Iterable[int], now_ns: int = 0) -> list[int]:
        """Blocks of the longest resident prefix."""
        self._expire(now_ns)
        found = []
        for block_hash in hashes:
            blocks = self._blocks_of.get(block_hash)
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def take(self, hits: Sequence[int], new: int) -> list[int] | None:
        """Pin `hits` and `new` fresh blocks, evicting the least recently used; None (and no change) if they lack."""
        idle_hits = sum(1 for block in hits if block in self._free)
        if new > self.free - idle_hits:
            return None
        for block in hits:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        return [*hits, *(self._take_one() for _ in range(new))]

    def publish(self, block: int, block_hash: int) -> None:
        """From now on `block` may be found under `block_hash`."""
        if block in self._hash_of:
            return
        self._hash_of[block] = block_hash
        self._blocks_of.setdefault(block_hash, []).append(block)

    def release(self, blocks: Sequence[int], now_ns: int = 0) -> None:
        """Unpin a request's blocks, last to first."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
                continue
            del self._users[block]
            if self._idle_limit is not None and block not in self._hash_of:
                self._blank.append(block)
            else:
                self._free[block] = now_ns
        while self._idle_limit is not None and len(self._free) > self._idle_limit:
            block, _ = self._free.popitem(last=False)
            self.evictions += self._forget(block)
            self._blank.append(block)

    def reset(self) -> bool:
        """Forget all content; refused (False) while a request holds blocks."""
        if self._users:
            return False
        self._hash_of.clear()
        self._blocks_of.clear()
        return True

    def _take_one(self) -> int:
        if self._blank:
            block = self._blank.pop()
        elif self._unused:
            block = self.capacity - self._unused + 1
            self._unused -= 1
        else:
            block, _ = self._free.popitem(last=False)
            if self._forget(block):
                self.evictions += 1
        self._users[block] = 1
        return block

    def _forget(self, block: int) -> bool:
        block_hash = self._hash_of.pop(block, None)
        if block_hash is None:
            return False
        blocks = self._blocks_of[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[block_hash]
        return True

    def _expire(self, now_ns: int) -> None:
        if self._idle_ttl_ns is None:
            return
        while self._free:
            block, freed_ns = next(iter(self._free.items()))
            if freed_ns + self._idle_ttl_ns > now_ns:
                break
            del self._free[block]
            self._forget(block)
            self._blank.append(block)
