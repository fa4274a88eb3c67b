"""Runs made up at random, judged by the gate's own functions: how often each verdict is wrong.

Everything is a matrix, a replicate a row; `verdicts` calls the functions that `kvbench gate` calls, on the expressions
that it parses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.analysis.gate.decide import holm, outcomes, two_samples
from kvbench.analysis.gate.expression import Gate, parse_fail_if

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

GATES = tuple(parse_fail_if(f"{word}.geomean>+3%") for word in ("ttft", "tpot", "e2e"))
SESSIONS, TURNS = 200, 10


def verdicts(base: Sequence[Floats], new: Sequence[Floats], gates: Sequence[Gate]) -> npt.NDArray[np.str_]:
    """(replicates, gates) of pass, fail, inconclusive; base and new: logs of (replicates, runs), one a gate."""
    tests = [
        two_samples(gate.sign * before, gate.sign * after) for gate, before, after in zip(gates, base, new, strict=True)
    ]
    adjusted = holm(np.stack([test.p for test in tests], axis=-1))
    columns = [
        outcomes(test, adjusted[..., i], gate.threshold, gate.pass_bound)
        for i, (test, gate) in enumerate(zip(tests, gates, strict=True))
    ]
    return np.stack(columns, axis=-1)


def shares(found: npt.NDArray[np.str_]) -> dict[str, float]:
    """Of the first gate: fail, pass, inconclusive; family_fail: any gate fails."""
    return {name: float((found[:, 0] == name).mean()) for name in ("fail", "pass", "inconclusive")} | {
        "family_fail": float((found == "fail").any(axis=-1).mean())
    }


def cell(
    rng: Rng,
    replicates: int,
    n_base: int,
    n_new: int,
    *,
    effect: float = 1.0,
    gates: int = 1,
    noise: float = 0.02,
    add: Callable[[Rng, int], tuple[Floats, Floats]] | None = None,
) -> dict[str, float]:
    """Runs with log-normal run noise, each metric's its own; `effect` multiplies the first metric of the new runs.

    add: what else is in the logs of both sides (drift, an effect shared by a side), of (replicates, runs) each, the
    same for every metric.
    """
    more = (np.zeros((1, n_base)), np.zeros((1, n_new))) if add is None else add(rng, replicates)
    base = [rng.normal(0, noise, (replicates, n_base)) + more[0] for _ in range(gates)]
    new = [rng.normal(0, noise, (replicates, n_new)) + more[1] for _ in range(gates)]
    new[0] = new[0] + np.log(effect)
    return shares(verdicts(base, new, GATES[:gates]))


def drift(order: str, total: float) -> Callable[[Rng, int], tuple[Floats, Floats]]:
    """The system gets slower by `total` from the first run to the last; `order`: B and N in the order of the runs."""
    at = np.linspace(0, np.log1p(total), len(order))
    sides = np.array(list(order))
    return lambda rng, replicates: (at[sides == "B"][None, :], at[sides == "N"][None, :])


def shared(n_base: int, n_new: int, sd: float) -> Callable[[Rng, int], tuple[Floats, Floats]]:
    """All runs of a side share an effect: one server start a side, or one night."""
    return lambda rng, replicates: (
        np.repeat(rng.normal(0, sd, (replicates, 1)), n_base, axis=1),
        np.repeat(rng.normal(0, sd, (replicates, 1)), n_new, axis=1),
    )


def stored(
    rng: Rng, replicates: int, run_sd: float, *, lasting: float, effect: float = 1.0, night_sd: float = 0.02
) -> dict[str, float]:
    """Three runs of tonight against 20 stored ones of seven nights of three: FAIL of the first set of runs, and of a
    second that has to confirm it. lasting: the part of the night's variance that both of tonight's sets share.
    """
    nights = rng.normal(0, night_sd, (replicates, 7, 1)) + rng.normal(0, run_sd, (replicates, 7, 3))
    base = nights.reshape(replicates, -1)[:, -20:]
    kept = rng.normal(0, night_sd * np.sqrt(lasting), (replicates, 1))
    failed = []
    for _ in range(2):
        moment = rng.normal(0, night_sd * np.sqrt(1 - lasting), (replicates, 1))
        new = np.log(effect) + kept + moment + rng.normal(0, run_sd, (replicates, 3))
        failed.append(verdicts([base], [new], GATES[:1])[:, 0] == "fail")
    return {"first": float(failed[0].mean()), "confirmed": float((failed[0] & failed[1]).mean())}


def requests(
    rng: Rng, session: Floats, runs: int, *, effect: float, utilisation: float, run_sd: float = 0.02
) -> tuple[Floats, Floats]:
    """Replay a trace of 200 sessions of 10 turns on a server with a queue: (log geomean, log p95) of the TTFT,
    (replicates, runs) each.

    Poisson arrivals at `utilisation` of the unchanged server. Service times have session effects (`session`, of
    (replicates, 200), sd 0.10: the trace's, so the same in every run of both sides), a residual (sd 0.20), 1%
    stragglers of three times the length, congestion (AR(1), sd 0.15, coefficient 0.95 from request to request) and the
    run's own noise. TTFT is the wait in the queue (Lindley) plus service, the service `effect` times as long.
    """
    shape = (len(session), runs)
    run = rng.normal(0, run_sd, shape)
    congestion = rng.normal(0, 0.15, shape)
    wait = np.zeros(shape)
    logs = np.empty((SESSIONS * TURNS, *shape), dtype=np.float32)
    for i in range(SESSIONS * TURNS):
        service = np.exp(
            session[:, i % SESSIONS, None] + 0.20 * rng.standard_normal(shape, dtype=np.float32) + congestion + run
        )
        service *= effect * np.where(rng.random(shape, dtype=np.float32) < 0.01, 3.0, 1.0)
        logs[i] = np.log(wait + service)
        wait = np.maximum(0.0, wait + service - rng.standard_exponential(shape, dtype=np.float32) / utilisation)
        congestion = 0.95 * congestion + 0.15 * np.sqrt(1 - 0.95**2) * rng.standard_normal(shape, dtype=np.float32)
    # Every session has as many turns, so the session-weighted geometric mean is the plain one.
    geomean = logs.mean(axis=0, dtype=np.float64)
    p95 = np.quantile(logs, 0.95, axis=0)
    return geomean, p95.astype(np.float64)


def request_cell(
    rng: Rng, replicates: int, n: int, *, effect: float, utilisation: float, block: int = 250
) -> dict[str, Any]:
    """Both statistics, each as a gate of its own, over replicates of n + n runs of 2,000 requests."""
    found: dict[str, list[npt.NDArray[np.str_]]] = {"geomean": [], "p95": []}
    for _ in range(replicates // block):
        session = rng.normal(0, 0.10, (block, SESSIONS))
        base = requests(rng, session, n, effect=1.0, utilisation=utilisation)
        new = requests(rng, session, n, effect=effect, utilisation=utilisation)
        for name, before, after in zip(found, base, new, strict=True):
            found[name].append(verdicts([before], [after], GATES[:1]))
    return {name: shares(np.concatenate(blocks)) for name, blocks in found.items()}
