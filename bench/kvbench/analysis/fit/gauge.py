"""The pool from the server's own gauge: how its fullness goes with the tokens that requests hold.

    kv_cache_usage_perc = u0 + f * requests + s * resident_tokens

by least squares over scrapes at which every request was generating. The pool then holds 1/s tokens; with its memory M a
token takes M s bytes and a session M f besides, less half a block, by which its last block is not full: the block is
the step in which the gauge is seen to go. Intervals are 90% of a bootstrap over stretches of scrapes with the
same requests, widened for their small number (200 made runs of 14 sets of requests: 91% held the truth). What the
server states of its cache (block size, number of blocks, tokens) is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.memory import Memory, memory_of, server_cache, server_claims
from kvbench.analysis.fit.residents import BUSY, FOREIGN, PREEMPTED, Held, Observed, observed
from kvbench.analysis.fit.steps import stop_reason
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.blocks import BLOCKS_FILE
from kvbench.runs.reader import Run

CAPACITY, PER_TOKEN, PER_SESSION = (
    f"{n}_of_gauge" for n in ("capacity_tokens", "bytes_per_token", "bytes_per_session")
)
PROBE = "kvbench probe occupancy, on the endpoint with nothing else on it"
FEWEST = 20
FEWEST_STRETCHES = 8
MOST_STRETCHES = 40
FOREIGN_LIMIT = 0.1
LEAST_OWN_SHARE = 0.01
"""Of the variance of tokens: what the number of requests does not already say."""
WIDEST = 0.5
MISFIT_LIMIT = 0.05
BENT = 0.1
"""A slope that changes by more over the lengths seen is not one slope."""
BOOTSTRAPS = 400
OFF_STEP = 0.05
MOST_NULL_SHARE = 0.01
ASSUMED = (
    "one engine whose gauge counts the blocks of running requests (vLLM's does); sliding windows shorter than the "
    "shortest prompt"
)
ROUNDED = "half a block is taken off the bytes a session, as last blocks are half full on average"
UNROUNDED = "the gauge does not go in steps of a block, so what last blocks lack is in the bytes a session"

Floats = NDArray[np.float64]


def fit_gauge(run: Run, kv_memory_bytes: int | None = None) -> FitReport:
    """capacity_tokens_of_gauge; with a known memory, bytes_per_token_of_gauge and bytes_per_session_of_gauge too."""
    designed = run.info.settings.get("probe") is not None
    if (why := _unusable(run, designed)) is not None:
        return _refused(run, *why)
    seen = observed(run, shared=not designed)
    if (why := _disturbed(seen)) is not None:
        stopped = stop_reason(run) if designed else None
        return _refused(run, why[0] if stopped is None else f"{why[0]}; it ended early: {stopped}", why[1])
    fit = _fit(seen.held)
    if isinstance(fit, str):
        return _refused(run, fit, PROBE, fit_of=seen)
    misfit = Misfit(
        share=fit.misfit,
        limit=MISFIT_LIMIT,
        causes=("a sliding window within the lengths", "other traffic", "shared prefixes that are not known")
        if fit.misfit > MISFIT_LIMIT or fit.bent
        else (),
    )
    rows = tuple(
        {"requests": h.requests, "tokens": round(h.tokens), "usage": h.usage, "predicted": round(float(p), 9)}
        for h, p in zip(seen.held, fit.predicted, strict=True)
    )
    if fit.misfit > MISFIT_LIMIT or fit.bent:
        why_bent = "the gauge does not grow in proportion to tokens: a token of a longer prompt takes another share"
        off = (
            f"the best line is off by {fit.misfit * 100:.1f}% of what the gauge said (limit {MISFIT_LIMIT * 100:.0f}%)"
        )
        experiment = f"{PROBE}, with --input-tokens above the model's window"
        return _refused(run, why_bent if fit.bent else off, experiment, misfit=misfit, rows=rows)
    return _estimates(run, fit, memory_of(run, kv_memory_bytes), seen, misfit, rows)


class _Fit(NamedTuple):
    """Each (value, low, high). f: None where the number of requests never changed."""

    u0: tuple[float, float, float]
    f: tuple[float, float, float] | None
    s: tuple[float, float, float]
    misfit: float
    bent: bool
    predicted: Floats


def _fit(held: Sequence[Held]) -> _Fit | str:
    """The line, or why there is none."""
    usage = np.array([h.usage for h in held])
    requests = np.array([h.requests for h in held], float)
    tokens = np.array([h.tokens for h in held])
    if np.ptp(tokens) == 0 or np.ptp(usage) == 0:
        return "what requests held never changed, so the gauge shows no slope"
    several = np.ptp(requests) > 0
    columns = [np.ones_like(usage), requests, tokens] if several else [np.ones_like(usage), tokens]
    own = 1 - _explained(np.column_stack(columns[:-1]), tokens)
    if own < LEAST_OWN_SHARE:
        return (
            "tokens and the number of requests went together (all requests were about as long), so what a token takes "
            "cannot be told from what a request takes"
        )
    scale = np.array([1.0, requests.max(), tokens.max()] if several else [1.0, tokens.max()])
    terms = np.column_stack(columns) / scale
    stretches = _stretches(held)
    best = np.linalg.lstsq(terms, usage, rcond=None)[0] / scale
    lows, highs = _bootstrap(terms, usage, stretches, scale)
    wider = _small_sample(sum(1 for rows in stretches if requests[rows].any()), len(best))
    lows, highs = best - wider * (best - lows), best + wider * (highs - best)
    predicted = (terms * scale) @ best
    at = len(best) - 1
    found = [(float(best[i]), float(min(lows[i], best[i])), float(max(highs[i], best[i]))) for i in range(len(best))]
    if found[at][1] <= 0 or (found[at][2] - found[at][1]) / found[at][0] > WIDEST:
        return "the share of the pool that a token takes is not known to within a half of itself"
    misfit = float(np.abs(usage - predicted).sum() / usage.sum())
    bent = _is_bent(terms, usage, held, found[at][0])
    return _Fit(found[0], found[1] if several else None, found[at], misfit, bent, predicted)


def _explained(columns: Floats, target: Floats) -> float:
    """R^2 of the target on the columns."""
    scaled = target / target.max()
    left = scaled - columns @ np.linalg.lstsq(columns, scaled, rcond=None)[0]
    return 1 - float((left**2).sum() / ((scaled - scaled.mean()) ** 2).sum())


def _is_bent(terms: Floats, usage: Floats, held: Sequence[Held], slope: float) -> bool:
    """Whether a term in squared tokens of each request halves what is left, and changes the slope from the shortest to
    the longest request by more than BENT."""
    squares = np.array([h.squares for h in held])
    lengths = np.array([h.tokens / h.requests for h in held if h.requests])
    wider = np.column_stack([terms, squares / squares.max()])
    line, curve = (np.linalg.lstsq(t, usage, rcond=None)[0] for t in (terms, wider))
    left = [float(((usage - t @ p) ** 2).sum()) for t, p in ((terms, line), (wider, curve))]
    change = 2 * float(curve[-1]) / float(squares.max()) * float(np.ptp(lengths))
    return left[1] < 0.5 * left[0] and abs(change) > BENT * slope


def _stretches(held: Sequence[Held]) -> list[NDArray[np.int64]]:
    """Scrapes that follow one another and saw the same requests, joined where there are many of them."""
    starts = [i for i, h in enumerate(held) if i == 0 or h.who != held[i - 1].who]
    pieces = np.split(np.arange(len(held)), starts[1:])
    groups = np.array_split(np.arange(len(pieces)), min(len(pieces), MOST_STRETCHES))
    return [np.concatenate([pieces[i] for i in group]) for group in groups]


def _bootstrap(
    terms: Floats, usage: Floats, stretches: list[NDArray[np.int64]], scale: Floats
) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(BOOTSTRAPS):
        rows = np.concatenate([stretches[i] for i in rng.integers(0, len(stretches), len(stretches))])
        if np.linalg.matrix_rank(terms[rows]) == terms.shape[1]:
            found.append(np.linalg.lstsq(terms[rows], usage[rows], rcond=None)[0] / scale)
    if not found:
        return np.full(len(scale), -np.inf), np.full(len(scale), np.inf)
    return np.quantile(found, 0.05, axis=0), np.quantile(found, 0.95, axis=0)


def _small_sample(stretches: int, terms: int) -> float:
    """How much wider than its quantiles a bootstrap's interval has to be, as it draws from few stretches, some of which
    the line has already been bent to: Student's t against the normal, and the lost degrees of freedom."""
    from scipy.stats import norm, t

    free = max(1, stretches - terms)
    return float(t.ppf(0.95, free) / norm.ppf(0.95) * np.sqrt(stretches / free))


def _unusable(run: Run, designed: bool) -> tuple[str, str] | None:
    cache, urls = server_cache(run), (run.info.server or {}).get("metrics_urls") or ()
    failed = next((r for r in run.records if not r.ok), None)
    if designed and failed is not None:
        return f"request {failed.request_id} failed ({failed.error_class}: {failed.error_message})", f"{PROBE} again"
    if not any("kv_usage" in (e.get("metrics") or e) for e in run.events):
        return "the endpoint shows no kv_cache_usage_perc", "an endpoint whose /metrics can be read (metrics_urls)"
    if len(urls) > 1 or int(cache.get("engines") or 1) > 1:
        return (
            "several engines answer, and the gauge is the fullest one's: which of them held a request is not known",
            "the same on one engine, by its own URL",
        )
    if not designed and not (run.path / BLOCKS_FILE).is_file():
        return (
            "which tokens the requests shared is not known: the run does not hold its prompts' blocks",
            "kvbench probe occupancy, whose prompts share nothing",
        )
    return None


def _disturbed(seen: Observed) -> tuple[str, str] | None:
    """Too few scrapes of use, or too many that something else had a part in."""
    held, left_out = seen.held, seen.left_out
    told = "; ".join(f"{count} of {seen.scrapes} scrapes: {why}" for why, count in left_out.most_common())
    foreign = left_out[FOREIGN]
    if foreign > max(1, FOREIGN_LIMIT * (foreign + len(held))):
        return f"others used the endpoint at the same time ({told})", PROBE
    busy = [h for h in held if h.requests]
    stretches = len(_stretches(busy)) if busy else 0
    if len(busy) < FEWEST or stretches < FEWEST_STRETCHES:
        why = (
            f"too few scrapes of use: {len(busy)}, over {stretches} sets of requests, where it takes {FEWEST} over "
            f"{FEWEST_STRETCHES}"
        )
        return f"{why}{f' ({told})' if told else ''}", "kvbench probe occupancy, or a longer run"
    return None


def _estimates(
    run: Run, fit: _Fit, memory: Memory | None, seen: Observed, misfit: Misfit, rows: tuple[dict[str, float], ...]
) -> FitReport:
    n = len(seen.held)
    method = f"gauge against tokens held, {n} scrapes; 90% bootstrap over stretches of the same requests"
    s, low, high = fit.s
    estimates = [Estimate(name=CAPACITY, value=1 / s, low=1 / high, high=1 / low, unit="tokens", method=method, n=n)]
    refusals = []
    # a null block is in the memory and not in what the gauge is a share of
    block = _one_block([h.usage for h in seen.held])
    beside = None if fit.f is None else tuple(part - block / 2 for part in fit.f)
    of = {PER_TOKEN: ("bytes/token", fit.s), PER_SESSION: ("bytes/session", beside)}
    for name, (unit, term) in of.items():
        if term is None:
            why = "as many requests ran at every scrape, so what one takes besides its tokens is not seen"
            refusals.append(Refusal(name=name, reason=why, experiment=PROBE))
        elif memory is None:
            why = "the memory that the pool takes up is not known"
            refusals.append(Refusal(name=name, reason=why, experiment="kvbench fit RUN --kv-memory BYTES"))
        else:
            value, least, most = (max(0.0, memory.bytes_ * part) for part in term)
            least *= 1 - min(MOST_NULL_SHARE, block)
            how = f"memory times share of the pool; {method}"
            estimates.append(Estimate(name=name, value=value, low=least, high=most, unit=unit, method=how, n=n))
    notes = [ROUNDED if block else UNROUNDED] if fit.f is not None and memory is not None else []
    if fit.u0[1] > 0.01:
        notes.append(f"{fit.u0[0] * 100:.1f}% of the pool is held where nothing runs")
    notes += [f"left out, {count} of {seen.scrapes} scrapes: {why}" for why, count in _worth_telling(seen)]
    if (claims := server_claims(run)) is not None:
        notes.append(claims)
    return FitReport(
        runs=(str(run.path),),
        estimates=tuple(estimates),
        refusals=tuple(refusals),
        misfit=misfit,
        assumed=(ASSUMED, *([memory.stated] if memory is not None and memory.stated else [])),
        notes=tuple(notes),
        residuals=rows,
    )


def _one_block(usages: Sequence[float]) -> float:
    """Share of the pool of one block: the least step that the gauge was seen to take, where all others are whole
    multiples of it; 0 where they are not."""
    values = np.unique(np.round(usages, 12))
    steps = np.diff(values)
    least = float(steps[steps > 1e-9].min(initial=1.0))
    whole = (values - values[0]) / least
    return least if float(np.abs(whole - np.round(whole)).max()) < OFF_STEP else 0.0


def _worth_telling(seen: Observed) -> list[tuple[str, int]]:
    return [(why, count) for why, count in seen.left_out.most_common() if why in (FOREIGN, PREEMPTED, BUSY)]


def _refused(
    run: Run,
    reason: str,
    experiment: str,
    *,
    fit_of: Observed | None = None,
    misfit: Misfit | None = None,
    rows: tuple[dict[str, float], ...] = (),
) -> FitReport:
    refusal = Refusal(name=CAPACITY, reason=reason, experiment=experiment)
    claims = server_claims(run)
    notes = (claims,) if claims is not None and fit_of is not None else ()
    return FitReport(runs=(str(run.path),), refusals=(refusal,), misfit=misfit, notes=notes, residuals=rows)
