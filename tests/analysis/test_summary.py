"""Every figure of the fixture run, worked out by hand from its eight records (times in ms):

request  session turn  scheduled  first byte  sent    chunks                      end     input cached output
w0       W       0     0          0.9         1       101                         102     500   0      1   warm-up
q1       A       0     1000       1000.9      1001    1201 1221 1241 1261 1281    1282    1000  0      5   expected 0
q2       A       1     2000       2000.9      2001    2101 2131 2161              2162    1200  992    3   expected 992
q3       A.a     0     2200       2200.9      2201    503 overloaded              2205                     not final
q3       A.a     0     2200       2705.1      2705.2  2755.2 2765.2               2766.2  800   640    4
q4       B       0     3000       3000.9      3001    3041 3061 (1st is reasoning) 3062   1000  960    2   0 to 960
q5       B       1     4000       4000.9      4001    4051, then reset            4052
q6       B       2     5000       skipped
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.measured import measured
from kvbench.analysis.metrics import statistic
from kvbench.analysis.slo import Slo
from kvbench.analysis.summary import summarise
from kvbench.model import Quantiles, RequestCounts, Summary
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(load_run(FIXTURE))


def test_counts(summary: Summary) -> None:
    assert summary.requests == RequestCounts(ok=4, failed=1, skipped=1, retried=1)
    assert (summary.turns, summary.sessions, summary.warmup_turns) == (6, 3, 1)
    assert summary.errors == {"reset": 1}


@pytest.mark.parametrize(
    ("name", "n", "p50", "p95", "p99"),
    [
        # Ranks of four values: p50 1.5, p95 2.85, p99 2.97.
        ("ttft_s", 4, 0.075, 0.185, 0.197),  # 40 50 100 200
        ("ttft_scheduled_s", 4, 0.151, 0.201 + 0.85 * 0.3542, 0.201 + 0.97 * 0.3542),  # 41 101 201 555.2
        ("ttfo_s", 4, 0.080, 0.185, 0.197),  # 50 60 100 200
        ("tpot_s", 4, 0.020, 0.0285, 0.0297),  # 10/3 20 20 30
        ("e2e_s", 4, 0.110, 0.262, 0.2764),  # 60 60 160 280
        # From scheduled, 61 161 281 565.2: ranks 1.5, 2.85, 2.97
        ("e2e_scheduled_s", 4, 0.221, 0.281 + 0.85 * 0.2842, 0.281 + 0.97 * 0.2842),
        ("queue_delay_s", 4, 0.001, 0.42957, 0.490074),  # 1 1 1 505.2
        # Ranks of eight values: p50 3.5, p95 6.65, p99 6.93.
        ("icl_s", 8, 0.020, 0.030, 0.030),  # 10 20 20 20 20 20 30 30
        ("job_latency_s", 1, 1.161, 1.161, 1.161),  # A: 1000 to 2161; B has a failed turn
    ],
)
def test_distributions(summary: Summary, name: str, n: int, p50: float, p95: float, p99: float) -> None:
    figure = getattr(summary, name)
    assert (figure.n, figure.failures_as_inf) == (n, None)
    assert (figure.p50, figure.p95, figure.p99) == pytest.approx((p50, p95, p99))


def test_adjusted_counts_the_failure_but_not_the_skipped_turn(summary: Summary) -> None:
    # 40 50 100 200 inf: the median is 100; p95 lies between 200 and +inf.
    assert summary.ttft_adjusted_s == Quantiles(n=5, p50=pytest.approx(0.1), failures_as_inf=1)
    assert summary.e2e_adjusted_s == Quantiles(n=5, p50=pytest.approx(0.16), failures_as_inf=1)  # 60 60 160 280 inf


def test_jobs_and_what_is_left_of_the_window(summary: Summary) -> None:
    # Job A: 1000 to 2161; its answer begins at 2101. Tokens that arrived before the last tree (B) started: 5 + 3 + 4.
    assert (summary.ttfat_s.n, summary.ttfat_s.p50) == (1, pytest.approx(1.101))
    assert summary.jobs_per_h_per_user == pytest.approx(3600 / 1.161)
    assert (summary.steady_window_s, summary.steady_output_tokens_per_s) == (pytest.approx(2.0), pytest.approx(6.0))
    # ms a token: 15, 30, 53.33, 56; rank 2.7
    assert summary.interactivity_p90_tokens_per_s == pytest.approx(1000 / (160 / 3 + 0.7 * (56 - 160 / 3)))
    assert (summary.goodput_per_s, summary.good_fraction) == (None, None), "without an SLO nothing is good"


def test_goodput_counts_turns_that_meet_every_slo() -> None:
    slos = (Slo("ttft_s", 0.1), Slo("tpot_s", 0.015))
    summary = summarise(load_run(FIXTURE), slos)
    # TTFT below 100 ms: q3 and q4; of those TPOT below 15 ms: q3 alone (10/3 ms; q4 20 ms)
    assert summary.goodput_per_s == pytest.approx(1 / 3.0511)
    assert summary.good_fraction == 1 / 6


@pytest.mark.parametrize(
    ("name", "stat", "value"),
    [
        ("ttft_s", "geomean", (math.sqrt(0.2 * 0.1) * 0.05 * 0.04) ** (1 / 3)),  # sessions A, A.a, B count the same
        ("ttft_s", "mean", 0.39 / 4),
        ("ttft_s", "p90", 0.17),  # rank 2.7 of 40 50 100 200
        ("icl_s", "geomean", (0.01 * 0.02**5 * 0.03**2) ** (1 / 8)),
        ("error_rate", None, 2 / 6),
        ("ttft_adjusted_s", "p50", 0.1),  # 40 50 100 200 inf
        ("ttft_adjusted_s", "p90", None),  # rank 3.6, between 200 and inf
        ("ttft_adjusted_s", "mean", None),
        ("ttft_adjusted_s", "geomean", None),
        # In prefill 1001-1201, 2001-2101, 2705.2-2755.2, 3001-3041 for all 4,000 tokens.
        ("active_prefill_tokens_per_s", None, 4000 / 0.39),
        # In decode 1201-1281, 2101-2161, 2755.2-2765.2, 3041-3061, for 4 + 2 + 3 + 1 tokens after the first.
        ("active_decode_tokens_per_s", None, 10 / 0.17),
        ("cost", None, None),
    ],
)
def test_a_metric_as_one_value(name: str, stat: str | None, value: float | None) -> None:
    found = statistic(measured(load_run(FIXTURE)), name, stat)
    assert found == (None if value is None else pytest.approx(value))


def test_by_hit(summary: Summary) -> None:
    # q1 none; q2 and q4 reach their ceilings; q3 has no expectation, so no class.
    assert {name: (q.n, q.p50) for name, q in summary.ttft_by_hit_s.items()} == {
        "none": (1, pytest.approx(0.2)),
        "part": (0, None),
        "full": (2, pytest.approx(0.07)),
    }


def test_tokens_and_hits(summary: Summary) -> None:
    assert (summary.input_tokens, summary.cached_tokens, summary.output_tokens) == (4000, 2592, 14)
    assert (summary.reasoning_tokens, summary.cache_write_tokens, summary.wanted_output_tokens) == (1, None, 16)
    assert (summary.hit_rate, summary.hit_rate_turns) == (0.648, 4)
    assert summary.eligible_hit_rate == 992 / 1005  # only q2 follows an ok turn of its session
    expected = summary.expected
    assert expected is not None
    assert (expected.rule, expected.turns, expected.floor, expected.ceiling) == ("block 32", 3, 992 / 3200, 1952 / 3200)
    assert (expected.exact, expected.below, expected.above) == (2, 0, 0)


def test_rates_are_over_the_window(summary: Summary) -> None:
    # 1000.9 to 4052; the reset stream reports no tokens, so nothing is credited for its chunk.
    assert summary.window_s == pytest.approx(3.0511)
    assert summary.input_tokens_per_s == pytest.approx(4000 / 3.0511)
    assert summary.output_tokens_per_s == pytest.approx(14 / 3.0511)
    assert summary.in_flight_p95 == 1


def test_server_metrics(summary: Summary) -> None:
    server = summary.server_metrics
    assert server is not None
    assert (server.requests, server.prefix_hit_tokens, server.prefix_query_tokens) == (6, 2592, 4900)
    assert server.ttft_mean_s == pytest.approx(0.56 / 6)
    assert (server.preemptions, server.running_max, server.waiting_max) == (0, 1, 2)


def test_doubts(summary: Summary) -> None:
    assert [warning.code for warning in summary.warnings] == ["failed_turns", "sums_are_floors", "output_length"]
    assert all(warning.advice for warning in summary.warnings)
    assert summary.trust.verdict == "ok"


def test_summary_is_plain_json(summary: Summary) -> None:
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


def _changed(tmp_path: Path, **fields: object) -> Path:
    path = Path(shutil.copytree(FIXTURE, tmp_path / "run"))
    file = path / "run.json"
    file.write_bytes(msgspec.json.encode({**msgspec.json.decode(file.read_bytes()), **fields}))
    return path


def test_a_run_that_was_killed_is_judged_from_its_records(tmp_path: Path) -> None:
    path = _changed(tmp_path, status="started", own_error=None, trust=None)
    summary = summarise(load_run(path))
    error = summary.own_error
    assert error is not None
    assert (error.streams, error.stamp) == (5, "kernel")
    assert error.stamp_bound_p99_s == pytest.approx(4e-6)
    # q1 0.5 (less its connection), q3 0.1, the other four 0.9
    assert error.send_lag_p50_s == pytest.approx(9e-4)
    assert error.loop_lag_max_s == pytest.approx(2e-4)
    assert summary.trust.verdict == "ok"
    assert "incomplete" in [warning.code for warning in summary.warnings]
    assert summary.job_latency_s.n == 0, "which trees were cut short is not known"


def test_tree_ended_events_say_which_jobs_count(tmp_path: Path) -> None:
    path = _changed(tmp_path, status="interrupted")
    with (path / "events.jsonl").open("a") as file:
        file.write('{"kind": "tree_ended", "at_ns": 1, "root_id": "A", "complete": true}\n')
    assert summarise(load_run(path)).job_latency_s.n == 1
    with (path / "events.jsonl").open("a") as file:
        file.write('{"kind": "tree_ended", "at_ns": 1, "root_id": "A", "complete": false}\n')
    assert summarise(load_run(path)).job_latency_s.n == 0


def test_after_the_duration_nothing_is_credited(tmp_path: Path) -> None:
    # The window is 1000.9 to 2131 ms: of q2's three chunks two have come, so 5 + 2 tokens; q1 and q2 are under way.
    # The duration counts from the first request, the warm-up one sent at 0.9 ms.
    path = _changed(tmp_path, settings={"duration_s": 2.1301})
    summary = summarise(load_run(path))
    assert summary.window_s == pytest.approx(1.1301)
    assert summary.output_tokens_per_s == pytest.approx(7 / 1.1301)
    assert summary.input_tokens_per_s == pytest.approx(2200 / 1.1301)
    assert summary.output_tokens == 14
    # q2 is in prefill for all of its 100 ms; of its two later tokens one has come, 30 ms after the first.
    assert summary.active_prefill_tokens_per_s == pytest.approx(2200 / 0.3)
    assert summary.active_decode_tokens_per_s == pytest.approx((4 + 1) / (0.08 + 0.03))


def test_a_run_without_a_row_has_no_figures(tmp_path: Path) -> None:
    path = _changed(tmp_path, status="failed", own_error=None, trust=None)
    for name in ("records", "events", "expectations"):
        (path / f"{name}.jsonl").write_bytes(b"")
    summary = summarise(load_run(path))
    assert summary.requests == RequestCounts()
    assert (summary.ttft_s, summary.window_s, summary.hit_rate, summary.input_tokens) == (Quantiles(), None, None, None)
    assert (summary.output_tokens_per_s, summary.in_flight_p95, summary.expected) == (None, None, None)
