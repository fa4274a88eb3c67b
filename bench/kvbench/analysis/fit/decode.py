"""What a token of context costs each generated token: TPOT = base + s x context, over requests that ran alone.

context: tokens of the prompt and half of the answer, as a mean over the steps. Log residuals, soft L1, terms at least
0, 90% bootstrap by cell or session tree. The slope is what a step reads of a token of context, over the bandwidth that
it reads with; what a cache keeps of a token is another thing: an engine with an index reads less than it keeps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.given import NOTHING_GIVEN, Given
from kvbench.analysis.fit.latency_rows import alone_of
from kvbench.analysis.fit.ttft_model import Floats, least
from kvbench.model import Estimate, FitReport, Record, Refusal
from kvbench.runs.reader import Run

BASE, SLOPE, READ = "decode_base_s", "decode_s_per_context_token", "decode_bytes_read_per_context_token"
FEWEST = 20
FEWEST_GROUPS = 8
LEAST_OUTPUT_TOKENS = 8
LEAST_SPREAD = 4.0
UNSURE = 0.3
NOTHING = 0.005
BOOTSTRAPS = 200
PROBE = "kvbench probe latency --output-tokens 64, with a --max-input-tokens as long as contexts get"


def fit_decode(run: Run, given: Given = NOTHING_GIVEN) -> FitReport:
    """The two terms; refused where contexts are too much alike or nothing ran alone."""
    alone = alone_of(run.records)
    usable = [r for r in run.records if _tpot_s(r) is not None]
    found = [r for r in usable if r.request_id in alone]
    context = np.array([_context(r) for r in found], float)
    tpot = np.array([_tpot_s(r) or 0.0 for r in found], float)
    why = _why_not(len(usable), context)
    if why is not None:
        return _refused(run, why)
    columns = np.column_stack([np.ones_like(context), context])
    best = least(columns, tpot)
    low, high = _intervals(columns, tpot, np.array([_group(run, r) for r in found], str))
    low, high = np.minimum(low, best), np.maximum(high, best)
    longest = float(context.max())
    typical = float(np.median(tpot))
    if (high[1] - low[1]) * longest > UNSURE * typical:
        return _refused(
            run,
            f"what context adds is known to {(high[1] - low[1]) * longest / typical * 100:.0f}% of TPOT only: the "
            "requests are too few, or their contexts too much alike",
        )
    low = np.where(low * columns.max(axis=0) < NOTHING * typical, 0.0, low)
    told = f"TPOT of requests that ran alone, {int(context.min()):,} to {int(longest):,} tokens of context"
    tail = "log residuals, soft L1, 90% bootstrap"
    estimates = [
        _estimate(
            BASE, best[0], low[0], high[0], "s/token", f"a generated token without context; {told}; {tail}", found
        ),
        _estimate(
            SLOPE, best[1], low[1], high[1], "s/token^2", f"a token of context, each step; {told}; {tail}", found
        ),
    ]
    if given.hbm_bytes_per_s is not None:
        method = f"slope x {given.hbm_bytes_per_s:,.0f} bytes/s as given: what a step reads of a token of context"
        read = [float(v) * given.hbm_bytes_per_s for v in (best[1], low[1], high[1])]
        estimates.append(_estimate(READ, read[0], read[1], read[2], "bytes/token", method, found))
    notes = ("the decode slope tells what a step reads of a token of context, not what the cache keeps of one",)
    return FitReport(runs=(str(run.path),), estimates=tuple(estimates), notes=notes)


def _why_not(usable: int, context: Floats) -> str | None:
    if not usable:
        return f"no answer has {LEAST_OUTPUT_TOKENS} tokens or more that are reported and dated"
    if len(context) < FEWEST:
        beside = (
            f"; {usable - len(context):,} others had requests in flight beside them" if usable > len(context) else ""
        )
        return f"{len(context)} answers of {LEAST_OUTPUT_TOKENS} tokens or more ran alone{beside}: at least {FEWEST}"
    if context.max() < LEAST_SPREAD * context.min():
        return f"contexts only range from {context.min():,.0f} to {context.max():,.0f} tokens: no slope can be told"
    return None


def _tpot_s(record: Record) -> float | None:
    clock, tokens = record.clock, record.usage.output_tokens
    if not record.ok or not record.final or tokens is None or tokens < LEAST_OUTPUT_TOKENS:
        return None
    if clock.first_token is None or clock.last_token is None or record.usage.input_tokens is None:
        return None
    spent = clock.last_token - clock.first_token
    return spent / 1e9 / (tokens - 1) if spent > 0 else None


def _context(record: Record) -> float:
    return (record.usage.input_tokens or 0) + (record.usage.output_tokens or 0) / 2


def _group(run: Run, record: Record) -> str:
    if run.info.settings.get("probe"):
        return record.request_id.partition("/")[0]
    return record.root_id or record.session_id


def _intervals(columns: Floats, tpot: Floats, groups: NDArray[np.str_]) -> tuple[Floats, Floats]:
    names = np.unique(groups)
    if len(names) < FEWEST_GROUPS:
        groups = np.arange(len(tpot)).astype(str)
        names = groups
    of = [np.flatnonzero(groups == name) for name in names]
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(BOOTSTRAPS):
        which = np.concatenate([of[i] for i in rng.integers(0, len(of), len(of))])
        drawn.append(least(columns[which], tpot[which]))
    return np.quantile(drawn, 0.05, axis=0), np.quantile(drawn, 0.95, axis=0)


def _estimate(
    name: str, value: float, low: float, high: float, unit: str, method: str, found: list[Record]
) -> Estimate:
    """Without a figure where it may as well be 0: a bound alone."""
    return Estimate(
        name=name,
        value=None if low == 0.0 else float(value),
        low=float(low),
        high=float(high),
        unit=unit,
        method=method,
        n=len(found),
    )


def _refused(run: Run, reason: str) -> FitReport:
    return FitReport(runs=(str(run.path),), refusals=(Refusal(name=SLOPE, reason=reason, experiment=PROBE),))
