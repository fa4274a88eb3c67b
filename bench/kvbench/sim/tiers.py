"""Tiers below HBM: what leaves the pool goes down to host memory, what leaves that to SSD; what is hit comes up again.

A block is in one place only, so pool and tiers together are one cache, as large as all of them. A tier gives up first
what came first. Moving down takes no time from requests; coming up takes a tier's latency and the bytes over its
bandwidth, one transfer after the other on each tier.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvbench.sim.costs import NS, life_ns
from kvbench.sim.parameters import Preset


@dataclass
class _Tier:
    name: str
    blocks: int
    ttl_ns: int | None
    bandwidth_bytes_per_s: float
    latency_s: float
    arrived_ns: OrderedDict[int, int] = field(default_factory=OrderedDict)
    busy_until_ns: int = 0


class LowerTiers:
    """Block hashes by tier, the nearest tier first; a tier without bytes is not there.

    on_gone: called with the hash of a block that is nowhere any more.
    """

    def __init__(self, preset: Preset, on_gone: Callable[[int], None], trace_time_scale: float = 1.0) -> None:
        self._on_gone = on_gone
        self._block_bytes = preset.block_bytes
        self._tiers: list[_Tier] = []
        for name, size, ttl_s, bandwidth, latency_s in (
            (
                "host",
                preset.host_bytes,
                preset.host_ttl_s,
                preset.host_bandwidth_bytes_per_s,
                preset.host_latency_s,
            ),
            ("ssd", preset.ssd_bytes, preset.ssd_ttl_s, preset.ssd_bandwidth_bytes_per_s, preset.ssd_latency_s),
        ):
            if size:
                ttl_ns = life_ns(ttl_s, trace_time_scale)
                blocks = int(size // preset.block_bytes)
                self._tiers.append(_Tier(name, blocks, ttl_ns, bandwidth, latency_s))

    @property
    def names(self) -> list[str]:
        return [tier.name for tier in self._tiers]

    def take_in(self, block_hash: int, at_ns: int) -> None:
        """A block has left HBM."""
        self._put(0, block_hash, at_ns)

    def find(self, block_hash: int, now_ns: int) -> int | None:
        """Number of the tier that holds a block."""
        for number, tier in enumerate(self._tiers):
            self._expire(number, now_ns)
            if block_hash in tier.arrived_ns:
                return number
        return None

    def discard(self, block_hash: int) -> None:
        """The block is in HBM, and in no other place."""
        for tier in self._tiers:
            tier.arrived_ns.pop(block_hash, None)

    def restore(self, blocks: Sequence[int], now_ns: int) -> int:
        """When so many blocks of each tier are in HBM, all asked for now; the nearest tier's come first."""
        at_ns = now_ns
        for tier, count in zip(self._tiers, blocks, strict=True):
            if count:
                transfer_s = tier.latency_s + count * self._block_bytes / tier.bandwidth_bytes_per_s
                at_ns = max(at_ns, tier.busy_until_ns) + round(transfer_s * NS)
                tier.busy_until_ns = at_ns
        return at_ns

    def reset(self) -> None:
        for tier in self._tiers:
            tier.arrived_ns.clear()

    def _put(self, number: int, block_hash: int, at_ns: int) -> None:
        if number == len(self._tiers):
            self._on_gone(block_hash)
            return
        tier = self._tiers[number]
        self._expire(number, at_ns)
        tier.arrived_ns[block_hash] = at_ns
        tier.arrived_ns.move_to_end(block_hash)
        if len(tier.arrived_ns) > tier.blocks:
            self._put(number + 1, tier.arrived_ns.popitem(last=False)[0], at_ns)

    def _expire(self, number: int, now_ns: int) -> None:
        tier = self._tiers[number]
        while tier.ttl_ns is not None and tier.arrived_ns:
            block_hash, arrived_ns = next(iter(tier.arrived_ns.items()))
            if arrived_ns + tier.ttl_ns > now_ns:
                return
            del tier.arrived_ns[block_hash]
            self._put(number + 1, block_hash, arrived_ns + tier.ttl_ns)
