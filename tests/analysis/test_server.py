from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.analysis.server import disagreements, server_figures
from kvbench.endpoints.metrics import ServerMetrics
from kvbench.model import Clock, Record, RunInfo, ServerFigures, Usage
from kvbench.runs.reader import Run

MS = 1_000_000


def record(ttft_ms: float = 100, cached: int | None = 640, **fields: Any) -> Record:
    clock = Clock(scheduled=0, due=0, sent=5 * MS, first_token=round((5 + ttft_ms) * MS))
    return Record(request_id="r", session_id="s", turn=0, clock=clock, usage=Usage(cached_tokens=cached), **fields)


def codes(records: list[Record], **server: Any) -> list[str]:
    found = disagreements(records, ServerFigures(**server))
    assert all(warning.advice for warning in found)
    return [warning.code for warning in found]


@pytest.mark.parametrize(
    ("server_mean_s", "found"),
    [(0.100, []), (0.0911, []), (0.0899, ["ttft_disagrees"]), (0.112, ["ttft_disagrees"]), (None, [])],
)
def test_mean_ttft_to_ten_percent(server_mean_s: float | None, found: list[str]) -> None:
    assert codes([record(80), record(120)], requests=2, ttft_mean_s=server_mean_s) == found


def test_mean_ttft_to_five_milliseconds_when_short() -> None:
    assert codes([record(9)], requests=1, ttft_mean_s=0.0045) == []
    assert codes([record(10)], requests=1, ttft_mean_s=0.0045) == ["ttft_disagrees"]


def test_both_numbers_are_said() -> None:
    (warning,) = disagreements([record(93)], ServerFigures(requests=1, ttft_mean_s=0.005, ttft_p50_s=0.004))
    assert "client 0.093 s (p50 0.093 s), server 0.005 s (p50 about 0.004 s)" in warning.message


@pytest.mark.parametrize(("hits", "found"), [(6400, []), (6464, []), (6465, ["cached_disagrees"]), (None, [])])
def test_cached_tokens_to_one_percent_or_64(hits: int | None, found: list[str]) -> None:
    assert codes([record()] * 10, requests=10, prefix_hit_tokens=hits) == found
    assert codes([*[record()] * 10, record(cached=None)], requests=11, prefix_hit_tokens=1) == [], "one does not report"


def test_other_traffic_forbids_the_comparison() -> None:
    assert codes([record()] * 10, requests=20, ttft_mean_s=9.0, prefix_hit_tokens=0) == ["server_traffic"]
    assert codes([record()] * 10, requests=11, prefix_hit_tokens=6400) == []


def test_preemptions_are_told() -> None:
    assert codes([record()], preemptions=3) == ["preemptions"]
    assert codes([record()], preemptions=0) == []


def _scrape(text: str) -> dict[str, Any]:
    return ServerMetrics.from_text(text).to_dict()


def _run(*events: dict[str, Any]) -> Run:
    info = RunInfo(kvbench_version="0", run_id="r", name="r", status="done", started_at="")
    rows = [{"kind": "metrics", "at_ns": 0, **event} for event in events]
    return Run(info=info, records=[record(10), record(30)], events=rows, warnings=[], path=Path("r"))


def metrics_text(hits: int, count: int, total_s: float, waiting: int) -> str:
    name = "vllm:time_to_first_token_seconds"
    return "\n".join(
        [
            f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}',
            f'vllm:num_requests_waiting{{engine="0"}} {waiting}',
            f'{name}_bucket{{le="0.02"}} {count // 2}',
            f'{name}_bucket{{le="+Inf"}} {count}',
            f"{name}_count {count}",
            f"{name}_sum {total_s}",
        ]
    )


def test_figures_are_the_change_from_the_first_scrape_to_the_last() -> None:
    run = _run(
        {"phase": "before", "metrics": _scrape(metrics_text(1000, 10, 1.0, 0))},
        {"phase": "during", "metrics": _scrape(metrics_text(1500, 11, 1.01, 7))},
        {"phase": "after", "metrics": _scrape(metrics_text(2280, 12, 1.04, 0))},
    )
    figures, warnings = server_figures(run)
    assert figures is not None
    assert (figures.requests, figures.prefix_hit_tokens, figures.waiting_max) == (2, 1280, 7)
    assert figures.ttft_mean_s == pytest.approx(0.02)
    assert (figures.preemptions, figures.running_max) == (None, None)
    assert warnings == []


def test_without_both_ends_there_are_no_figures() -> None:
    before = {"phase": "before", "metrics": _scrape(metrics_text(1000, 10, 1.0, 0))}
    during = {"phase": "during", "metrics": _scrape(metrics_text(1500, 11, 1.01, 7))}
    assert server_figures(_run()) == (None, [])
    assert server_figures(_run(before, during)) == (None, [])
    assert server_figures(_run(during)) == (None, [])


def test_a_restart_is_told() -> None:
    run = _run(
        {"phase": "before", "metrics": _scrape(metrics_text(1000, 10, 1.0, 0))},
        {"phase": "after", "metrics": _scrape(metrics_text(5, 2, 0.1, 0))},
    )
    figures, warnings = server_figures(run)
    assert figures is not None
    assert figures.prefix_hit_tokens is None
    assert [warning.code for warning in warnings] == ["server_restarted"]


def test_a_scrape_that_cannot_be_read_is_told() -> None:
    broken = {"phase": "before", "metrics": {"running": "many"}}
    figures, warnings = server_figures(_run(broken, {**broken, "phase": "after"}))
    assert figures is None
    assert [warning.code for warning in warnings] == ["metrics_unreadable"]
