"""The eviction cliff before it is reached: at how many live sessions a cache of a given size stops holding them."""

from __future__ import annotations

from msgspec.structs import replace

from kvbench.analysis.predicting.hits import Floats, Takes, ordered
from kvbench.analysis.predicting.load import Load
from kvbench.analysis.predicting.target import Target
from kvbench.model import Cliff, CliffPoint

LOST = 0.05
"""Of what an unbounded cache would hit: where more is lost, the hit rate is said to fall."""
_LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def cliff_of(target: Target, load: Load, capacity_tokens: float, takes: Takes | None = None) -> Cliff:
    """takes None: each turn takes what it did when it was recorded, and no time where nothing was."""

    def recorded(_: Floats) -> Floats:
        return target.takes_s

    def at(sessions: int | None) -> CliffPoint:
        one = replace(load, sessions=sessions)
        _, hits, cached = ordered(target, one, capacity_tokens, takes or recorded)
        asked, unbounded = float(target.input_tokens.sum()), float(hits.at(None).sum())
        kept = float(cached.sum())
        return CliffPoint(
            sessions=sessions,
            hit_rate=kept / asked,
            ceiling=unbounded / asked,
            needed_tokens=hits.least_for((1 - LOST) * unbounded),
            falls=kept < (1 - LOST) * unbounded,
        )

    found: dict[int, CliffPoint] = {}
    for sessions in dict.fromkeys([*[n for n in _LOADS if n < target.trees], target.trees]):
        found[sessions] = at(sessions)
    fallen = min((n for n, point in found.items() if point.falls), default=None)
    if fallen is not None:
        held = max((n for n in found if n < fallen), default=0)
        while fallen - held > 1:
            middle = (held + fallen) // 2
            found[middle] = at(middle)
            held, fallen = (held, middle) if found[middle].falls else (middle, fallen)
    else:
        held = target.trees
    present = found[load.sessions] if load.sessions in found else at(load.sessions)
    if load.sessions is not None and load.sessions < target.trees:
        found[load.sessions] = present
    return Cliff(
        capacity_tokens=capacity_tokens,
        lost=LOST,
        present=present,
        points=tuple(found[n] for n in sorted(found)),
        sessions_held=held or None,
        falls_at=fallen,
        sessions_tried=target.trees,
    )
