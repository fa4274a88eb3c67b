"""Block ids as chained hashes: an id stands for the whole prefix up to its block, so it always follows the same id.

Ids that do not are hashes of the block alone, or a mistake. They replay all the same, as what each block holds; but
what the source's cache hit may then not be what a prefix cache hits, and the import says so.
"""

from __future__ import annotations

from collections.abc import Sequence

BROKEN = "chains_broken"
BROKEN_SENTENCE = (
    "block ids behind another id than where they first stood: {n} (taken for the block alone: a prefix cache hits it "
    "only behind equal blocks)"
)


class Chains:
    """The ids of one scope. Memory: some 100 bytes an id."""

    def __init__(self) -> None:
        self._before: dict[int, int | None] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._before

    def broken(self, ids: Sequence[int], start: int) -> int:
        """How many of `ids` from `start` on follow another id than where they first stood. Those before `start` are
        known to stand as they did."""
        before = ids[start - 1] if start else None
        known = self._before
        count = 0
        for block_id in ids[start:]:
            count += known.setdefault(block_id, before) != before
            before = block_id
        return count
