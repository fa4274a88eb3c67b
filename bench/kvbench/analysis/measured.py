"""What of a run counts: the measure phase, cut into the tables and the window that every figure is taken over."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench.analysis.pricing.run_cost import RunCost, run_cost
from kvbench.analysis.slo import Slo
from kvbench.prices.pricing import PriceList
from kvbench.runs.frame import records_frame
from kvbench.runs.own_error import NS_PER_S
from kvbench.runs.reader import Run
from kvbench.runs.writer import MEASURING

STEADY_SHARE = 0.2


@dataclass(frozen=True)
class Measured:
    """Tables in `records_frame`'s columns. `attempts`: all of the measure phase. `finals`: the last attempt of each
    turn. `ok`: the finals that succeeded. `jobs`: root_ids of the trees that ran to their end.

    The window runs from the first byte sent to the last end, or to the duration that was asked for; where trees were
    opened at their start points, from when all were warm, for that duration. Seconds since the run's start, None when
    nothing was sent.
    """

    attempts: pd.DataFrame
    finals: pd.DataFrame
    ok: pd.DataFrame
    jobs: frozenset[str]
    window: tuple[float, float] | None
    steady: tuple[float, float] | None = None
    """The window without its tail: to the start of the last session tree (to the window's end where a duration cut
    it), as load only dies away after that. None where it would be less than a fifth of the window."""
    slos: tuple[Slo, ...] = ()
    cost: RunCost | None = None
    """None: nobody asked for prices."""

    @property
    def window_s(self) -> float | None:
        return None if self.window is None else self.window[1] - self.window[0]


def measured(run: Run, slos: tuple[Slo, ...] = (), prices: PriceList | None = None) -> Measured:
    frame = records_frame(run)
    attempts = frame[frame["phase"] == "measure"]
    finals = attempts[attempts["final"]]
    duration_s = run.info.settings.get("duration_s")
    warm_at_s = _warm_at_s(run)
    if warm_at_s is None or duration_s is None:
        window = _window(attempts, frame["upload_start_at_s"].min(), duration_s)
    else:
        window = _window_from(attempts, warm_at_s, duration_s, whole=run.info.status == "done")
    jobs = _complete_trees(run, frame)
    return Measured(
        attempts=attempts,
        finals=finals,
        ok=finals[finals["ok"]],
        jobs=jobs,
        window=window,
        steady=_steady(attempts, window, duration_s),
        slos=slos,
        cost=None if prices is None else run_cost(run, jobs, prices),
    )


def _window(attempts: pd.DataFrame, began_s: float, duration_s: float | None) -> tuple[float, float] | None:
    """`began_s`: the run's first request, a warm-up's too; the duration counts from there, not from the clock's start,
    as connecting and discovery come before."""
    start, end = attempts["upload_start_at_s"].min(), attempts["end_at_s"].max()
    if duration_s is not None:
        # What drains after the duration is load that dies away: counting it would understate the rates.
        end = min(end, began_s + duration_s)
    return (float(start), float(end)) if end > start else None


def _warm_at_s(run: Run) -> float | None:
    return next((event["at_ns"] / NS_PER_S for event in run.events if event.get("kind") == MEASURING), None)


def _window_from(attempts: pd.DataFrame, start: float, duration_s: float, *, whole: bool) -> tuple[float, float] | None:
    """whole: the run went on for all of the duration, though in its end nothing may have been under way."""
    end = start + duration_s if whole else min(attempts["end_at_s"].max(), start + duration_s)
    return (start, float(end)) if len(attempts) and end > start else None


def _steady(
    attempts: pd.DataFrame, window: tuple[float, float] | None, duration_s: float | None
) -> tuple[float, float] | None:
    if window is None or duration_s is not None:
        return window
    start, end = window
    last_tree_at_s = float(attempts.groupby("root_id")["upload_start_at_s"].min().max())
    return (start, last_tree_at_s) if last_tree_at_s - start >= STEADY_SHARE * (end - start) else None


def _complete_trees(run: Run, frame: pd.DataFrame) -> frozenset[str]:
    """Trees measured from their first turn to their last, every turn ok.

    Whether a tree came to its end is known from events of kind tree_ended; without any, from the run's own end.
    """
    ended = {
        str(event.get("root_id")): bool(event.get("complete"))
        for event in run.events
        if event.get("kind") == "tree_ended"
    }
    if not ended and (run.info.status != "done" or run.info.settings.get("duration_s") is not None):
        return frozenset()
    finals = frame[frame["final"]]
    good = (finals["ok"] & (finals["phase"] == "measure")).groupby(finals["root_id"]).all()
    return frozenset(str(root) for root, whole in good.items() if whole and ended.get(str(root), not ended))


def credited_output_tokens(ran: Measured, window: tuple[float, float] | None) -> float | None:
    """Output tokens that arrived before the window's end: those of a response are spread evenly over its chunks, as
    several may come in one; without chunks (no streaming) they arrive at its end. None when no attempt reports any.
    """
    if window is None:
        return None
    told = ran.attempts[ran.attempts["output_tokens"].notna()]
    if told.empty:
        return None
    end_ns = round(window[1] * NS_PER_S)
    credited = 0.0
    for tokens, chunks, end_s in zip(told["output_tokens"], told["chunks_ns"], told["end_at_s"], strict=True):
        if chunks:
            credited += int(tokens) * bisect_right(chunks, end_ns) / len(chunks)
        elif end_s <= window[1]:
            credited += int(tokens)
    return credited


def in_flight_quantile(ran: Measured, q: float) -> float | None:
    """The number of requests in flight (first byte sent to end) not exceeded during the share `q` of the window."""
    if ran.window is None:
        return None
    sent = ran.attempts[ran.attempts["upload_start_at_s"].notna() & ran.attempts["end_at_s"].notna()]
    start, end = ran.window
    moments = np.concatenate([sent["upload_start_at_s"].to_numpy(), sent["end_at_s"].to_numpy(), [end]]).clip(
        start, end
    )
    change = np.concatenate([np.ones(len(sent)), -np.ones(len(sent)), [0.0]])
    order = np.argsort(moments, kind="stable")
    lasted = np.diff(moments[order])
    level = np.cumsum(change[order])[:-1][lasted > 0]
    lasted = lasted[lasted > 0]
    by_level = np.argsort(level, kind="stable")
    share = np.cumsum(lasted[by_level]) / (end - start)
    # The shares add up to 1 only to a rounding error.
    at = int(np.searchsorted(share, q - 1e-12))
    return float(level[by_level][min(at, len(level) - 1)])


def chunk_gaps_s(ran: Measured) -> pd.Series:
    """Gaps between neighbouring chunks of each ok turn."""
    gaps = [np.diff(np.asarray(chunks, dtype=np.int64)) for chunks in ran.ok["chunks_ns"] if len(chunks) > 1]
    return pd.Series(np.concatenate(gaps) / NS_PER_S if gaps else [], dtype="float64")
