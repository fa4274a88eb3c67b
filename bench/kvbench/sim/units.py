"""Prefix units: a hit where whole prefixes are persisted, not blocks (DeepSeek's documentation, Context Caching).

A request hits the longest persisted unit that its prompt begins with, in full, or nothing. Units are persisted at the
end of every input and of every output, at a prefix that an input was found to have in common with an earlier one, and,
where that is set, at fixed intervals. So of A+B, A+C and A+D the second hits nothing, but persists A, which the third
hits.

Not documented, therefore assumed: a unit ends at a multiple of the granularity; a hit lengthens the life of the unit
that was hit and of no shorter one; common prefixes are looked for among inputs, as long as a unit would live.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass
class _Unit:
    ready_ns: int
    used_ns: int


class UnitStore:
    """Units by the hash of what they hold. `hashes` are those of a sequence's pieces of one granularity each, chained,
    so that hashes[n - 1] stands for the first n pieces; lengths are in such pieces. Times are ns of the caller's clock,
    ttl_ns None = nothing is forgotten. Without refresh_on_hit a unit's life counts from when it was first written.
    """

    def __init__(
        self,
        *,
        interval: int | None = None,
        build_ns: int = 0,
        ttl_ns: int | None = None,
        refresh_on_hit: bool = True,
    ) -> None:
        self._interval = interval
        self._build_ns = build_ns
        self._ttl_ns = ttl_ns
        self._refresh_on_hit = refresh_on_hit
        self._units: OrderedDict[int, _Unit] = OrderedDict()
        self._inputs: OrderedDict[int, int] = OrderedDict()

    def find(self, hashes: Sequence[int], now_ns: int) -> int:
        """Length of the longest unit that the sequence begins with; its life begins anew."""
        length = self._longest(hashes, now_ns)
        if length and self._refresh_on_hit:
            self._units[hashes[length - 1]].used_ns = now_ns
            self._units.move_to_end(hashes[length - 1])
        return length

    def lose(self, hashes: Sequence[int], now_ns: int) -> bool:
        """Forget the unit that the sequence would hit; False where there is none."""
        length = self._longest(hashes, now_ns)
        if length:
            del self._units[hashes[length - 1]]
        return bool(length)

    def common_prefix(self, hashes: Sequence[int], now_ns: int) -> int:
        """Length that this input has in common with an earlier one; it is an earlier one itself from now on."""
        while self._inputs and self._is_over(next(iter(self._inputs.values())), now_ns):
            self._inputs.popitem(last=False)
        common = next((n for n, key in enumerate(hashes) if key not in self._inputs), len(hashes))
        for key in hashes:
            self._inputs[key] = now_ns
            self._inputs.move_to_end(key)
        return common

    def persist(self, hashes: Sequence[int], now_ns: int, *, after: int = 0, common: int = 0) -> None:
        """The sequence has been computed: units at its end, at the length `common`, and at each interval's end beyond
        the length `after`. What is there already is persisted again, so its life begins anew."""
        lengths = {len(hashes), common}
        if self._interval is not None:
            lengths.update(range((after // self._interval + 1) * self._interval, len(hashes) + 1, self._interval))
        self._write((hashes[length - 1] for length in sorted(lengths) if length), now_ns)

    def reset(self) -> None:
        """Forget everything."""
        self._units.clear()
        self._inputs.clear()

    def _longest(self, hashes: Sequence[int], now_ns: int) -> int:
        self._expire(now_ns)
        for length in range(len(hashes), 0, -1):
            unit = self._units.get(hashes[length - 1])
            if unit is not None and unit.ready_ns <= now_ns and not self._is_over(unit.used_ns, now_ns):
                return length
        return 0

    def _write(self, keys: Iterable[int], now_ns: int) -> None:
        ready_ns = now_ns + self._build_ns
        for key in keys:
            unit = self._units.get(key)
            if unit is None or self._is_over(unit.used_ns, now_ns):
                self._units[key] = _Unit(ready_ns, ready_ns)
            elif self._refresh_on_hit:
                unit.used_ns = max(unit.used_ns, now_ns)
            else:
                continue
            self._units.move_to_end(key)

    def _expire(self, now_ns: int) -> None:
        while self._units and self._is_over(next(iter(self._units.values())).used_ns, now_ns):
            self._units.popitem(last=False)

    def _is_over(self, used_ns: int, now_ns: int) -> bool:
        return self._ttl_ns is not None and used_ns + self._ttl_ns <= now_ns
