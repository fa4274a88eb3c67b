"""Which trees of which sources become trees of the result, how often, and when they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from kvbench.errors import InputError, UsageError
from kvbench.traces.native import TraceFile
from kvbench.traces.synth.dice import Dice

_MS = 3


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """What to make of the sources. Times are seconds of trace time.

    sessions: patterns of root session ids; a tree is taken if one of them fits (none: all). from_s, until_s: trees that
    start in [from_s, until_s). copies: how often each tree is in the result. spread_s: how far the further copies are
    shifted at most, by the seed; None: the mean time between two starts. shared_by: in how many trees of the sources a
    thing must be for copies to share it. max_pause_s caps pauses. same_ids: a block id means the same in all sources.
    """

    sessions: tuple[str, ...] = ()
    from_s: float | None = None
    until_s: float | None = None
    copies: int = 1
    spread_s: float | None = None
    shared_by: int = 2
    max_pause_s: float | None = None
    same_ids: bool = False
    seed: int = 0

    def words(self) -> str:
        """What was done, for the result's header."""
        done = [f"sessions {', '.join(self.sessions)}"] if self.sessions else []
        if self.from_s is not None or self.until_s is not None:
            done.append(f"started from {self.from_s or 0:g} s" + (f" to {self.until_s:g} s" if self.until_s else ""))
        if self.copies > 1:
            done.append(f"{self.copies} copies, seed {self.seed}")
        if self.max_pause_s is not None:
            done.append(f"pauses up to {self.max_pause_s:g} s")
        return "; ".join(done)


class Place(msgspec.Struct, frozen=True):
    """One tree of the result: tree `tree` of source `source`, its copy number `copy` (from 0), and when it starts."""

    start_s: float
    source: int
    copy: int
    tree: int


class Plan:
    """The result's trees: by their starts where there are several sources or copies, else as in the source."""

    def __init__(self, sources: Sequence[TraceFile], wanted: Transform) -> None:
        self._sources = sources
        self._wanted = wanted
        self.selected = [_selected(source, wanted) for source in sources]
        _refuse_nothing(sources, self.selected, wanted)
        starts = [
            [source.tree_entries[i].start_s for i in trees]
            for source, trees in zip(sources, self.selected, strict=True)
        ]
        # Sources have clocks of their own; what is put together begins together.
        origin = [min(times, default=0.0) if len(sources) > 1 else 0.0 for times in starts]
        self._starts = [[start - at for start in times] for times, at in zip(starts, origin, strict=True)]
        self.spread_s = _spread_s(self._starts, wanted)
        self.shifts_s = tuple(_shift_s(copy, self.spread_s, wanted.seed) for copy in range(wanted.copies))

    def __len__(self) -> int:
        return self._wanted.copies * sum(map(len, self.selected))

    def places(self) -> Iterator[Place]:
        import numpy as np

        if len(self._sources) == 1 and self._wanted.copies == 1:
            yield from (Place(start, 0, 0, tree) for start, tree in zip(self._starts[0], self.selected[0], strict=True))
            return
        copies = range(self._wanted.copies)
        counts = [len(trees) for trees in self.selected]
        start = np.concatenate(
            [np.array(self._starts[s]) + self.shifts_s[k] for k in copies for s in range(len(counts))]
        )
        copy = np.repeat(np.arange(self._wanted.copies), sum(counts))
        source = np.tile(np.repeat(np.arange(len(counts)), counts), self._wanted.copies)
        tree = np.tile(
            np.concatenate([np.array(trees, dtype=np.int64) for trees in self.selected]), self._wanted.copies
        )
        for at in np.argsort(start, kind="stable"):
            yield Place(round(float(start[at]), _MS), int(source[at]), int(copy[at]), int(tree[at]))


def _selected(source: TraceFile, wanted: Transform) -> list[int]:
    first = wanted.from_s if wanted.from_s is not None else float("-inf")
    end = wanted.until_s if wanted.until_s is not None else float("inf")
    return [
        i
        for i, entry in enumerate(source.tree_entries)
        if first <= entry.start_s < end
        and (not wanted.sessions or any(fnmatchcase(entry.root_id, pattern) for pattern in wanted.sessions))
    ]


def _refuse_nothing(sources: Sequence[TraceFile], selected: Sequence[list[int]], wanted: Transform) -> None:
    for pattern in wanted.sessions:
        if not any(fnmatchcase(entry.root_id, pattern) for source in sources for entry in source.tree_entries):
            some = ", ".join(entry.root_id for entry in sources[0].tree_entries[:5])
            raise UsageError(
                f'--session "{pattern}" fits no root session',
                hint=f"sub-agents come with their root; root sessions are {some}"
                + (", ..." if len(sources[0].tree_entries) > 5 else ""),
            )
    for source, trees in zip(sources, selected, strict=True):
        if not trees:
            entries = source.tree_entries
            first, last = min(entry.start_s for entry in entries), max(entry.start_s for entry in entries)
            raise InputError(
                "no tree of it is wanted",
                path=source.path,
                hint=f"its {len(entries)} trees start from {first:g} s to {last:g} s of trace time",
            )


def _spread_s(starts: Sequence[list[float]], wanted: Transform) -> float:
    if wanted.spread_s is not None:
        return wanted.spread_s
    times = [start for group in starts for start in group]
    return round((max(times) - min(times)) / max(len(times) - 1, 1), _MS)


def _shift_s(copy: int, spread_s: float, seed: int) -> float:
    return round(Dice(f"{seed}/copy {copy}").uniform(0.0, spread_s), _MS) if copy else 0.0
