"""Nights as a nightly job leaves them, of runs that are made up."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.made_runs import START, make_run

from kvbench.runs.night import Night, NightRun, write_night


def make_night(directory: Path, day: int, *, verdict: Any = "pass", ttft: float = 1.0, n: int = 3, **info: Any) -> Path:
    """Night `day` days after START, of n candidate runs."""
    name = f"night-{day:02d}"
    out = directory / name
    made = []
    for i in range(n):
        run = make_run(out / "runs", f"n{day:02d}-{i}", day * 1440 + 2 * i, ttft=ttft, **info)
        digest = hashlib.sha256((run / "records.jsonl").read_bytes()).hexdigest()
        made.append(NightRun(run=f"runs/{run.name}", side="candidate", records_sha256=digest))
    write_night(
        out,
        Night(
            kvbench_version="0.1.0",
            night=name,
            status="done",
            started_at=START.isoformat(),
            runs=tuple(made),
            verdict=verdict,
        ),
    )
    return out
