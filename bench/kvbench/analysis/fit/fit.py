"""Which estimators a run is for, and all of them over several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from kvbench.analysis.fit.consistency import fit_consistency
from kvbench.analysis.fit.decode import fit_decode
from kvbench.analysis.fit.gauge import fit_gauge
from kvbench.analysis.fit.given import NOTHING_GIVEN, Given, replay_of
from kvbench.analysis.fit.granularity import fit_granularity
from kvbench.analysis.fit.memory import Memory, memory_of
from kvbench.analysis.fit.ramp import fit_capacity
from kvbench.analysis.fit.ratio import fit_ratio
from kvbench.analysis.fit.restarts import fit_restarts
from kvbench.analysis.fit.tokens import fit_tokens
from kvbench.analysis.fit.trace import fit_trace
from kvbench.analysis.fit.ttft import REPLAY_TOKENS, fit_latency
from kvbench.analysis.fit.ttl import fit_ttl
from kvbench.model import Estimate, FitReport
from kvbench.runs.reader import Run


def fit_run(run: Run, *, kv_memory_bytes: int | None = None, given: Given = NOTHING_GIVEN) -> FitReport:
    """What one run says; memory of the KV cache as given, else as the run's own settings have it, else as the server
    states it."""
    probe = run.info.settings.get("probe")
    memory = memory_of(run, kv_memory_bytes)
    kv_bytes = None if memory is None else memory.bytes_
    fits: dict[object, Callable[[], FitReport]] = {
        "capacity": lambda: fit_capacity(run, kv_bytes),
        "granularity": lambda: fit_granularity(run),
        "ttl": lambda: fit_ttl(run),
        "latency": lambda: joined([fit_latency(run, given), *_decode_of_probe(run, given)]),
        "consistency": lambda: fit_consistency(run),
        "occupancy": lambda: fit_gauge(run, kv_memory_bytes),
        "tokens": lambda: fit_tokens(run, given),
    }
    if probe in fits:
        return _by_whose_word(fits[probe](), memory)
    whole = _by_whose_word(fit_trace(run, kv_bytes), memory)
    cache = joined([whole, fit_gauge(run, kv_memory_bytes)])
    times = [fit_latency(run, given), fit_decode(run, given)]
    # residuals and misfit are the cache's: those of times are of other rows
    return replace(joined([cache, *times]), misfit=cache.misfit, residuals=cache.residuals)


def _by_whose_word(report: FitReport, memory: Memory | None) -> FitReport:
    """Says where a figure rests on the server's word for its memory."""
    if memory is None or memory.stated is None or not any("bytes" in e.unit for e in report.estimates):
        return report
    return replace(report, assumed=tuple(dict.fromkeys((*report.assumed, memory.stated))))


def fit_runs(runs: Sequence[Run], *, kv_memory_bytes: int | None = None, given: Given = NOTHING_GIVEN) -> FitReport:
    """One report of several runs: each run's own, one after the other, then what only several tell. What a granularity
    probe says of replays holds for the others too."""
    first = {i: fit_run(r) for i, r in enumerate(runs) if r.info.settings.get("probe") == "granularity"}
    if given.replay_tokens is None and any(replay_of(report.notes) for report in first.values()):
        given = replace(given, replay_tokens=REPLAY_TOKENS)
    reports = [first.get(i) or fit_run(r, kv_memory_bytes=kv_memory_bytes, given=given) for i, r in enumerate(runs)]
    one_model = len({(run.info.server or {}).get("model") for run in runs}) == 1
    pools = _pools(runs, reports) if kv_memory_bytes is None and one_model else []
    several = [FitReport(runs=(), estimates=tuple(_two_pools(pools)))]
    several += [r for r in (fit_restarts(runs, kv_memory_bytes), fit_ratio(runs, reports)) if r is not None]
    return joined([*reports, *several])


def _decode_of_probe(run: Run, given: Given) -> list[FitReport]:
    """Where its answers have more than a token."""
    return [fit_decode(run, given)] if (run.info.settings.get("output_tokens") or 1) > 1 else []


def joined(reports: Sequence[FitReport]) -> FitReport:
    """One after the other; of their misfits the worst."""
    misfits = [r.misfit for r in reports if r.misfit is not None]
    return FitReport(
        runs=tuple(dict.fromkeys(name for r in reports for name in r.runs)),
        estimates=tuple(e for r in reports for e in r.estimates),
        refusals=tuple(dict.fromkeys(e for r in reports for e in r.refusals)),
        misfit=max(misfits, key=lambda m: m.share - m.limit) if misfits else None,
        assumed=tuple(dict.fromkeys(a for r in reports for a in r.assumed)),
        notes=tuple(dict.fromkeys(a for r in reports for a in r.notes)),
        residuals=tuple(e for r in reports for e in r.residuals),
        checks=tuple(e for r in reports for e in r.checks),
        verdict=_worst([r.verdict for r in reports if r.verdict is not None]),
    )


def _worst(verdicts: Sequence[str]) -> str | None:
    return next((each for each in ("disputed", "cannot tell", "confirmed") if each in verdicts), None)


def _pools(runs: Sequence[Run], reports: Sequence[FitReport]) -> list[tuple[int, Estimate]]:
    """Memory and capacity of the probes that state both."""
    found = []
    for run, report in zip(runs, reports, strict=True):
        memory, capacity = run.info.settings.get("kv_memory_bytes"), report.named("capacity_tokens")
        if isinstance(memory, int) and capacity is not None and capacity.value is not None:
            found.append((memory, capacity))
    return sorted(found, key=lambda pool: pool[0])


def _two_pools(pools: Sequence[tuple[int, Estimate]]) -> list[Estimate]:
    """m from the smallest and the largest of several pools: (M2 - M1) / (C2 - C1). What does not grow with the pool (a
    null block, what a running request takes besides its tokens) is in both, and cancels: M1 - m C1 is that."""
    if len(pools) < 2 or pools[0][0] == pools[-1][0]:
        return []
    (small, low), (large, high) = pools[0], pools[-1]
    assert low.value is not None and low.low is not None and low.high is not None  # noqa: PT018
    assert high.value is not None and high.low is not None and high.high is not None  # noqa: PT018
    least, most = high.low - low.high, high.high - low.low
    if least <= 0:
        return []
    per_token = [(large - small) / tokens for tokens in (high.value - low.value, most, least)]
    method = f"difference of pools of {small:,} and {large:,} bytes: what does not grow with the pool cancels"
    n = low.n + high.n
    fixed = [small - per_token[0] * low.value, small - per_token[2] * low.high, small - per_token[1] * low.low]
    return [
        Estimate(
            name="bytes_per_token_of_two_pools",
            value=per_token[0],
            low=per_token[1],
            high=per_token[2],
            unit="bytes/token",
            method=method,
            n=n,
        ),
        Estimate(
            name="bytes_beside_tokens",
            value=max(0.0, fixed[0]),
            low=max(0.0, fixed[1]),
            high=max(0.0, fixed[2]),
            unit="bytes",
            method="memory less bytes a token times capacity: null block, and what a running request takes besides",
            n=n,
        ),
    ]
