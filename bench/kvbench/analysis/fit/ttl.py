"""How long cached prompts live, from a ttl probe: a bracket where one age parts found from lost, else a survival curve.

Three curves of the share found at age t are fitted by likelihood, all with a share of lapses at any age, and the one of
less AIC is taken: a step, logistic in log(t), and exponential.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.steps import failure, steps, stop_reason
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.runs.reader import Run

PROBE = "kvbench probe ttl"
FEWEST = 20
BOOTSTRAPS = 100
CHI2_90 = 2.71
CLEARLY = 6.0
"""Difference of AIC that decides between a step with lapses and a curve."""
MOST_LAPSED = 0.1
"""Where surely more than this goes at any age, few prompts tell how long the others live."""

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
        hit = s.mostly_cached
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
    stepped = step_survival(ages, hits)
    fits = {kind: survival(ages, hits, kind) for kind in ("logistic", "exponential")}
    kind = min(fits, key=lambda k: fits[k][2])
    told = f"AIC: logistic {fits['logistic'][2]:.1f}, exponential {fits['exponential'][2]:.1f}"
    if stepped is not None and stepped.surely_lapsed > MOST_LAPSED and stepped.aic <= fits[kind][2] + CLEARLY:
        return _refused(
            name,
            f"of {stepped.young} prompts younger than the oldest that was found, {stepped.lapsed} were lost: several "
            "replicas, or a cache that gives things up at any age",
            f"{PROBE} again: one replica by its own URL",
        )
    if stepped is not None and stepped.aic <= fits[kind][2]:
        return _stepped(name, stepped, len(rows), f"{told}, a step {stepped.aic:.1f}")
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
        notes=(told,),
    )


class Stepped(NamedTuple):
    """A life of one length, with lapses. low, high: 90% by likelihood, s; first: the youngest that was lost beyond
    low. lapsed of young: prompts below low that were lost."""

    low: float
    first: float
    high: float
    lapsed: int
    young: int
    aic: float

    @property
    def surely_lapsed(self) -> float:
        """Share that lapses at least, 90% interval by Clopper and Pearson."""
        from scipy.stats import beta

        return float(beta.ppf(0.05, self.lapsed, self.young - self.lapsed + 1)) if self.lapsed else 0.0


def step_survival(ages: Floats, hits: NDArray[np.bool_]) -> Stepped | None:
    """None where what was lost beyond the oldest found may all have lapsed: the life then has no upper bound."""
    low = float(ages[hits].max())
    beyond = np.sort(ages[ages > low])
    found, lapsed = int(hits.sum()), int((~hits & (ages <= low)).sum())

    from scipy.special import xlogy

    def likelihood(lost: int) -> float:
        return float(xlogy(lost, lost / (found + lost)) + xlogy(found, found / (found + lost)))

    most = likelihood(lapsed)
    # the life may be longer, and the next that were lost have lapsed too
    told = [k for k in range(1, len(beyond) + 1) if 2 * (most - likelihood(lapsed + k)) > CHI2_90]
    if not told:
        return None
    return Stepped(low, float(beyond[0]), float(beyond[told[0] - 1]), lapsed, found + lapsed, 4 - 2 * most)


def _stepped(name: str, found: Stepped, n: int, note: str) -> FitReport:
    from scipy.stats import beta

    method = "a step with lapses; 90% interval by likelihood"
    lapsed, rest = found.lapsed, found.young - found.lapsed
    return FitReport(
        runs=(name,),
        estimates=(
            Estimate(
                name="ttl_s",
                value=(found.low + found.first) / 2,
                low=found.low,
                high=found.high,
                unit="s",
                method=f"between the oldest found and the youngest lost beyond it, {method}",
                n=n,
            ),
            Estimate(
                name="lapse_share",
                value=lapsed / found.young,
                low=found.surely_lapsed,
                high=float(beta.ppf(0.95, lapsed + 1, rest)) if rest else 1.0,
                unit="1",
                method="of prompts younger than that, lost; 90% interval (Clopper and Pearson)",
                n=found.young,
            ),
        ),
        assumed=("nothing was pushed out by other traffic",),
        notes=(note,),
    )


def survival(ages: Floats, hits: NDArray[np.bool_], kind: str) -> tuple[float, float, float]:
    """(median age at loss in s, share of lapses, AIC) by maximum likelihood."""
    from scipy.optimize import minimize
    from scipy.special import expit

    def share(p: Floats) -> Floats:
        lapse = expit(p[1])
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
    return float(np.exp(best.x[0])), float(expit(best.x[1])), 2 * float(best.fun) + 2 * len(best.x)


def _refused(name: str, reason: str, experiment: str) -> FitReport:
    return FitReport(runs=(name,), refusals=(Refusal(name="ttl_s", reason=reason, experiment=experiment),))
