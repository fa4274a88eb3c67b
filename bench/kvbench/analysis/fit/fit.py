"""Which estimators a run is for, and all of them over several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvbench.analysis.fit.consistency import fit_consistency
from kvbench.analysis.fit.granularity import fit_granularity
from kvbench.analysis.fit.inversion import fit_trace
from kvbench.analysis.fit.ramp import fit_capacity
from kvbench.analysis.fit.ttft import fit_latency
from kvbench.analysis.fit.ttl import fit_ttl
from kvbench.model import FitReport
from kvbench.runs.reader import Run


def fit_run(run: Run, *, kv_memory_bytes: int | None = None) -> FitReport:
    """What one run says; memory of the KV cache as given, else as the run's own settings have it."""
    probe = run.info.settings.get("probe")
    fits: dict[object, Callable[[], FitReport]] = {
        "capacity": lambda: fit_capacity(run, kv_memory_bytes),
        "granularity": lambda: fit_granularity(run),
        "ttl": lambda: fit_ttl(run),
        "latency": lambda: fit_latency(run),
        "consistency": lambda: fit_consistency(run),
    }
    if probe in fits:
        return fits[probe]()
    return fit_trace(run, kv_memory_bytes)


def fit_runs(runs: Sequence[Run], *, kv_memory_bytes: int | None = None) -> FitReport:
    """One report of several runs: each run's own, one after the other."""
    reports = [fit_run(run, kv_memory_bytes=kv_memory_bytes) for run in runs]
    misfits = [r.misfit for r in reports if r.misfit is not None]
    return FitReport(
        runs=tuple(name for r in reports for name in r.runs),
        estimates=tuple(e for r in reports for e in r.estimates),
        refusals=tuple(e for r in reports for e in r.refusals),
        misfit=max(misfits, key=lambda m: m.share - m.limit) if misfits else None,
        assumed=tuple(dict.fromkeys(a for r in reports for a in r.assumed)),
        notes=tuple(dict.fromkeys(a for r in reports for a in r.notes)),
        residuals=tuple(e for r in reports for e in r.residuals),
    )
