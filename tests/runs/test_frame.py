from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from kvbench.model import Clock, Record, Usage
from kvbench.runs.frame import records_frame
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"
MS = 1_000_000


def test_durations_worked_out_by_hand() -> None:
    clock = Clock(
        scheduled=100 * MS,
        due=130 * MS,
        limit_wait_ns=20 * MS,
        connect_ns=4 * MS,
        upload_start=155 * MS,
        sent=156 * MS,
        first_token=256 * MS,
        first_output_token=296 * MS,
        last_token=456 * MS,
        end=460 * MS,
        chunks=[256 * MS, 296 * MS, 456 * MS],
        first_token_bound_ns=5_000,
        read_lag_ns=7_000,
    )
    usage = Usage(input_tokens=10, cached_tokens=0, output_tokens=5)
    frame = records_frame([Record(request_id="a", session_id="s", turn=0, clock=clock, usage=usage)])
    row = frame.iloc[0]
    expected = {
        "ttft_s": 0.1,
        "ttft_scheduled_s": 0.156,
        "ttfo_s": 0.14,
        "e2e_s": 0.3,
        "e2e_scheduled_s": 0.356,
        "tpot_s": 0.05,  # 200 ms over 4 gaps
        "queue_delay_s": 0.056,
        "send_lag_s": 0.001,  # 155 - 130 - 20 - 4 ms
        "limit_wait_s": 0.02,
        "connect_s": 0.004,
        "stamp_bound_s": 5e-6,
        "read_lag_s": 7e-6,
        "scheduled_at_s": 0.1,
        "end_at_s": 0.46,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert row["root_id"] == "s"
    assert row["cached_tokens"] == 0


def test_what_was_not_reported_is_missing_never_zero() -> None:
    frame = records_frame([Record(request_id="a", session_id="s", turn=0, clock=Clock(scheduled=0, due=0))])
    missing = set(frame.columns[frame.isna().iloc[0]])
    assert missing >= {
        *("ttft_s", "ttft_scheduled_s", "ttfo_s", "e2e_s", "tpot_s", "queue_delay_s", "send_lag_s", "connect_s"),
        *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "wanted_output_tokens"),
        *("expected_floor_tokens", "expected_ceiling_tokens", "sent_at_s", "http_status", "error_class", "rule"),
    }


def test_tokens_that_came_in_one_chunk_give_no_time_per_token() -> None:
    def frame(chunks: list[int], tokens: int | None) -> pd.DataFrame:
        clock = Clock(scheduled=0, due=0, sent=0, first_token=chunks[0], last_token=chunks[-1], chunks=chunks)
        usage = Usage(output_tokens=tokens)
        return records_frame([Record(request_id="a", session_id="s", turn=0, clock=clock, usage=usage)])

    assert frame([10, 10 + 6 * MS], 4)["tpot_s"][0] == pytest.approx(0.002)
    assert pd.isna(frame([10], 4)["tpot_s"][0])
    assert pd.isna(frame([10, 20], 1)["tpot_s"][0])
    assert pd.isna(frame([10, 20], None)["tpot_s"][0])


def test_nanoseconds_survive_a_long_run() -> None:
    day = 86_400 * 10**9
    clock = Clock(scheduled=day, due=day, sent=day + 1, first_token=day + 4)
    assert records_frame([Record(request_id="a", session_id="s", turn=0, clock=clock)])["ttft_s"][0] == 3e-9


def test_a_row_a_record() -> None:
    frame = records_frame(load_run(FIXTURE))
    assert list(frame["request_id"]) == ["w0", "q1", "q2", "q3", "q3", "q4", "q5", "q6"]
    assert list(frame["ok"]) == [True, True, True, False, True, True, False, False]
    assert list(frame["expected_ceiling_tokens"].fillna(-1)) == [-1, 0, 992, -1, -1, 960, -1, -1]
    assert records_frame([]).empty
