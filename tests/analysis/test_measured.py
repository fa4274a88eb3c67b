from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.analysis.jobs import job_latencies_s, jobs_per_h_per_user, ttfat_s
from kvbench.analysis.measured import Measured, credited_output_tokens, in_flight_quantile, measured
from kvbench.analysis.metrics import METRICS, distribution, scalar
from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.runs.reader import Run

MS = 1_000_000


def run_of(records: list[Record], **info: object) -> Run:
    fields = {"kvbench_version": "0", "run_id": "r", "name": "r", "status": "done", "started_at": "", **info}
    return Run(info=RunInfo(**fields), records=records, events=[], warnings=[], path=Path("r"))  # type: ignore[arg-type]


def record(session: str, turn: int, start_ms: int, end_ms: int, **fields: object) -> Record:
    chunks = fields.pop("chunks", [end_ms * MS])
    assert isinstance(chunks, list)
    clock = Clock(
        scheduled=start_ms * MS,
        due=start_ms * MS,
        upload_start=start_ms * MS,
        sent=start_ms * MS,
        first_token=chunks[0] if chunks else None,
        last_token=chunks[-1] if chunks else None,
        end=end_ms * MS,
        chunks=chunks,
    )
    return Record(request_id=f"{session}/{turn}", session_id=session, turn=turn, clock=clock, **fields)  # type: ignore[arg-type]


def _credited(ran: Measured) -> float | None:
    return credited_output_tokens(ran, ran.window)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]),
)
def test_in_flight_against_a_count_of_every_millisecond(spans: list[tuple[int, int]], q: float) -> None:
    records = [record(f"s{i}", 0, start, start + lasted) for i, (start, lasted) in enumerate(spans)]
    first, last = min(s for s, _ in spans), max(s + n for s, n in spans)
    levels = sorted(sum(s <= at < s + n for s, n in spans) for at in range(first, last))
    # The smallest level not exceeded during the share q of the milliseconds.
    wanted = next(level for i, level in enumerate(levels, start=1) if i >= q * len(levels) - 1e-9)
    assert in_flight_quantile(measured(run_of(records)), q) == wanted


def test_without_chunks_tokens_are_credited_at_the_end() -> None:
    usage = Usage(output_tokens=10)
    records = [record("a", 0, 0, 100, chunks=[], usage=usage), record("b", 0, 0, 300, chunks=[], usage=usage)]
    assert _credited(measured(run_of(records))) == 20
    assert _credited(measured(run_of(records, settings={"duration_s": 0.2}))) == 10
    assert _credited(measured(run_of([record("a", 0, 0, 100)]))) is None


def test_tokens_of_failed_attempts_count() -> None:
    records = [record("a", 0, 0, 100, usage=Usage(output_tokens=10), error_class="truncated", final=False)]
    assert _credited(measured(run_of(records))) == 10


def test_a_job_ends_with_its_root_session() -> None:
    records = [
        record("a", 0, 100, 200, root_id="a"),
        record("a.child", 0, 210, 900, root_id="a"),
        record("a", 1, 300, 500, root_id="a"),
        record("b", 0, 100, 200, root_id="b", phase="warmup"),
        record("b", 1, 300, 500, root_id="b"),
        record("c", 0, 100, 200, root_id="c"),
        record("c.child", 0, 210, 220, root_id="c", error_class="reset"),
    ]
    assert job_latencies_s(measured(run_of(records))).to_dict() == {"a": pytest.approx(0.4)}


def test_the_first_answer_token_is_the_root_sessions_last_turns() -> None:
    records = [
        record("a", 1, 300, 500, root_id="a", chunks=[420 * MS, 500 * MS]),
        record("a", 0, 100, 200, root_id="a"),
        record("a.child", 0, 210, 900, root_id="a"),
        record("b", 0, 1000, 1600, root_id="b", chunks=[1100 * MS, 1600 * MS]),
    ]
    ran = measured(run_of(records))
    assert ttfat_s(ran).to_dict() == {"a": pytest.approx(0.32), "b": pytest.approx(0.1)}
    assert jobs_per_h_per_user(ran) == pytest.approx(3600 / 0.5)


def test_the_steady_window_ends_where_the_last_tree_starts() -> None:
    records = [record("a", 0, 0, 400, usage=Usage(output_tokens=8)), record("b", 0, 500, 1000)]
    assert measured(run_of(records)).steady == (0.0, 0.5)
    assert scalar(measured(run_of(records)), "steady_output_tokens_per_s") == 16
    assert measured(run_of([record("a", 0, 0, 900), record("b", 0, 100, 1000)])).steady is None
    assert measured(run_of(records, settings={"duration_s": 0.9})).steady == (0.0, 0.9)


def test_warm_up_is_kept_apart() -> None:
    records = [record("a", 0, 0, 100, phase="warmup", usage=Usage(input_tokens=9, cached_tokens=9))]
    ran = measured(run_of(records))
    assert ran.attempts.empty
    assert ran.window is None


def test_the_table_names_each_metric_once_and_gives_it_for_any_run() -> None:
    ran = measured(run_of([]))
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.unit
        value = metric.of(ran)
        assert value is None or len(value) == 0  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        distribution(ran, "hit_rate")
    with pytest.raises(TypeError):
        scalar(ran, "ttft_s")


def test_interactivity_is_tokens_over_end_to_end_time() -> None:
    ran = measured(run_of([record("a", 0, 0, 500, usage=Usage(output_tokens=20))]))
    assert distribution(ran, "interactivity_tokens_per_s").p50 == pytest.approx(40)


def test_a_phase_counts_time_once_however_many_requests_are_in_it() -> None:
    def one(session: str, start: int, chunks: list[int], given: int, got: int) -> Record:
        usage = Usage(input_tokens=given, output_tokens=got)
        return record(session, 0, start, chunks[-1], chunks=[at * MS for at in chunks], usage=usage)

    records = [
        one("a", 0, [100, 200, 300], 1000, 5),
        one("b", 50, [150, 250], 500, 3),  # prefill 0-150, decode 100-300
        one("c", 400, [500], 200, 9),  # all in one chunk: nothing to say of decode
        record("d", 0, 600, 700, chunks=[650 * MS]),  # reports no tokens
    ]
    ran = measured(run_of(records))
    assert scalar(ran, "active_prefill_tokens_per_s") == pytest.approx(1700 / 0.25)
    assert scalar(ran, "active_decode_tokens_per_s") == pytest.approx((4 + 2) / 0.2)
    # Cut at 75 ms: three quarters of a's prompt and a quarter of b's, in 75 ms; no answer has begun.
    cut = measured(run_of(records, settings={"duration_s": 0.075}))
    assert scalar(cut, "active_prefill_tokens_per_s") == pytest.approx((750 + 125) / 0.075)
    assert scalar(cut, "active_decode_tokens_per_s") is None


def test_one_streams_decode_is_the_inverse_of_its_time_per_token() -> None:
    chunks = [k * 20 * MS for k in range(5, 15)]
    ran = measured(run_of([record("a", 0, 0, 300, chunks=chunks, usage=Usage(input_tokens=10, output_tokens=10))]))
    assert scalar(ran, "active_decode_tokens_per_s") == pytest.approx(1 / 0.02)


def test_the_window_of_an_opened_run_counts_from_when_all_was_warm() -> None:
    records = [
        record("a", 0, 0, 300, phase="warmup"),
        record("a", 1, 600, 900, usage=Usage(output_tokens=3)),
        record("b", 0, 1400, 1600, usage=Usage(output_tokens=5)),
    ]
    events = [{"kind": "measuring", "at_ns": 500 * MS, "duration_s": 1.5}]

    def opened(status: str) -> Measured:
        run = run_of(records, settings={"duration_s": 1.5}, status=status)
        return measured(Run(info=run.info, records=records, events=events, warnings=[], path=run.path))

    # Nothing is sent in the first 0.1 s nor comes in the last 0.4 s: both are of the window all the same.
    assert opened("done").window == opened("done").steady == (0.5, 2.0)
    assert scalar(opened("done"), "output_tokens_per_s") == pytest.approx(8 / 1.5)
    assert opened("interrupted").window == (0.5, 1.6)
