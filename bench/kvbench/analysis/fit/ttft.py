"""What a hit and a miss cost in time, from a latency probe or an ordinary run: the terms of ttft_model.py.

Only requests that had the server to themselves count: waiting for others is no part of the model. Intervals are 90% of
a bootstrap. A term is given where the requests can tell it: its interval, where it counts most, is within 30% of TTFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.analysis.fit.given import NOTHING_GIVEN, Given
from kvbench.analysis.fit.latency_rows import Timed, timed_of
from kvbench.analysis.fit.steps import failure, stop_reason
from kvbench.analysis.fit.tiers import MOST_DOUBTFUL, not_below, split_by_time
from kvbench.analysis.fit.ttft_model import (
    FEWEST_TIER_ROWS,
    Fitted,
    Floats,
    Rows,
    choose,
    fit_form,
    intervals,
    tier_names,
    with_other_chunks,
)
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe latency"
MODEL = "ttft_model"
FEWEST = 20
FEWEST_GROUPS = 8
LEAST_SPREAD = 4.0
MOST_LATE = 0.5
MISFIT_LIMIT = 0.15
FORM_DOUBT = 0.03
UNSURE = 0.3
MATTERS = 0.1
COLLINEAR = 0.9
NOTHING = 0.005
"""Of the median TTFT: a term that adds less at its largest may as well be 0."""
CACHED = "prefill_s_per_cached_token"
CHUNKS = tuple(2**power for power in range(8, 16))
BOUND_ALONE = 0.05
"""Of the median TTFT: a term that may be 0 and may add more than this at its largest is a bound and no figure."""
REPLAY_TOKENS = 128
TERMS = {
    "ttft_base_s": ("s", "what a request takes however short"),
    "prefill_s_per_token": ("s/token", "an uncached token"),
    CACHED: ("s/token", "a cached token"),
    "attention_s_per_token2": ("s/token^2", "an uncached token against each token before it"),
    "prefill_s_per_chunk": ("s", "each step that a prefill is cut into"),
}


@dataclass(frozen=True)
class Latency:
    """A TTFT model that holds for a run's requests. rows: as fitted, replays counted as uncached. low, high: of each
    term and the floor; drawn: the fits they come from. share: median of |log residual|. by: what was drawn again.
    cached_at_most: s a cached token, where the form is without that term because the fit is as good."""

    fitted: Fitted
    rows: Rows
    low: Floats
    high: Floats
    drawn: tuple[Fitted, ...]
    share: float
    replay_tokens: int
    by: str
    cached_at_most: float | None
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]


def fit_latency(run: Run, given: Given = NOTHING_GIVEN) -> FitReport:
    """The terms that a run's requests support; refused where none can be told."""
    found = latency_of(run, given)
    if isinstance(found, FitReport):
        return found
    name = str(run.path)
    estimates = _estimates(found, given)
    residuals = tuple(
        {"uncached_tokens": int(u), "cached_tokens": int(c), "ttft_s": float(t), "predicted_s": float(p)}
        for u, c, t, p in zip(
            found.rows.uncached, found.rows.cached, found.rows.ttft_s, found.fitted.predict(found.rows), strict=True
        )
    )
    return FitReport(
        runs=(name,),
        estimates=estimates,
        refusals=found.refusals,
        misfit=Misfit(share=found.share, limit=MISFIT_LIMIT),
        notes=found.notes,
        residuals=residuals,
    )


def latency_of(run: Run, given: Given = NOTHING_GIVEN, only: Sequence[str] | None = None) -> Latency | FitReport:
    """The model, or the report of its refusal. only: session trees whose requests count."""
    timed = timed_of(run)
    if only is not None:
        keep = np.isin(timed.rows.group, np.array(list(only), str))
        timed = replace(
            timed,
            rows=timed.rows.take(keep),
            records=tuple(r for r, kept in zip(timed.records, keep, strict=True) if kept),
        )
    why = _unusable(run, timed)
    if why is not None:
        return _refused(run, *why)
    replay = _replay(run, given)
    rows = timed.rows.replayed(replay)
    notes = ["times are of one request at a time: under load, waiting comes on top"]
    if timed.left_out:
        notes.append(f"{timed.left_out:,} requests are left out: others were in flight beside them")
    if timed.late:
        notes.append(f"{timed.late:,} requests are left out: their arrival may be dated too late by 5% of TTFT or more")
    if replay:
        notes.append(f"of each hit {replay} tokens are taken to be computed again, and count as uncached")
    refusals: list[Refusal] = []
    rows, told = _with_tiers(rows, timed, notes, refusals)
    hot = float(np.ptp(rows.cached)) > LEAST_SPREAD * float(rows.uncached.min())
    tiers = [int(t) for t in np.unique(rows.tier) if t and (rows.tier == t).sum() >= FEWEST_TIER_ROWS]
    within = [size for size in CHUNKS if 2 * rows.uncached.min() <= size <= rows.uncached.max() / 2]
    best = choose(rows, cached=hot, chunk=given.chunk_tokens, chunks=within, tiers=tiers)
    residuals = best.log_residuals(rows)
    share = float(np.median(np.abs(residuals)))
    if share > MISFIT_LIMIT:
        return _misfit(run, rows, best, share)
    by = "cell" if run.info.settings.get("probe") else "session tree"
    if len(np.unique(rows.group)) < FEWEST_GROUPS:
        rows, by = replace(rows, group=np.arange(len(rows)).astype(str)), "request"
    cached_at_most = None
    if hot and not best.form.cached:
        best, cached_at_most = _without_cached_term(best, rows)
    low, high, drawn = intervals(best, rows)
    unsure = _unsure(best, rows, low, high)
    refusals += [Refusal(name=name, reason=why, experiment=_settles(run)) for name, why in unsure.items()]
    if not hot:
        refusals.append(_no_hits(run, rows))
    _absent_tiers(best, tiers, rows, told, notes, refusals)
    if best.form.chunk and not given.chunk_tokens:
        refusals += _unsure_chunk(best, rows, low, high)
    doubt = _form_doubt(best, rows)
    if doubt is not None:
        notes.append(doubt)
    if given.chunk_tokens and not best.form.chunk:
        notes.append(f"steps of {given.chunk_tokens:,} tokens take no time of their own that would show")
    return Latency(
        best, rows, low, high, tuple(drawn), share, replay, by, cached_at_most, tuple(refusals), tuple(notes)
    )  # fmt: skip


def _unusable(run: Run, timed: Timed) -> tuple[str, str] | None:
    """(reason, experiment) where the run's requests tell nothing of time."""
    probe = run.info.settings.get("probe")
    why = failure(run) if probe else None
    rows = timed.rows
    if why is None and not len(rows) and not timed.left_out and not timed.late:
        why = (stop_reason(run) if probe else None) or "the endpoint reports no cached tokens"
    if why is None and timed.late > MOST_LATE * (timed.late + len(rows)) and run.info.trust is not None:
        why = f"the client's own error is too large: {'; '.join(run.info.trust.reasons)}"
    if why is not None:
        return why, f"{PROBE} again"
    if len(rows) < FEWEST:
        beside = f" ({timed.left_out:,} others had requests in flight beside them)" if timed.left_out else ""
        return (
            f"{len(rows)} measured requests are too few{beside}: at least {FEWEST}",
            PROBE if probe else f"{PROBE}, or kvbench run with --max-in-flight 1",
        )
    if rows.uncached.min() <= 0 or rows.uncached.max() / rows.uncached.min() < LEAST_SPREAD:
        least, most = rows.uncached.min(), rows.uncached.max()
        return (
            f"uncached tokens only range from {least:,.0f} to {most:,.0f}: no slope can be told",
            f"{PROBE} with a larger --max-input-tokens" if probe else PROBE,
        )
    return None


def _replay(run: Run, given: Given) -> int:
    if given.replay_tokens is not None:
        return given.replay_tokens
    expected = run.info.endpoint.get("expected_hits")
    rule = expected.get("rule") if isinstance(expected, dict) else None
    return REPLAY_TOKENS if rule == "block-replay" else 0


def _with_tiers(rows: Rows, timed: Timed, notes: list[str], refusals: list[Refusal]) -> tuple[Rows, bool]:
    """The rows with hits from below HBM marked, and whether it is known which those are."""
    if timed.told or (rows.tier > 0).any():
        return rows, timed.told
    if timed.some_below is False or not (rows.cached > 0).any():
        return rows, True
    split = split_by_time(rows)
    if split is not None:
        slow = int((split.tier > 0).sum())
        notes.append(
            f"{slow} of {int((rows.cached > 0).sum())} hits took as long as hits from a slower tier do; the server "
            "does not say which were, their time does"
        )
        return split, False
    if timed.some_below:
        refusals.append(
            Refusal(
                name=tier_names(1)[1],
                reason="the server counted tokens from below HBM, and neither it nor their time says in which hits",
                experiment=f"{PROBE} --tier-after-tokens N, with N above what HBM holds",
            )
        )
    return rows, True


def _absent_tiers(
    best: Fitted, tiers: Sequence[int], rows: Rows, told: bool, notes: list[str], refusals: list[Refusal]
) -> None:
    for tier in tiers:
        names = tier_names(tier)
        if tier not in best.form.tiers:
            notes.append(f"hits from tier {tier} below HBM took no longer than those in it")
        elif not told and (wrong := not_below(best, rows)) > MOST_DOUBTFUL * (rows.tier > 0).sum():
            for name in names:
                refusals.append(
                    Refusal(
                        name=name,
                        reason=f"{wrong} of the {int((rows.tier > 0).sum())} prompts that should have left HBM "
                        "answered as if they had not, and the server does not say",
                        experiment=f"{PROBE} with a larger --tier-after-tokens",
                    )
                )


def _unsure(best: Fitted, rows: Rows, low: Floats, high: Floats) -> dict[str, str]:
    """Terms whose interval, where they count most, is wider than UNSURE of TTFT."""
    columns = best.form.columns(rows)
    share = columns / best.predict(rows)[:, None]
    found = {}
    for i, name in enumerate(best.form.names):
        wide = float((high[i] - low[i]) * share[:, i].max())
        if wide <= UNSURE:
            continue
        told = f"where it counts most its interval is {wide * 100:.0f}% of TTFT"
        others = np.delete(share, i, axis=1)
        left = share[:, i] - others @ np.linalg.lstsq(others, share[:, i], rcond=None)[0]
        explained = 1 - float((left**2).sum() / (share[:, i] ** 2).sum())
        if explained > COLLINEAR:
            told = f"it rises and falls with the other terms in these requests (R^2 {explained:.3f}): {told}"
        else:
            told = f"the requests are too few or too uneven: {told}"
        found[name] = told
    return found


def _unsure_chunk(best: Fitted, rows: Rows, low: Floats, high: Floats) -> list[Refusal]:
    """The size of a step, and the terms that it changes, where another explains the requests as well."""
    others = with_other_chunks(best, rows, [size for size in CHUNKS if size < rows.uncached.max()])
    if not others:
        return []
    sizes = " and of ".join(f"{one.form.chunk:,}" for one in (best, *others))
    why = f"steps of {sizes} tokens explain these requests alike"
    moved = [
        name for i, name in enumerate(best.form.names) if any(not low[i] <= one.terms[i] <= high[i] for one in others)
    ]
    experiment = "kvbench fit RUN --chunk-tokens N with the server's own, or more lengths"
    return [Refusal(name=name, reason=why, experiment=experiment) for name in ("chunk_tokens", *moved)]


def _form_doubt(best: Fitted, rows: Rows) -> str | None:
    """Where repeats of a cell agree with each other and not with the form."""
    names, cell, repeats = np.unique(rows.group, return_inverse=True, return_counts=True)
    n, cells, terms = len(rows), len(names), len(best.terms)
    if cells <= terms + 2 or n - cells < cells:
        return None
    off = best.log_residuals(rows)
    means = np.bincount(cell, off) / repeats
    within = float(((off - means[cell]) ** 2).sum()) / (n - cells)
    between = float((repeats * means**2).sum()) / (cells - terms)
    lack = float(np.sqrt(max(0.0, between - within) / (n / cells)))
    if lack < FORM_DOUBT or between < 3 * within:
        return None
    return (
        f"cells differ from the form by {lack * 100:.0f}% more than their repeats differ from each other: it is not "
        "quite this one"
    )


def _estimates(found: Latency, given: Given) -> tuple[Estimate, ...]:
    form, n = found.fitted.form, len(found.rows)
    largest = form.columns(found.rows).max(axis=0)
    median = float(np.median(found.rows.ttft_s))
    tail = f"log residuals, soft L1, 90% bootstrap by {found.by}"
    refused = {r.name for r in found.refusals}
    made: dict[str, Estimate] = {}
    for i, name in enumerate(form.names):
        unit, what = TERMS.get(name) or (
            ("s", "a hit from below HBM, however long")
            if name.endswith("latency_s")
            else ("s/token", "a token that comes up: bytes a token over the tier's bandwidth")
        )
        # the fit comes near 0 from above and never to it
        low = 0.0 if found.low[i] * largest[i] < NOTHING * median else float(found.low[i])
        high = float(found.high[i])
        value = None if low == 0.0 and high * largest[i] > BOUND_ALONE * median else float(found.fitted.terms[i])
        made[name] = Estimate(
            name=name, value=value, low=low, high=high, unit=unit, method=f"{what}; {tail}", n=_rests_on(found, name)
        )
    if form.chunk:
        how = "as given" if given.chunk_tokens else f"of {CHUNKS[0]} to {CHUNKS[-1]} in powers of 2, the best"
        made["chunk_tokens"] = Estimate(
            name="chunk_tokens", value=form.chunk, low=form.chunk, high=form.chunk, unit="tokens",
            method=f"tokens of a prefill step, {how}", n=n,
        )  # fmt: skip
    if form.floor:
        made["ttft_floor_s"] = Estimate(
            name="ttft_floor_s", value=found.fitted.floor_s, low=float(found.low[-1]), high=float(found.high[-1]),
            unit="s", method=f"no request is answered sooner; {tail}", n=n,
        )  # fmt: skip
    if CACHED not in refused and found.cached_at_most is not None:
        made[CACHED] = Estimate(
            name=CACHED, value=0.0, low=0.0, high=found.cached_at_most, unit="s/token",
            method="a cached token; the fit is as good without it", n=n,
        )  # fmt: skip
    through = made.get(tier_names(1)[1])
    if given.tier_bytes_per_s is not None and through is not None and through.name not in refused:
        made["bytes_per_token_through_tier"] = _through(through, given.tier_bytes_per_s)
    order = [*TERMS, *made]
    return tuple(made[name] for name in dict.fromkeys(order) if name in made and name not in refused)


def _rests_on(found: Latency, name: str) -> int:
    for tier in found.fitted.form.tiers:
        if name in tier_names(tier):
            return int((found.rows.tier == tier).sum())
    return len(found.rows)


def _through(per_token: Estimate, bytes_per_s: float) -> Estimate:
    def times(value: float | None) -> float | None:
        return None if value is None else value * bytes_per_s

    return Estimate(
        name="bytes_per_token_through_tier",
        value=times(per_token.value),
        low=times(per_token.low),
        high=times(per_token.high),
        unit="bytes/token",
        method=f"time of a token that comes up x {bytes_per_s:,.0f} bytes/s as given: as transferred",
        n=per_token.n,
    )


def _without_cached_term(best: Fitted, rows: Rows) -> tuple[Fitted, float | None]:
    """The fit, and the most that a cached token can take beside it. Where that would matter, the term stays in: without
    it the others would seem better known than they are."""
    fuller = fit_form(replace(best.form, cached=True), rows)
    _, high, _ = intervals(fuller, rows)
    most = float(high[fuller.form.names.index(CACHED)])
    if most * float((rows.cached / best.predict(rows)).max()) > MATTERS:
        return fuller, None
    return best, most


def _no_hits(run: Run, rows: Rows) -> Refusal:
    if (rows.cached > 0).any():
        why = "what was cached hardly differs between these requests, so nothing is known of a cached token's time"
    else:
        why = "nothing was cached in these requests, so nothing is known of a cached token's time"
    return Refusal(name=CACHED, reason=why, experiment=_settles(run))


def _settles(run: Run) -> str:
    return f"{PROBE} with more --repeats" if run.info.settings.get("probe") else PROBE


def _misfit(run: Run, rows: Rows, best: Fitted, share: float) -> FitReport:
    why = f"half of the requests are off by more than {share * 100:.0f}% (limit {MISFIT_LIMIT * 100:.0f}%)"
    refused = _refused(run, why, f"{PROBE} with nothing else on the endpoint")
    residuals = tuple(
        {"uncached_tokens": int(u), "cached_tokens": int(c), "ttft_s": float(t), "predicted_s": float(p)}
        for u, c, t, p in zip(rows.uncached, rows.cached, rows.ttft_s, best.predict(rows), strict=True)
    )
    causes = ("waiting behind other requests", "several servers", "hits that are not what is reported")
    return FitReport(
        runs=refused.runs,
        refusals=refused.refusals,
        misfit=Misfit(share=share, limit=MISFIT_LIMIT, causes=causes),
        residuals=residuals,
    )


def _refused(run: Run, reason: str, experiment: str) -> FitReport:
    refusal = Refusal(name=MODEL, reason=reason, experiment=experiment)
    return FitReport(runs=(str(run.path),), refusals=(refusal,))
