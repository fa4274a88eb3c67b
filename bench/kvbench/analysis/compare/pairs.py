"""The turns that every run of both sides has, with what each run measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis import cache
from kvbench.analysis.measured import Measured

Floats = npt.NDArray[np.float64]
TIMES = ("ttft_s", "tpot_s", "e2e_s")
KEYS = ["session_id", "turn"]


@dataclass(frozen=True)
class Side:
    """values[column]: (turns, runs), NaN = not reported; columns are TIMES, input_tokens and cached_tokens."""

    values: dict[str, Floats]
    hit_class: list[str | None]
    """Of each turn, where all runs of the side agree."""


@dataclass(frozen=True)
class Pairs:
    """turns: one row each, in the order of session and turn: session_id, turn, root_id, input_tokens (the first run's).
    left_out: turns that some run lacks, or in which they failed.
    """

    turns: pd.DataFrame
    base: Side
    new: Side
    left_out: int


def pair(base: Sequence[Measured], new: Sequence[Measured]) -> Pairs:
    """Turns by (session, turn), those only that are ok in every run."""
    tables = [ran.ok.set_index(KEYS).sort_index() for ran in (*base, *new)]
    common = tables[0].index
    every = tables[0].index
    for table in tables[1:]:
        common = common.intersection(table.index)
        every = every.union(table.index)
    common = common.sort_values()
    tables = [table.loc[common] for table in tables]
    first = tables[0]
    turns = pd.DataFrame(
        {
            "session_id": common.get_level_values(0),
            "turn": common.get_level_values(1),
            "root_id": first["root_id"].to_numpy(),
            "input_tokens": first["input_tokens"].to_numpy(dtype=float, na_value=np.nan),
        }
    )
    return Pairs(turns, _side(tables[: len(base)]), _side(tables[len(base) :]), len(every) - len(common))


def _side(tables: Sequence[pd.DataFrame]) -> Side:
    columns = (*TIMES, "input_tokens", "cached_tokens")
    values = {
        name: np.stack([table[name].to_numpy(dtype=float, na_value=np.nan) for table in tables], axis=1)
        for name in columns
    }
    classes = [cache.hit_classes(table.reset_index()).reindex(range(len(table))) for table in tables]
    agreed: list[str | None] = []
    for each in zip(*classes, strict=True):
        told = set(each)
        agreed.append(str(each[0]) if len(told) == 1 and isinstance(each[0], str) else None)
    return Side(values, agreed)
