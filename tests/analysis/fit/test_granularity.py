"""Hit rules told from cached counts; those of a sliding window are what a real vLLM 0.32 reported."""

from __future__ import annotations

from pathlib import Path

from kvbench.analysis.fit.granularity import fit_granularity
from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.runs.reader import Run

SHARED = {
    1: 0, 16: 0, 17: 0, 33: 0, 64: 32, 65: 64, 100: 64, 128: 96, 129: 128, 150: 128, 200: 128, 256: 192, 257: 256,
    300: 256, 400: 288, 513: 384, 700: 512, 1024: 672, 1025: 1024, 1153: 1024, 1500: 1152, 2049: 1472,
}  # fmt: skip
AGAIN = {17: 0, 33: 32, 64: 32, 65: 64, 128: 96, 129: 128, 256: 224, 257: 256, 512: 480, 513: 512, 1024: 992}
"""A window of 512 and blocks of 32: tokens shared with a prompt of 2,305, or of a prompt sent twice, to cached ones."""


def run(shared: dict[int, int]) -> Run:
    rows = [(f"shared{n}/0.read", n + 40, cached) for n, cached in shared.items()]
    rows += [(f"same{n}/0.again1", n, cached) for n, cached in AGAIN.items()]
    records = [
        Record(
            request_id=name,
            session_id="s",
            turn=0,
            clock=Clock(scheduled=at, due=at, sent=at, first_token=at + 1),
            usage=Usage(input_tokens=length, cached_tokens=cached),
        )
        for at, (name, length, cached) in enumerate(rows)
    ]
    info = RunInfo(kvbench_version="0", run_id="r", name="probe", status="done", started_at="")
    return Run(info=info, records=records, events=[], warnings=[], path=Path("r"))


def test_what_a_sliding_window_gives_is_told() -> None:
    report = fit_granularity(run(SHARED))
    assert report.refusals == ()
    assert "sliding windows" in report.notes[0]
    grain = report.named("granularity_tokens")
    assert grain is not None
    assert (grain.value, grain.low) == (32, 32)
    least = report.named("least_hit_tokens")
    assert least is not None
    assert (least.value, least.low, least.high) == (32, None, 32)


def test_a_count_that_is_off_by_a_block_is_no_rule() -> None:
    report = fit_granularity(run(SHARED | {1024: 704}))
    assert [r.name for r in report.refusals] == ["hit_rule"]
