"""What an engine has of a prompt already: in the pool, in tiers below it, or as a prefix unit."""

from __future__ import annotations

from typing import NamedTuple

from kvbench.sim.cache import BlockPool
from kvbench.sim.costs import life_ns
from kvbench.sim.parameters import Preset
from kvbench.sim.tiers import LowerTiers
from kvbench.sim.window import WindowStates

_FOREIGN = "another tenant's block"


class Found(NamedTuple):
    """Blocks by position, None where one must come up; how many of each lower tier; tokens to compute again."""

    blocks: list[int | None]
    below: list[int]
    replay_tokens: int


class BlockStore:
    """The pool, the tiers below it and the window state: everything that block hits come from."""

    def __init__(self, preset: Preset, trace_time_scale: float = 1.0) -> None:
        self.window = WindowStates(preset, trace_time_scale)
        self.tiers = LowerTiers(preset, self.window.forget, trace_time_scale)
        self.pool = BlockPool(
            preset.num_blocks,
            life_ns(preset.idle_ttl_s, trace_time_scale),
            preset.cache_blocks,
            eviction=preset.eviction,
            refresh_on_hit=preset.refresh_on_hit,
            on_lost=self.tiers.take_in,
        )
        self._has_tiers = bool(self.tiers.names)
        self._foreign_each = preset.foreign_share / (1 - preset.foreign_share)
        self._foreign_due = 0.0
        self._foreign_written = 0

    def find(self, hashes: list[int], now_ns: int) -> Found:
        """The longest prefix that can be had, and what taking it needs."""
        blocks: list[int | None] = list(self.pool.find(hashes, now_ns))
        where: list[int | None] = [None] * len(blocks)
        if self._has_tiers:
            for block_hash in hashes[len(blocks) :]:
                block = self.pool.lookup(block_hash)
                tier = self.tiers.find(block_hash, now_ns) if block is None else None
                if block is None and tier is None:
                    break
                blocks.append(block)
                where.append(tier)
        adopted = self.window.adopt(hashes[: len(blocks)], now_ns)
        below = [0] * len(self.tiers.names)
        for tier in where[: adopted.blocks]:
            if tier is not None:
                below[tier] += 1
        return Found(blocks[: adopted.blocks], below, adopted.replay_tokens)

    def publish(self, block: int, block_hash: int, now_ns: int) -> None:
        """A block was computed; other tenants write their share beside it."""
        self._settle(block, block_hash, now_ns)
        self._foreign_due += self._foreign_each
        while self._foreign_due >= 1:
            self._foreign_due -= 1
            self._foreign_written += 1
            self.pool.write_foreign(hash((_FOREIGN, self._foreign_written)), now_ns)

    def come_up(self, block: int, block_hash: int, now_ns: int) -> None:
        """A block has come from a tier below."""
        self._settle(block, block_hash, now_ns)

    def lose(self, found: Found, hashes: list[int]) -> None:
        """What was found is not there after all."""
        self.pool.drop(block for block in found.blocks if block is not None)
        for block_hash in hashes[: len(found.blocks)]:
            self.tiers.discard(block_hash)

    def reset(self) -> bool:
        """Forget all; refused (False) while a request holds blocks."""
        if not self.pool.reset():
            return False
        self.tiers.reset()
        self.window.reset()
        return True

    def _settle(self, block: int, block_hash: int, now_ns: int) -> None:
        self.pool.publish(block, block_hash, now_ns)
        if self._has_tiers:
            self.tiers.discard(block_hash)
