"""How far the client itself can have distorted a run's figures, and whether they may then be used.

Pure functions over records and the lags a monitor saw: a replay calls them when it ends, and analysis calls them for
a run that never came to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvbench.model import OwnError, Record, Trust
from kvbench.runs.quantiles import quantile

STAMP_BOUND_LIMIT_S = 0.005
STAMP_BOUND_LIMIT_OF_TTFT = 0.05
SEND_LAG_LIMIT_S = 0.5
MISSING_STAMPS_LIMIT = 0.01

NS_PER_S = 1_000_000_000


def send_lag_ns(record: Record) -> int | None:
    """How late a request left through the client's own fault: first byte to the kernel, less due, less the waits that
    are not its fault (limits that were asked for, opening a connection). None: it never left.
    """
    clock = record.clock
    if clock.upload_start is None:
        return None
    return clock.upload_start - clock.due - clock.limit_wait_ns - (clock.connect_ns or 0)


def own_error(
    records: Iterable[Record],
    *,
    loop_lags_ns: Sequence[int] = (),
    clock_step_s: float | None = None,
    suspended_s: float | None = None,
    gc_collections: int | None = None,
    gc_pause_max_s: float | None = None,
    gc_mode: str | None = None,
) -> OwnError:
    """Own error over the measure phase of `records`, all attempts; loop lags as a monitor sampled them.

    A stream is a record with a first token. It counts as without stamps when any of its reads lacked one.
    """
    bounds: list[int] = []
    read_lags: list[int] = []
    send_lags: list[int] = []
    stamps: set[str] = set()
    streams = without = 0
    for record in records:
        if record.phase != "measure":
            continue
        clock = record.clock
        lag = send_lag_ns(record)
        if lag is not None:
            send_lags.append(lag)
        if clock.first_token is None:
            continue
        streams += 1
        stamps.add(clock.stamp)
        without += clock.stamps_missing > 0 or clock.stamp == "none"
        if clock.first_token_bound_ns is not None:
            bounds.append(clock.first_token_bound_ns)
        if clock.read_lag_ns is not None:
            read_lags.append(clock.read_lag_ns)
    send_lags.sort()
    loop_lags = sorted(loop_lags_ns)
    stamp = "none" if not stamps else "mixed" if len(stamps) > 1 else stamps.pop()
    return OwnError(
        stamp=stamp,  # type: ignore[arg-type]
        stamp_bound_p99_s=_seconds(quantile(sorted(bounds), 0.99)),
        read_lag_p99_s=_seconds(quantile(sorted(read_lags), 0.99)),
        send_lag_p50_s=_seconds(quantile(send_lags, 0.5)),
        send_lag_p99_s=_seconds(quantile(send_lags, 0.99)),
        loop_lag_p99_s=_seconds(quantile(loop_lags, 0.99)),
        loop_lag_max_s=_seconds(loop_lags[-1] if loop_lags else None),
        streams=streams,
        streams_without_stamps=without,
        clock_step_s=clock_step_s,
        suspended_s=suspended_s,
        gc_collections=gc_collections,
        gc_pause_max_s=gc_pause_max_s,
        gc_mode=gc_mode,
    )


def arrival_bound_s(error: OwnError) -> float | None:
    """p99 of the largest error an arrival can have: the stamps' own bound, else the loop's lag, which bounds it where
    the event loop dated the arrivals. None: nothing was measured that bounds it.
    """
    if error.stamp_bound_p99_s is not None:
        return error.stamp_bound_p99_s
    return error.loop_lag_p99_s


def judge(error: OwnError, *, ttft_p50_s: float | None) -> Trust:
    """Whether the own error leaves the figures usable. Each reason names figure, limit and what to do.

    Degraded when the p99 of the arrivals' bound is above max(5 ms, 5% of the median TTFT), when the send lag's p99 is
    above 500 ms, when more than 1% of the streams lack stamps, when the wall clock, which kernel stamps are read from,
    was set by more than the bound's limit, or when the machine slept for longer than the send lag's.
    """
    reasons: list[str] = []
    limit = max(STAMP_BOUND_LIMIT_S, STAMP_BOUND_LIMIT_OF_TTFT * (ttft_p50_s or 0.0))
    bound = arrival_bound_s(error)
    if bound is not None and bound > limit:
        reasons.append(
            f"arrivals may be dated up to {bound * 1e3:.1f} ms late (p99; limit {limit * 1e3:.1f} ms): "
            "give the client a core of its own or lower the load"
        )
    elif bound is None and error.streams:
        reasons.append(
            "nothing bounds the error of the arrival times: run again with loop lag or kernel stamps measured"
        )
    if error.send_lag_p99_s is not None and error.send_lag_p99_s > SEND_LAG_LIMIT_S:
        reasons.append(
            f"requests left {error.send_lag_p99_s * 1e3:.0f} ms late (p99; limit {SEND_LAG_LIMIT_S * 1e3:.0f} ms): "
            "the client could not keep the schedule; lower the rate or give it a core of its own"
        )
    if error.streams and error.streams_without_stamps > MISSING_STAMPS_LIMIT * error.streams:
        reasons.append(
            f"{error.streams_without_stamps} of {error.streams} streams lack arrival stamps (limit 1%): "
            "their arrivals were dated by a later read; run again, and compare with the server's own TTFT"
        )
    if error.clock_step_s is not None and abs(error.clock_step_s) > limit:
        reasons.append(
            f"the wall clock was set by {error.clock_step_s * 1e3:+.1f} ms during the run and shifts kernel stamps "
            f"(limit {limit * 1e3:.1f} ms): run again with time synchronisation settled"
        )
    if error.suspended_s is not None and error.suspended_s > SEND_LAG_LIMIT_S:
        reasons.append(
            f"the machine slept for {error.suspended_s:.1f} s during the run, and what was in flight waited with it: "
            "run again on a machine kept awake"
        )
    return Trust(verdict="degraded" if reasons else "ok", reasons=tuple(reasons))


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_S
