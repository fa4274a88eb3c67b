"""A run's records as a table: one row a record, times in seconds; what was not reported is NaN or NA, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from kvbench.model import Record
from kvbench.runs.own_error import NS_PER_S, send_lag_ns
from kvbench.runs.reader import Run


def records_frame(run: Run | Sequence[Record]) -> pd.DataFrame:
    """One row a record, in file order.

    Identity: request_id, session_id, root_id (the session itself where a record names none), turn, attempt, phase,
    final, ok, error_class, http_status, finish_reason, rule.
    Moments, in seconds since the run's start: scheduled_at_s, due_at_s, upload_start_at_s, sent_at_s,
    first_token_at_s, last_token_at_s, end_at_s.
    Durations, in seconds: ttft_s, ttft_scheduled_s, ttfo_s, e2e_s, e2e_scheduled_s, tpot_s, queue_delay_s,
    send_lag_s, limit_wait_s, connect_s, stamp_bound_s, read_lag_s.
    Counts (Int64): input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
    wanted_output_tokens, wanted_input_tokens, expected_floor_tokens, expected_ceiling_tokens.
    chunks_ns: the record's list of chunk arrivals, monotonic ns.
    """
    records = run.records if isinstance(run, Run) else run
    clocks = [record.clock for record in records]
    columns: dict[str, object] = {
        "request_id": [record.request_id for record in records],
        "session_id": [record.session_id for record in records],
        "root_id": [record.root_id or record.session_id for record in records],
        "turn": np.array([record.turn for record in records], dtype=np.int64),
        "attempt": np.array([record.attempt for record in records], dtype=np.int64),
        "phase": [record.phase for record in records],
        "final": np.array([record.final for record in records], dtype=bool),
        "ok": np.array([record.ok for record in records], dtype=bool),
        "error_class": _objects(record.error_class for record in records),
        "http_status": _counts(record.http_status for record in records),
        "finish_reason": _objects(record.finish_reason for record in records),
        "chunks_ns": _objects(clock.chunks for clock in clocks),
        "rule": _objects(None if record.expectation is None else record.expectation.rule for record in records),
    }
    moments = {
        "scheduled": _seconds(clock.scheduled for clock in clocks),
        "due": _seconds(clock.due for clock in clocks),
        "upload_start": _seconds(clock.upload_start for clock in clocks),
        "sent": _seconds(clock.sent for clock in clocks),
        "first_token": _seconds(clock.first_token for clock in clocks),
        "last_token": _seconds(clock.last_token for clock in clocks),
        "end": _seconds(clock.end for clock in clocks),
    }
    columns |= {f"{name}_at_s": values for name, values in moments.items()}

    def span(start: str, end: str) -> list[float]:
        # Taken between integers: a float of seconds since the run's start has lost nanoseconds after some hours.
        return _seconds(
            None if (a := getattr(clock, start)) is None or (b := getattr(clock, end)) is None else b - a
            for clock in clocks
        )

    columns |= {
        "ttft_s": span("sent", "first_token"),
        "ttft_scheduled_s": span("scheduled", "first_token"),
        "ttfo_s": span("sent", "first_output_token"),
        "e2e_s": span("sent", "last_token"),
        "e2e_scheduled_s": span("scheduled", "last_token"),
        "tpot_s": _seconds(_tpot_ns(record) for record in records),
        "queue_delay_s": span("scheduled", "sent"),
        "send_lag_s": _seconds(send_lag_ns(record) for record in records),
        "limit_wait_s": _seconds(clock.limit_wait_ns for clock in clocks),
        "connect_s": _seconds(clock.connect_ns for clock in clocks),
        "stamp_bound_s": _seconds(clock.first_token_bound_ns for clock in clocks),
        "read_lag_s": _seconds(clock.read_lag_ns for clock in clocks),
    }
    usage: dict[str, Callable[[Record], int | None]] = {
        "input_tokens": lambda record: record.usage.input_tokens,
        "cached_tokens": lambda record: record.usage.cached_tokens,
        "cache_write_tokens": lambda record: record.usage.cache_write_tokens,
        "output_tokens": lambda record: record.usage.output_tokens,
        "reasoning_tokens": lambda record: record.usage.reasoning_tokens,
        "wanted_output_tokens": lambda record: record.wanted_output_tokens,
        "wanted_input_tokens": lambda record: record.wanted_input_tokens,
        "expected_floor_tokens": lambda record: None if record.expectation is None else record.expectation.floor,
        "expected_ceiling_tokens": lambda record: None if record.expectation is None else record.expectation.ceiling,
    }
    columns |= {name: _counts(count(record) for record in records) for name, count in usage.items()}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(records)))


def _tpot_ns(record: Record) -> float | None:
    """(last - first generated chunk) / (output_tokens - 1). Several tokens that came as one chunk say nothing about
    the time between them: None.
    """
    clock, tokens = record.clock, record.usage.output_tokens
    if clock.first_token is None or clock.last_token is None or tokens is None or tokens < 2:
        return None
    if len(clock.chunks) == 1:
        return None
    return (clock.last_token - clock.first_token) / (tokens - 1)


def _seconds(values_ns: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else value / NS_PER_S for value in values_ns]


def _objects(values: Iterable[object]) -> pd.Series:
    every = list(values)
    # An array made from lists of one length at once would have two dimensions.
    column = np.empty(len(every), dtype=object)
    for i, value in enumerate(every):
        column[i] = value
    return pd.Series(column)


def _counts(values: Iterable[int | None]) -> pd.arrays.IntegerArray:
    return pd.array(list(values), dtype="Int64")
