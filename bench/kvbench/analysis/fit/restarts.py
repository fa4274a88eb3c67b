"""Bytes a token and a session from one server started again with other context lengths.

A server says how many tokens its pool holds as so many requests of its longest context (vLLM: kv_cache_size_tokens), so
at length L that is memory / (m + F / L) tokens. From one length the figure is no capacity where F is not 0; from three,
    memory / tokens = m + F / L
has both, and shows whether it holds. Both are bounded by a linear program: a request of L tokens is counted in whole
blocks, so each quotient is too large by up to a block of L, and the tokens are rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.analysis.fit.memory import Memory, memory_of, server_cache
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

PER_TOKEN, PER_SESSION = "bytes_per_token_of_restarts", "bytes_per_session_of_restarts"
FEWEST_LENGTHS = 3
UNKNOWN_BLOCK = 256
EXPERIMENT = "the same server started with at least three --max-model-len, each twice as long as the one before"
ASSUMED = (
    "the server's own count of its tokens, by how it goes with the longest context: the same pool each time, and a "
    "session's bytes are those of a request of that length (with a sliding window, a whole prefill step beside it)"
)


class Start(NamedTuple):
    """One start of the server: longest context, and tokens that it then says it holds."""

    length: int
    tokens: int
    block: int


def fit_restarts(runs: Sequence[Run], kv_memory_bytes: int | None = None) -> FitReport | None:
    """None where the runs are not of one model, or all of one context length: there is nothing to be told then."""
    lengths = {(run.info.server or {}).get("max_model_len") for run in runs}
    models = {(run.info.server or {}).get("model") for run in runs}
    if len(models) != 1 or len(lengths) < 2:
        return None
    told = dict.fromkeys(s for run in runs if (s := _start(run)) is not None)
    starts = {s.length: s for s in told}
    if len(starts) < FEWEST_LENGTHS:
        why = f"the runs have {len(starts)} context lengths at which the server said how many tokens it holds; at least"
        return _refused(f"{why} {FEWEST_LENGTHS} tell bytes a token from bytes a session")
    unlike = next((s for s in told if s != starts[s.length]), None)
    if unlike is not None:
        other = starts[unlike.length]
        return _refused(
            f"at {unlike.length:,} tokens of context the server said once that it holds {unlike.tokens:,} in blocks of "
            f"{unlike.block}, and once {other.tokens:,} in blocks of {other.block}: not the same server each time"
        )
    memories = {memory_of(run, kv_memory_bytes) for run in runs}
    if len(memories) > 1:
        return _refused("the memory of the KV cache was not the same at each start, or is only known of some")
    points = [starts[length] for length in sorted(starts)]
    return _fitted(points, memories.pop())


def _fitted(starts: Sequence[Start], memory: Memory | None) -> FitReport:
    bounds = share_bounds(starts)
    if bounds is None:
        misfit = Misfit(
            share=1.0,
            limit=0.0,
            causes=("a window that the shortest context does not fill", "another pool at each start"),
        )
        told = ", ".join(f"{s.tokens:,} at {s.length:,}" for s in starts)
        refused = _refused(f"no bytes a token and bytes a session explain {told} tokens")
        return FitReport(runs=(), refusals=refused.refusals, misfit=misfit)
    scale = 1.0 if memory is None else float(memory.bytes_)
    units = ("memory/token", "memory/session") if memory is None else ("bytes/token", "bytes/session")
    suffix = ", as shares of the memory" if memory is None else ""
    spread = f"{starts[0].length:,} to {starts[-1].length:,} tokens"
    method = f"linear program over {len(starts)} context lengths, {spread}{suffix}"
    estimates = tuple(
        Estimate(
            name=name,
            value=scale * value,
            low=scale * low,
            high=scale * high,
            unit=unit,
            method=method,
            n=len(starts),
        )
        for name, unit, (value, low, high) in zip((PER_TOKEN, PER_SESSION), units, bounds, strict=True)
    )
    stated = (memory.stated,) if memory is not None and memory.stated else ()
    return FitReport(runs=(), estimates=estimates, assumed=(ASSUMED, *stated))


def share_bounds(starts: Sequence[Start]) -> tuple[tuple[float, float, float], tuple[float, float, float]] | None:
    """(value, low, high) of m and of F as shares of the memory; None where nothing fits.

    The value is the least-squares one, as far as it is within the bounds.
    """
    import numpy as np
    from scipy.optimize import linprog

    size = starts[0].length
    rows, limits = [], []
    for start in starts:
        most = 1 / start.tokens
        least = 1 / (start.tokens + 1) * start.length / (start.length + start.block)
        at = size / start.length
        rows += [[1.0, at], [-1.0, -at]]
        limits += [most * size, -least * size]
    ends = []
    for cost in ([1, 0], [-1, 0], [0, 1], [0, -1]):
        done = linprog(cost, A_ub=rows, b_ub=limits, bounds=[(0, None), (0, None)], method="highs")
        if done.status != 0:
            return None
        ends.append(abs(float(done.fun)))
    if ends[0] <= 0:
        return None
    terms = np.array([[1.0, size / s.length] for s in starts])
    best = np.linalg.lstsq(terms, np.array([size / s.tokens for s in starts]), rcond=None)[0]
    m, f = (min(max(float(best[i]), ends[2 * i]), ends[2 * i + 1]) for i in (0, 1))
    return (m / size, ends[0] / size, ends[1] / size), (f, ends[2], ends[3])


def _start(run: Run) -> Start | None:
    cache, length = server_cache(run), (run.info.server or {}).get("max_model_len")
    tokens, block = cache.get("stated_tokens"), cache.get("block_size")
    if not isinstance(length, int) or not isinstance(tokens, int) or tokens <= 0:
        return None
    return Start(length, tokens, block if isinstance(block, int) else UNKNOWN_BLOCK)


def _refused(reason: str) -> FitReport:
    return FitReport(runs=(), refusals=(Refusal(name=PER_TOKEN, reason=reason, experiment=EXPERIMENT),))
