"""Hit rate and TTFT of another load, pool or trace, from what one run was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.decode import BASE, SLOPE, fit_decode
from kvbench.analysis.fit.gauge import fit_gauge
from kvbench.analysis.fit.given import NOTHING_GIVEN, Given
from kvbench.analysis.fit.ramp import fit_capacity
from kvbench.analysis.fit.trace import fit_trace
from kvbench.analysis.fit.ttft import Latency, latency_of
from kvbench.analysis.fit.ttft_model import Floats, Rows
from kvbench.analysis.predicting.cliff import cliff_of
from kvbench.analysis.predicting.hits import Takes, ordered
from kvbench.analysis.predicting.load import Load
from kvbench.analysis.predicting.target import Target
from kvbench.model import Estimate, Figure, FitReport, Predicted, Record, Refusal
from kvbench.runs.reader import Run

MOST_BESIDE = 0.05
"""Share of requests that others run beside, above which waiting is no exception and TTFT is a floor alone."""
UNSURE = 0.3
NOISE_DRAWS = 20
ALONE = "kvbench run with --max-in-flight 1, or fewer sessions"


@dataclass(frozen=True)
class Model:
    """What a run was fitted to. capacity: (low, value, high) tokens; only low where nothing was lost. None: refused,
    and `refusals` say why."""

    capacity: tuple[float, float | None, float | None] | None
    latency: Latency | None
    base_s: float
    slope_s: float
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()

    def takes(self, target: Target) -> Takes:
        """Seconds of each turn: its TTFT and its other tokens; where TTFT is refused, as recorded."""
        latency = self.latency
        if latency is None:
            return lambda cached: target.takes_s
        context = target.input_tokens + target.output_tokens / 2
        answers = np.maximum(0, target.output_tokens - 1) * (self.base_s + self.slope_s * context)
        return lambda cached: latency.fitted.predict(rows_of(latency, target.input_tokens, cached)) + answers


def model_of(
    run: Run, given: Given = NOTHING_GIVEN, capacity_tokens: float | None = None, latency_run: Run | None = None
) -> Model:
    """capacity_tokens: known, or of another pool; else as the run, a replay or a capacity probe, tells. latency_run:
    whose TTFT terms hold; else the run's own."""
    refusals: list[Refusal] = []
    notes: tuple[str, ...] = ()
    capacity: tuple[float, float | None, float | None] | None = None
    if capacity_tokens is not None:
        capacity = (capacity_tokens, capacity_tokens, capacity_tokens)
    else:
        fitted = fit_capacity(run) if run.info.settings.get("probe") == "capacity" else fit_trace(run)
        found = fitted.named("capacity_tokens")
        if found is None:
            refusals += [
                Refusal(name="hit_rate", reason=r.reason, experiment=f"{r.experiment}; or give --capacity-tokens")
                for r in fitted.refusals
                if r.name == "capacity_tokens"
            ]
        else:
            capacity = (found.low or 0.0, found.value, found.high)
            gauge = fit_gauge(run, None).named("capacity_tokens_of_gauge") if found.value is None else None
            if gauge is not None and gauge.value is not None and gauge.value >= capacity[0]:
                capacity = (max(capacity[0], gauge.low or 0.0), gauge.value, gauge.high or gauge.value)
                notes = ("the run lost nothing: the capacity is that of the server's own gauge",)
    timed = latency_run or run
    latency = latency_of(timed, given)
    if isinstance(latency, FitReport):
        refusals += [Refusal(name="ttft_p50_s", reason=r.reason, experiment=r.experiment) for r in latency.refusals]
    base, slope = _decode(run, given)
    known = None if isinstance(latency, FitReport) else latency
    return Model(capacity, known, base, slope, tuple(refusals), notes)


def predict(fitted_on: str, model: Model, target: Target, load: Load, how: str, *, observed: bool) -> Predicted:
    """observed: the target is a run at this load, to be held against."""
    refusals, notes = list(model.refusals), [*target.notes, *model.notes]
    figures: list[Figure] = []
    takes = model.takes(target)
    value = low = high = None
    if model.capacity is not None:
        low, value, high = model.capacity
        if value is None:
            _, hits, cached = ordered(target, load, low, takes)
            if cached.sum() < hits.at(None).sum():
                refusals.append(_only_a_bound(low, hits.sufficient_tokens))
                return Predicted(
                    fitted_on=fitted_on, target=target.name, how=how, capacity_tokens=None, requests=len(target.rows),
                    figures=(), refusals=tuple(refusals), cliff=None, notes=tuple(notes),
                )  # fmt: skip
            value, high = low, low
            notes.append("the capacity is known from below alone, and even that loses nothing here")
        assert high is not None
        at = [ordered(target, load, capacity, takes) for capacity in (low, value, high)]
        counted = _counted(target)
        hit = [float(cached[counted].sum() / target.input_tokens[counted].sum()) for _, _, cached in at]
        figures.append(_rate(hit, target.records if observed else ()))
        if model.latency is not None:
            beside = at[1][0].beside
            made = _ttft(model.latency, target, [cached for _, _, cached in at], beside, observed)
            figures += made if isinstance(made, list) else []
            refusals += [made] if isinstance(made, Refusal) else []
            if beside > MOST_BESIDE:
                notes.append(
                    f"{beside * 100:.0f}% of the requests would have others beside them: what they wait is not "
                    f"predicted, so TTFT is a floor; {ALONE} has a figure"
                )
    return Predicted(
        fitted_on=fitted_on,
        target=target.name,
        how=how,
        capacity_tokens=value,
        requests=len(target.rows),
        figures=tuple(figures),
        refusals=tuple(refusals),
        cliff=cliff_of(target, load, value, takes) if value is not None else None,
        notes=tuple(notes),
    )


def rows_of(latency: Latency, input_tokens: NDArray[np.int64], cached: Floats) -> Rows:
    """Rows for the fitted form, replays counted as it was fitted."""
    n = len(cached)
    return Rows.of([""] * n, (input_tokens - cached).tolist(), cached.tolist(), [1.0] * n).replayed(
        latency.replay_tokens
    )


def quantiles(latency: Latency, rows: Rows, q: float) -> tuple[float, float, float]:
    """(low, value, high) of a quantile of TTFT over the rows, with the scatter of the fitted run's requests."""
    off = np.exp(latency.fitted.log_residuals(latency.rows))
    rng = np.random.default_rng(0)
    noise = rng.choice(off, (NOISE_DRAWS, len(rows)))

    def of(predicted: Floats) -> float:
        return float(np.mean(np.quantile(predicted * noise, q, axis=1)))

    drawn = [of(one.predict(rows)) for one in latency.drawn]
    value = of(latency.fitted.predict(rows))
    return min(value, float(np.quantile(drawn, 0.05))), value, max(value, float(np.quantile(drawn, 0.95)))


def ttft_figures(
    latency: Latency, several: Sequence[Rows], observed_s: Sequence[float], *, floor: bool = False
) -> list[Figure] | Refusal:
    """p50 and p95 over rows of one, or at several capacities of which the middle one is the figure."""
    figures = []
    for name, q in (("ttft_p50_s", 0.5), ("ttft_p95_s", 0.95)):
        found = [quantiles(latency, rows, q) for rows in several]
        low, high = min(f[0] for f in found), max(f[2] for f in found)
        value = found[len(found) // 2][1]
        if (high - low) > UNSURE * value:
            return Refusal(
                name=name,
                reason=f"the fit says {low:.3g} to {high:.3g} s: the run's requests do not tell how long these take",
                experiment="kvbench probe latency, or a run whose prompts are as long as these and hit as little",
            )
        seen = float(np.quantile(observed_s, q)) if len(observed_s) else None
        figures.append(
            Figure(
                name=name,
                value=None if floor else value,
                low=low,
                high=None if floor else high,
                unit="s",
                observed=seen,
                error=None if seen is None or floor else value / seen - 1,
            )
        )
    return figures


def _ttft(
    latency: Latency, target: Target, cached: list[Floats], beside: float, observed: bool
) -> list[Figure] | Refusal:
    if latency.fitted.form.tiers:
        return Refusal(
            name="ttft_p50_s",
            reason="hits came from tiers below HBM, and which would at another load is not known",
            experiment="kvbench plan PROFILE.toml, which has hits by tier",
        )
    counted = _counted(target)
    several = [rows_of(latency, target.input_tokens, one).take(counted) for one in cached]
    seen = [
        (r.clock.first_token - r.clock.sent) / 1e9
        for r in (target.records if observed else ())
        if r.phase == "measure" and r.clock.first_token is not None and r.clock.sent is not None
    ]
    return ttft_figures(latency, several, seen, floor=beside > MOST_BESIDE)


def _rate(hit: list[float], records: Sequence[Record]) -> Figure:
    known = [r for r in records if r.phase == "measure" and r.usage.cached_tokens is not None]
    asked = sum(r.usage.input_tokens or 0 for r in known)
    seen = sum(r.usage.cached_tokens or 0 for r in known) / asked if asked else None
    return Figure(
        name="hit_rate",
        value=hit[1],
        low=min(hit),
        high=max(hit),
        unit="share of input tokens",
        observed=seen,
        error=None if seen is None else hit[1] - seen,
    )


def _counted(target: Target) -> NDArray[np.bool_]:
    """Turns of the measured phase; all where nothing was run."""
    if not target.records:
        return np.ones(len(target.rows), bool)
    return np.array([r.phase == "measure" for r in target.records], bool)


def _decode(run: Run, given: Given) -> tuple[float, float]:
    """(s a token, s a token and token of context): as fitted, else the median TPOT."""
    fitted = fit_decode(run, given)
    base, slope = fitted.named(BASE), fitted.named(SLOPE)
    if base is not None and base.value is not None:
        return base.value, (slope.value or 0.0) if isinstance(slope, Estimate) else 0.0
    tpot = [
        (r.clock.last_token - r.clock.first_token) / 1e9 / (r.usage.output_tokens - 1)
        for r in run.records
        if r.ok
        and r.clock.first_token is not None
        and r.clock.last_token is not None
        and (r.usage.output_tokens or 0) > 1
        and r.usage.output_tokens is not None
    ]
    return (float(np.median(tpot)) if tpot else 0.0), 0.0


def _only_a_bound(least: float, most: int) -> Refusal:
    return Refusal(
        name="hit_rate",
        reason=f"the fitted run lost nothing: the cache holds {least:,.0f} tokens or more, and what is asked for would "
        f"need up to {most:,}",
        experiment="fit a run at a higher load, or give --capacity-tokens",
    )
