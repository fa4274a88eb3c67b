"""What an evicting cache of known capacity surely and possibly still holds.

A request's blocks are pinned from its start to its end and then freed tail first; a new block takes the place of an
empty one, else of the one freed longest ago. Where requests follow one another the order is known and both bounds are
the state of one exact pool (lru.py). Where they overlap, only this is: a block is freed between the sending and the
end of the last request that used it. So two pools take the requests in order of sending, one with room to spare and
one with room withheld.

- At most the blocks in flight when a request was sent can have been freed after its own though sent before: withheld.
- At most the blocks sent while a request was in flight can have been freed before its own though sent after: to spare.
- What is in flight when a request looks up may have been allocated already or not: to spare; what is sent before its
  first token may have overtaken it: withheld.

Room is withheld and to spare until everything stored under overlap has been pushed out again. Preemption is not
modelled; where running requests do not fit together, nothing is surely there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kvbench.traces.prefix.lru import LruPool


@dataclass(slots=True)
class Held:
    """The blocks of one request. whole: blocks it leaves behind; open: a part-filled one, empty again afterwards."""

    sent_ns: int
    released_ns: int
    whole: int
    open: int
    failed: bool = False
    before: int = 0
    """Blocks in flight when it was sent, `open_before` of them part-filled; `after`: blocks sent while it was."""
    open_before: int = 0
    after: int = 0

    @property
    def blocks(self) -> int:
        return self.whole + self.open


class Residency:
    """Bounds on a pool of `capacity` blocks. `register` in order of sending, `find` and then `store` in the same order
    but when it is known what else was in flight."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._sure = LruPool()
        self._possible = LruPool()
        self._running: list[Held] = []
        self._withheld = 0
        self._to_spare = 0
        self._failed = 0
        self._overlap_at = 0

    def register(self, held: Held) -> None:
        self._running = [other for other in self._running if other.released_ns > held.sent_ns]
        held.before = sum(other.blocks for other in self._running)
        held.open_before = sum(other.open for other in self._running)
        for other in self._running:
            other.after += held.blocks
            self._overlap(other)
        self._running.append(held)

    def find(self, held: Held, blocks: Sequence[Hashable], later: Sequence[Held]) -> tuple[int, int]:
        """Leading blocks surely and possibly there. `later`: requests sent before this one's first token."""
        overtaking = sum(other.blocks for other in later)
        if held.before or held.after or later:
            self._overlap(held)
        elif self._possible.stored - self._overlap_at >= self.capacity + self._to_spare:
            self._withheld = self._to_spare = 0
        self._sure.shrink(self.capacity - held.open_before - self._withheld - overtaking)
        self._possible.shrink(self.capacity + self._to_spare + held.before + self._failed)
        return self._sure.leading(blocks), self._possible.leading(blocks)

    def store(self, held: Held, blocks: Sequence[Hashable], sure_hits: int, possible_hits: int) -> list[Hashable]:
        """Use `blocks`, of which so many are surely and possibly taken from the cache; the rest of held.whole has
        content that is not known, and is returned under names for `may_be_repeated`."""
        unnamed = held.whole - len(blocks)
        if held.failed:
            # It may have stored all of it or nothing.
            self._sure.touch((), 0, held.whole)
            self._failed += held.blocks
        else:
            self._sure.touch(blocks, sure_hits, unnamed)
        self._sure.shrink(self.capacity - held.open - held.open_before - self._withheld)
        hits = min(possible_hits, self._possible.leading(blocks))
        names = self._possible.touch(blocks, hits, unnamed)
        room = self.capacity + self._to_spare + held.before + self._failed
        self._possible.shrink(room - held.open)
        return names

    def may_be_repeated(self, names: Sequence[Hashable]) -> None:
        """A prompt may hold the content of these unnamed blocks: it must not count twice."""
        self._possible.forget(names)

    def _overlap(self, held: Held) -> None:
        self._withheld = max(self._withheld, held.before)
        self._to_spare = max(self._to_spare, held.after)
        self._overlap_at = self._possible.stored
