"""How close two traces are: two-sample distances of what they are made of, and the ceiling hit rate of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kvbench.traces.likeness.sample import Sample

if TYPE_CHECKING:
    import numpy as np


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """Two samples of one quantity; None where one of them is empty.

    ks: the largest difference of their distribution functions, 0..1 (Kolmogorov-Smirnov). ks_chance: what two samples
    of these sizes from one distribution stay below 19 times in 20, if their values do not depend on one another.
    wasserstein: how far values have to be moved on average, in the quantity's unit.
    """

    quantity: str
    unit: str
    source_n: int
    result_n: int
    source_median: float | None = None
    result_median: float | None = None
    source_mean: float | None = None
    result_mean: float | None = None
    source_max: float | None = None
    result_max: float | None = None
    ks: float | None = None
    ks_chance: float | None = None
    wasserstein: float | None = None


class Likeness(msgspec.Struct, frozen=True, kw_only=True):
    """block_size, tokens: how both were cut into blocks. *_ceiling: share of blocks that a prefix cache without a limit
    hits."""

    block_size: int
    tokens: str
    distances: tuple[Distance, ...]
    source_ceiling: float | None
    result_ceiling: float | None
    source_blocks: int
    result_blocks: int


def likeness(source: Sample, result: Sample) -> Likeness:
    """The distances of each quantity that at least one of them has values of."""
    # How many trees share a block grows with the number of trees: it says something only of as many.
    same_trees = len(source.root.turns) == len(result.root.turns)
    pairs = zip(_quantities(source, same_trees), _quantities(result, same_trees), strict=True)
    return Likeness(
        block_size=source.block_size,
        tokens=source.tokens,
        distances=tuple(
            _distance(name, unit, ours, theirs) for (name, unit, ours), (_, _, theirs) in pairs if ours or theirs
        ),
        source_ceiling=source.ceiling,
        result_ceiling=result.ceiling,
        source_blocks=source.blocks,
        result_blocks=result.blocks,
    )


def _quantities(sample: Sample, same_trees: bool) -> list[tuple[str, str, Sequence[float]]]:
    kinds = {"root": sample.root, "sub-agent": sample.sub_agent}
    out: list[tuple[str, str, Sequence[float]]] = [
        ("input", "tokens", sample.input_tokens),
        ("gap between roots", "s", sample.gap_s),
        ("a shared block's trees", "trees", sample.shared_by if same_trees else []),
    ]
    for name, kind in kinds.items():
        out += [
            (f"{name} turns", "turns", kind.turns),
            (f"{name} first prompt, new", "tokens", [begin.new_tokens for begin in kind.begins]),
            (f"{name} first prompt, shared", "blocks", [begin.blocks for begin in kind.begins]),
            (f"{name} growth", "tokens", [value for session in kind.growth for _, value in session]),
            (f"{name} output", "tokens", [value for session in kind.output for _, value in session]),
            (f"{name} pause", "s", [value for session in kind.pause_s for _, value in session]),
            (f"{name} turns that cut", "turns", [begin.turn for begin in kind.cuts]),
            (f"{name} fan-out", "sub-agents", [spawn.children for spawn in kind.spawns]),
        ]
    return out


def _distance(quantity: str, unit: str, source: Sequence[float], result: Sequence[float]) -> Distance:
    n, m = len(source), len(result)
    if not n or not m:
        return Distance(quantity=quantity, unit=unit, source_n=n, result_n=m)
    import numpy as np
    from scipy import stats

    a, b = np.asarray(source, dtype=float), np.asarray(result, dtype=float)
    return Distance(
        quantity=quantity,
        unit=unit,
        source_n=n,
        result_n=m,
        source_median=float(np.median(a)),
        result_median=float(np.median(b)),
        source_mean=float(a.mean()),
        result_mean=float(b.mean()),
        source_max=float(a.max()),
        result_max=float(b.max()),
        ks=_largest_difference(a, b),
        ks_chance=min(1.0, 1.358 * math.sqrt((n + m) / (n * m))),
        wasserstein=float(stats.wasserstein_distance(a, b)),
    )


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The Kolmogorov-Smirnov statistic alone: scipy's ks_2samp also wants a p-value, and fails on a value or two."""
    import numpy as np

    values = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (a, b)]
    return float(np.abs(below[0] - below[1]).max())
