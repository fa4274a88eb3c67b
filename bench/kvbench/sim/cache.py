"""The simulated endpoint's KV cache in HBM: a pool of blocks, shared by prefix.

The rules are vLLM's. A block is known by a hash that chains over all tokens before it. Blocks of running requests are
pinned. A finished request frees its blocks last to first, so that the least recently used one is always a leaf; those
that cannot be hit, as they are not full, are used again before any other. Block 0 of the pool is the null block and
holds nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

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
    eviction: lru and head_first give up what was released longest ago, and release a request's blocks last to first
    and first to last; fifo gives up what was written longest ago.
    ttl_ns counts from a block's release or, without refresh_on_hit, from when it was written, whoever uses it since.
    on_lost: called with the hash and the time of content whose last copy was evicted or outlived its ttl.
    """

    def __init__(
        self,
        num_blocks: int,
        ttl_ns: int | None = None,
        idle_limit: int | None = None,
        *,
        eviction: Literal["lru", "fifo", "head_first"] = "lru",
        refresh_on_hit: bool = True,
        on_lost: Callable[[int, int], None] | None = None,
    ) -> None:
        self.capacity = num_blocks - 1
        self.evictions = 0
        self._ttl_ns = ttl_ns
        self._idle_limit = idle_limit
        self._head_first = eviction == "head_first"
        self._fifo = eviction == "fifo"
        self._refresh_on_hit = refresh_on_hit
        self._on_lost = on_lost
        # Blocks are taken in order of number the first time round: those never used are the oldest of all.
        self._unused = self.capacity
        self._blank: list[int] = []
        self._free: OrderedDict[int, int] = OrderedDict()
        self._users: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        # Equal content may stand in several blocks: a recomputed last block is a second copy, as in vLLM.
        self._blocks_of: dict[int, list[int]] = {}
        # Which writing of which block; for fifo and for lives that no hit lengthens.
        self._writings = 0
        self._writing_of: dict[int, int] = {}
        self._by_writing: list[tuple[int, int]] = []
        self._queued: dict[int, int] = {}
        self._by_deadline: list[tuple[int, int, int]] = []

    @property
    def free(self) -> int:
        """Blocks that no running request holds, cached or not."""
        return self._unused + len(self._blank) + len(self._free)

    def find(self, hashes: Iterable[int], now_ns: int = 0) -> list[int]:
        """Blocks of the longest resident prefix."""
        self.expire(now_ns)
        found = []
        for block_hash in hashes:
            block = self.lookup(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def lookup(self, block_hash: int) -> int | None:
        """A block with this content; nothing expires."""
        blocks = self._blocks_of.get(block_hash)
        return blocks[0] if blocks else None

    def take(self, hits: Sequence[int], new: int, now_ns: int = 0) -> list[int] | None:
        """Pin `hits` and `new` fresh blocks, evicting what comes first; None (and no change) if they lack."""
        idle_hits = sum(1 for block in hits if block in self._free)
        if new > self.free - idle_hits:
            return None
        for block in hits:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        return [*hits, *(self._take_one(now_ns) for _ in range(new))]

    def publish(self, block: int, block_hash: int, now_ns: int = 0) -> None:
        """From now on `block` may be found under `block_hash`."""
        if block in self._hash_of:
            return
        self._hash_of[block] = block_hash
        self._blocks_of.setdefault(block_hash, []).append(block)
        self._writings += 1
        self._writing_of[block] = self._writings
        if self._ttl_ns is not None and not self._refresh_on_hit:
            heapq.heappush(self._by_deadline, (now_ns + self._ttl_ns, self._writings, block))
            if len(self._by_deadline) > self._most_entries:
                self._by_deadline = [entry for entry in self._by_deadline if self._is_written(entry[2], entry[1])]
                heapq.heapify(self._by_deadline)

    def release(self, blocks: Sequence[int], now_ns: int = 0) -> None:
        """Unpin a request's blocks, in the order in which they are to go."""
        for block in blocks if self._head_first else reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
                continue
            del self._users[block]
            if block not in self._hash_of:
                self._blank.append(block)
                continue
            self._free[block] = now_ns
            writing = self._writing_of[block]
            if self._fifo and self._queued.get(block) != writing:
                self._queued[block] = writing
                heapq.heappush(self._by_writing, (writing, block))
                if len(self._by_writing) > self._most_entries:
                    self._by_writing = [entry for entry in self._by_writing if self._is_written(entry[1], entry[0])]
                    heapq.heapify(self._by_writing)
        while self._idle_limit is not None and len(self._free) > self._idle_limit:
            block = self._pop_free()
            self.evictions += self._forget(block, now_ns)
            self._blank.append(block)

    def release_blank(self, blocks: Sequence[int]) -> None:
        """Unpin blocks that hold nothing others could use."""
        for block in blocks:
            del self._users[block]
            self._blank.append(block)

    def drop(self, blocks: Iterable[int]) -> None:
        """Forget what these hold, as far as no request is using it."""
        for block in blocks:
            if block in self._free:
                del self._free[block]
                self._forget(block, None)
                self._blank.append(block)

    def write_foreign(self, block_hash: int, now_ns: int) -> None:
        """A block of another tenant: written, and idle at once. Nothing where all blocks are pinned."""
        taken = self.take((), 1, now_ns)
        if taken is not None:
            self.publish(taken[0], block_hash, now_ns)
            self.release(taken, now_ns)

    def reset(self) -> bool:
        """Forget all content; refused (False) while a request holds blocks."""
        if self._users:
            return False
        self._hash_of.clear()
        self._blocks_of.clear()
        self._blank += self._free
        self._free.clear()
        return True

    def expire(self, now_ns: int) -> None:
        """Give up what has outlived its ttl by now."""
        if self._ttl_ns is None:
            return
        if self._refresh_on_hit:
            while self._free:
                block, freed_ns = next(iter(self._free.items()))
                if freed_ns + self._ttl_ns > now_ns:
                    break
                del self._free[block]
                self._forget(block, freed_ns + self._ttl_ns)
                self._blank.append(block)
            return
        while self._by_deadline and self._by_deadline[0][0] <= now_ns:
            deadline_ns, writing, block = heapq.heappop(self._by_deadline)
            if not self._is_written(block, writing):
                continue
            self._forget(block, deadline_ns)
            if block in self._free:
                del self._free[block]
                self._blank.append(block)

    def _take_one(self, now_ns: int) -> int:
        if self._blank:
            block = self._blank.pop()
        elif self._unused:
            block = self.capacity - self._unused + 1
            self._unused -= 1
        else:
            block = self._pop_free()
            if self._forget(block, now_ns):
                self.evictions += 1
        self._users[block] = 1
        return block

    @property
    def _most_entries(self) -> int:
        """As many stale entries as others, and a few, before they are swept out."""
        return 2 * len(self._hash_of) + 1000

    def _is_written(self, block: int, writing: int) -> bool:
        return block in self._hash_of and self._writing_of[block] == writing

    def _pop_free(self) -> int:
        if not self._fifo:
            return self._free.popitem(last=False)[0]
        while True:
            writing, block = heapq.heappop(self._by_writing)
            if self._queued.get(block) == writing:
                del self._queued[block]
            # An entry is stale once its block is in use again, or was written anew.
            if block in self._free and self._writing_of[block] == writing:
                del self._free[block]
                return block

    def _forget(self, block: int, lost_ns: int | None) -> bool:
        """lost_ns None: it does not go anywhere."""
        block_hash = self._hash_of.pop(block, None)
        if block_hash is None:
            return False
        blocks = self._blocks_of[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[block_hash]
            if self._on_lost is not None and lost_ns is not None:
                self._on_lost(block_hash, lost_ns)
        return True
