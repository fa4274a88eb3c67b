"""What every fit does with a run that has little or nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.analysis.fit.fit import fit_run, fit_runs
from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.runs.reader import Run

PROBES = ["capacity", "granularity", "ttl", "latency", "consistency", "occupancy", None]


def run_of(probe: str | None, records: list[Record], status: str = "interrupted") -> Run:
    settings = {} if probe is None else {"probe": probe}
    info = RunInfo(
        kvbench_version="0",
        run_id="r",
        name="t",
        status=status,
        started_at="",
        settings=settings,  # type: ignore[arg-type]
    )
    return Run(info=info, records=records, events=[], warnings=[], path=Path("nowhere"))


def record(request_id: str, **more: object) -> Record:
    clock = Clock(scheduled=0, due=0, sent=0, first_token=5, end=9)
    return Record(request_id=request_id, session_id="s", turn=0, clock=clock, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("status", ["done", "interrupted"])
def test_an_empty_run_is_refused(probe: str | None, status: str) -> None:
    report = fit_run(run_of(probe, [], status))
    assert not report.estimates
    assert report.refusals
    assert all(refusal.reason and refusal.experiment for refusal in report.refusals)


@pytest.mark.parametrize("probe", PROBES)
def test_one_request_or_one_that_failed_is_refused(probe: str | None) -> None:
    for one in (
        record("grain/0.again1", usage=Usage(input_tokens=565, cached_tokens=None)),
        record("age/0.read", usage=Usage(input_tokens=565, cached_tokens=0)),
        record("cell0/0.read", error_class="bad_request", error_message="no", http_status=400),
        record("nothing that a probe would name"),
    ):
        report = fit_runs([run_of(probe, [one])])
        assert not report.estimates
        assert report.refusals
