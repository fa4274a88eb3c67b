"""How long cached prompts live, from a ttl probe: a bracket where one age parts found from lost, else a survival curve.

Two curves of the share found at age t are fitted by likelihood, both with a share of lapses at any age, and the one of
less AIC is taken: logistic in log(t), and exponential.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.steps import failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe ttl"
FEWEST = 20
BOOTSTRAPS = 100

Floats = NDArray[np.float64]


def fit_ttl(run: Run) -> FitReport:
    """ttl_s: the age at which a prompt not asked for is lost; as a median where chance decides."""
    name = str(run.path)
    found = steps(run)
    primed = {(s.series, s.number): s.record.clock for s in found if s.role == "prime"}
    rows: list[tuple[float, bool]] = []
    for s in found:
        clock, before = s.record.clock, primed.get((s.series, s.number))
        if s.role != "read" or s.cached_tokens is None or before is None:
            continue
        # when the server last used the prompt, and when it looked for it, is known to within both requests' own time:
        # one that was found was at least so old, one that was lost at most
        hit = s.cached_tokens > 0
        began, ended = (before.end, clock.sent) if hit else (before.sent, clock.end)
        if began is not None and ended is not None:
            rows.append(((ended - began) / 1e9, hit))
    if (why := failure(run)) is not None or not rows:
        why = why or stop_reason(run) or "the endpoint reports no cached tokens"
        return _refused(name, why, f"{PROBE} again, once cached tokens are reported")
    alive = [age for age, hit in rows if hit]
    dead = [age for age, hit in rows if not hit]
    if not alive:
        return _refused(name, f"none of {len(rows)} prompts was found, the youngest of {min(dead):.3g} s", PROBE)
    if not dead:
        lived = Estimate(
            name="ttl_s", value=None, low=max(alive), high=None, unit="s", method="all prompts were found", n=len(rows)
        )
        note = "nothing was lost: a longer --max-age would tell more"
        return FitReport(runs=(name,), estimates=(lived,), notes=(note,))
    if max(alive) < min(dead):
        low, high = max(alive), min(dead)
        step = Estimate(
            name="ttl_s",
            value=(low + high) / 2,
            low=low,
            high=high,
            unit="s",
            method="between the oldest found and the youngest lost, each asked for once",
            n=len(rows),
        )
        return FitReport(runs=(name,), estimates=(step,), assumed=("nothing was pushed out by other traffic",))
    return _survival(name, rows)


def _survival(name: str, rows: list[tuple[float, bool]]) -> FitReport:
    if len(rows) < FEWEST:
        why = f"prompts were found past ages at which others were lost: a curve is needed, and {len(rows)} are too few"
        return _refused(name, why, f"{PROBE} with more --passes: at least {FEWEST} prompts")
    ages, hits = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    fits = {kind: survival(ages, hits, kind) for kind in ("logistic", "exponential")}
    kind = min(fits, key=lambda k: fits[k][2])
    median, lapse, _ = fits[kind]
    rng = np.random.default_rng(0)
    again = []
    for _ in range(BOOTSTRAPS):
        drawn = rng.integers(0, len(ages), len(ages))
        again.append(survival(ages[drawn], hits[drawn], kind)[:2])
    medians, lapses = np.array(again).T
    method = f"{kind} survival with lapses, by likelihood; 90% bootstrap"
    return FitReport(
        runs=(name,),
        estimates=(
            Estimate(
                name="ttl_s",
                value=median,
                low=float(np.quantile(medians, 0.05)),
                high=float(np.quantile(medians, 0.95)),
                unit="s",
                method=f"median age at loss, {method}",
                n=len(rows),
            ),
            Estimate(
                name="lapse_share",
                value=lapse,
                low=float(np.quantile(lapses, 0.05)),
                high=float(np.quantile(lapses, 0.95)),
                unit="1",
                method=f"lost at any age, {method}",
                n=len(rows),
            ),
        ),
        notes=(f"AIC: logistic {fits['logistic'][2]:.1f}, exponential {fits['exponential'][2]:.1f}",),
    )


def survival(ages: Floats, hits: NDArray[np.bool_], kind: str) -> tuple[float, float, float]:
    """(median age at loss in s, share of lapses, AIC) by maximum likelihood."""
    from scipy.optimize import minimize

    def share(p: Floats) -> Floats:
        lapse = 1 / (1 + np.exp(-p[1]))
        if kind == "exponential":
            alive = np.exp(-np.log(2) * ages / np.exp(p[0]))
        else:
            alive = 1 / (1 + np.exp(np.clip(np.exp(np.clip(p[2], -3, 5)) * (np.log(ages) - p[0]), -50, 50)))
        return np.asarray(np.clip((1 - lapse) * alive, 1e-6, 1 - 1e-6))

    def cost(p: Floats) -> float:
        q = share(p)
        return float(-np.where(hits, np.log(q), np.log1p(-q)).sum())

    best = None
    for start in np.quantile(np.log(ages), (0.4, 0.8)):
        first = [start, -3.0] + ([1.0] if kind == "logistic" else [])
        done = minimize(cost, np.array(first), method="Nelder-Mead", options={"maxiter": 250})
        if best is None or done.fun < best.fun:
            best = done
    assert best is not None
    return float(np.exp(best.x[0])), float(1 / (1 + np.exp(-best.x[1]))), 2 * float(best.fun) + 2 * len(best.x)


def _refused(name: str, reason: str, experiment: str) -> FitReport:
    return FitReport(runs=(name,), refusals=(Refusal(name="ttl_s", reason=reason, experiment=experiment),))
