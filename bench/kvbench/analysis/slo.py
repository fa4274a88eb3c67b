"""What a single request has to meet, and how many did."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Slo:
    """`column` of `records_frame` (ttft_s, tpot_s, e2e_s ...) must be below `limit`, in the column's unit."""

    column: str
    limit: float


def good(ok: pd.DataFrame, slos: tuple[Slo, ...]) -> pd.Series:
    """Which of the ok turns meet every SLO. A turn without the figure (one token has no TPOT) cannot miss it."""
    met = pd.Series(True, index=ok.index)
    for slo in slos:
        met &= ok[slo.column].isna() | (ok[slo.column] < slo.limit)
    return met
