from __future__ import annotations

import pytest

from kvbench.model import Clock, OwnError, Record
from kvbench.runs.own_error import judge, own_error, send_lag_ns

MS = 1_000_000


def record(name: str = "r", *, phase: str = "measure", **clock: object) -> Record:
    fields = {"scheduled": 0, "due": 0, **clock}
    return Record(request_id=name, session_id="s", turn=0, phase=phase, clock=Clock(**fields))  # type: ignore[arg-type]


def test_send_lag_leaves_out_what_is_not_the_clients_fault() -> None:
    # Due at 100 ms, waited 30 ms for a limit that was asked for and 5 ms for a connection, left at 137 ms: 2 ms late.
    late = record(due=100 * MS, limit_wait_ns=30 * MS, connect_ns=5 * MS, upload_start=137 * MS)
    assert send_lag_ns(late) == 2 * MS
    assert send_lag_ns(record(due=100 * MS)) is None


def test_figures_over_the_measure_phase() -> None:
    records = [
        record(
            upload_start=2 * MS, first_token=9 * MS, stamp="kernel", first_token_bound_ns=10_000, read_lag_ns=30_000
        ),
        record(upload_start=4 * MS, first_token=9 * MS, stamp="kernel", first_token_bound_ns=20_000, stamps_missing=1),
        record(upload_start=None),
        record(phase="warmup", upload_start=900 * MS, first_token=1, stamp="loop", first_token_bound_ns=999 * MS),
    ]
    error = own_error(records, loop_lags_ns=[3 * MS, 1 * MS], gc_mode="off", gc_collections=0)
    assert error.stamp == "kernel"
    assert (error.streams, error.streams_without_stamps) == (2, 1)
    assert error.stamp_bound_p99_s == pytest.approx(19.9e-6)
    assert error.read_lag_p99_s == pytest.approx(30e-6)
    assert error.send_lag_p50_s == pytest.approx(3e-3)
    assert error.send_lag_p99_s == pytest.approx(3.98e-3)
    assert error.loop_lag_p99_s == pytest.approx(2.98e-3)
    assert error.loop_lag_max_s == pytest.approx(3e-3)
    assert (error.gc_mode, error.gc_collections, error.gc_pause_max_s) == ("off", 0, None)


def test_nothing_measured_is_none() -> None:
    error = own_error([])
    assert error == OwnError()
    assert judge(error, ttft_p50_s=None).verdict == "ok"


def test_stamps_of_both_kinds_are_called_mixed() -> None:
    records = [record(first_token=1, stamp="kernel"), record(first_token=1, stamp="loop")]
    assert own_error(records).stamp == "mixed"


@pytest.mark.parametrize(
    ("error", "ttft_p50_s", "word"),
    [
        (OwnError(stamp_bound_p99_s=0.00501), 0.05, "dated up to 5.0 ms late"),
        (OwnError(stamp_bound_p99_s=0.00501), None, "dated up to"),
        (OwnError(stamp_bound_p99_s=0.00501), 0.2, None),  # 5% of 200 ms is 10 ms
        (OwnError(stamp_bound_p99_s=0.0101), 0.2, "limit 10.0 ms"),
        (OwnError(loop_lag_p99_s=0.0101), 0.2, "limit 10.0 ms"),  # loop stamps: the loop's lag bounds them
        (OwnError(stamp_bound_p99_s=0.001, loop_lag_p99_s=0.9), 0.2, None),  # kernel stamps do not wait for the loop
        (OwnError(send_lag_p99_s=0.5), None, None),
        (OwnError(send_lag_p99_s=0.501), None, "left 501 ms late"),
        (OwnError(stamp_bound_p99_s=0.0, streams=100, streams_without_stamps=1), None, None),
        (OwnError(stamp_bound_p99_s=0.0, streams=100, streams_without_stamps=2), None, "2 of 100 streams"),
        (OwnError(streams=3), None, "nothing bounds"),
        (OwnError(clock_step_s=-0.2), 0.1, "-200.0 ms"),
        (OwnError(clock_step_s=0.004), 0.1, None),
        (OwnError(suspended_s=0.0), 0.1, None),
        (OwnError(suspended_s=60.0), 0.1, "slept for 60.0 s"),
    ],
)
def test_judged_by_the_stated_limits(error: OwnError, ttft_p50_s: float | None, word: str | None) -> None:
    trust = judge(error, ttft_p50_s=ttft_p50_s)
    if word is None:
        assert (trust.verdict, trust.reasons) == ("ok", ())
    else:
        assert trust.verdict == "degraded"
        assert len(trust.reasons) == 1
        assert word in trust.reasons[0]
