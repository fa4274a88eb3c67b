"""State of sliding-window layers: what a hit needs beside the blocks of the layers that see everything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from kvbench.sim.costs import life_ns
from kvbench.sim.parameters import Preset


class Adopted(NamedTuple):
    """Of a resident prefix: blocks that are taken, and the tokens at their end that are computed again."""

    blocks: int
    replay_tokens: int


class WindowStates:
    """State by the hash of the last full block before it, for as long as its ttl says.

    How much of the blocks found is worth taking follows preset.window_replay (parameters.py).
    """

    def __init__(self, preset: Preset, trace_time_scale: float = 1.0) -> None:
        self._window_tokens = preset.window_tokens
        self._replay = preset.window_replay
        self._block_size = preset.block_size
        self._refresh_on_hit = preset.refresh_on_hit
        self._ttl_ns = life_ns(preset.window_ttl_s, trace_time_scale)
        self._used_ns: OrderedDict[int, int] = OrderedDict()

    def keep(self, hashes: Sequence[int], now_ns: int) -> None:
        """An input or output has ended at the last of these blocks."""
        if self._window_tokens and self._replay != "always" and hashes:
            self._used_ns[hashes[-1]] = now_ns
            self._used_ns.move_to_end(hashes[-1])

    def adopt(self, hashes: Sequence[int], now_ns: int) -> Adopted:
        """What to take of a prefix whose blocks, these, are all resident."""
        if not self._window_tokens:
            return Adopted(len(hashes), 0)
        replayed = len(hashes) if len(hashes) * self._block_size > self._window_tokens else 0
        if self._replay == "always":
            return Adopted(replayed, self._window_tokens if replayed else 0)
        self._expire(now_ns)
        kept = next((n for n in range(len(hashes), 0, -1) if hashes[n - 1] in self._used_ns), 0)
        if self._replay == "after_ttl" and replayed * self._block_size - self._window_tokens > kept * self._block_size:
            return Adopted(replayed, self._window_tokens)
        if kept and self._refresh_on_hit:
            self._used_ns[hashes[kept - 1]] = now_ns
            self._used_ns.move_to_end(hashes[kept - 1])
        return Adopted(kept, 0)

    def forget(self, block_hash: int) -> None:
        """The block is nowhere any more, so nothing can be hit up to it."""
        self._used_ns.pop(block_hash, None)

    def reset(self) -> None:
        self._used_ns.clear()

    def _expire(self, now_ns: int) -> None:
        while self._ttl_ns is not None and self._used_ns:
            if next(iter(self._used_ns.values())) + self._ttl_ns > now_ns:
                return
            self._used_ns.popitem(last=False)
