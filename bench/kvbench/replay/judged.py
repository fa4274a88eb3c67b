"""How far the client itself can have distorted a run, from its records and what was seen of its health."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.model import OwnError, Record, Trust
from kvbench.replay.monitor import ClientHealth
from kvbench.runs.own_error import judge, own_error
from kvbench.runs.quantiles import quantile


def judged(records: Sequence[Record], health: ClientHealth | None) -> tuple[OwnError, Trust]:
    """Own error and trust over `records`. health None: nothing was measured of the client."""
    error = own_error(
        records,
        loop_lags_ns=health.loop_lags_ns if health is not None else (),
        clock_step_s=health.clock_step_s if health is not None else None,
        suspended_s=health.suspended_s if health is not None else None,
        gc_collections=health.gc_collections if health is not None else None,
        gc_pause_max_s=health.gc_pause_max_s if health is not None else None,
        gc_mode=health.gc_mode if health is not None else None,
    )
    ttfts_s = sorted(
        (r.clock.first_token - r.clock.sent) / 1e9
        for r in records
        if r.ok and r.final and r.clock.first_token is not None and r.clock.sent is not None
    )
    return error, judge(error, ttft_p50_s=quantile(ttfts_s, 0.5))
