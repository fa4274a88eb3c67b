"""What a single request has to meet, and how many did."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Slo:
    """`column` of `records_frame` (ttft_s, tpot_s, e2e_s ...) must be below `limit`, in the column's unit."""

    column: str
    limit: float


def good(ok: pd.DataFrame, slos: tuple[Slo, ...]) -> pd.Series | None:
    """Which of the ok turns meet every SLO. An answer of one token has no TPOT and cannot miss it; a turn without
    another figure (only reasoning, for TTFO) never met it. None where no turn reports the figure, as without streaming.
    """
    if len(ok) and any(ok[slo.column].isna().all() for slo in slos):
        return None
    met = pd.Series(True, index=ok.index)
    for slo in slos:
        met &= (ok[slo.column] < slo.limit) | (ok[slo.column].isna() & (slo.column == "tpot_s"))
    return met
