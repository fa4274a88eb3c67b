"""The gate over one night: between its two sides, or against stored runs, where a FAIL has to be confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvbench.analysis.gate.evidence import Evidence, from_run
from kvbench.analysis.gate.judge import Judged, judge
from kvbench.analysis.gate.validity import Treatment, refusals
from kvbench.analysis.nights.spec import Goals

LEAST_STORED = "from 7 stored and 3 new runs on one can tell"
CONFIRMED = "a FAIL against stored runs counts where a second set of tonight's runs fails too: it did"
NOT_CONFIRMED = (
    "tonight's first runs failed against the stored ones, and a second set did not: not confirmed, so no FAIL; look at "
    "what else ran in that hour"
)


def early_refusals(base: Path, candidate: Path, goals: Goals) -> list[str]:
    """After one run a side: why the gate would refuse the whole night."""
    sides = [from_run(path, goals.slos, goals.prices) for path in (base, candidate)]
    return refusals([sides[0]], [sides[1]], goals.treatments, allow_order=True)


def judge_sides(base: Sequence[Path], candidate: Sequence[Path], goals: Goals) -> Judged:
    """Tonight against tonight."""
    sides = [[from_run(path, goals.slos, goals.prices) for path in side] for side in (base, candidate)]
    return judge(sides[0], sides[1], goals.gates, treatments=goals.treatments)


def judge_stored(stored: Sequence[Path], tonight: Sequence[Path], goals: Goals) -> Judged:
    """Tonight against history. What the treatment names may differ from night to night, and is not compared."""
    base, new = (
        [_without(from_run(path, goals.slos, goals.prices), goals.treatments) for path in side]
        for side in (stored, tonight)
    )
    return judge(base, new, goals.gates, allow_order=True)


def confirmed(first: Judged, second: Judged) -> Judged:
    """FAIL where both sets of runs fail, on one gate at least; else what the second says, and never a FAIL. The
    figures are the second set's."""
    if second.verdict == "refused":
        return second
    pairs = list(zip(first.gates, second.gates, strict=True))
    failed = [gate["expr"] for one, gate in pairs if one["verdict"] == gate["verdict"] == "fail"]
    gates = [
        gate | {"verdict": "inconclusive", "reason": "failed in one of two sets of runs: not confirmed"}
        if (one["verdict"] == "fail") is not (gate["verdict"] == "fail")
        else gate
        for one, gate in pairs
    ]
    if failed:
        return replace(second, gates=gates, notes=[*second.notes, f"{CONFIRMED} ({', '.join(failed)})"])
    return Judged("inconclusive", gates, [], [*second.notes, NOT_CONFIRMED])


def _without(run: Evidence, treatments: Sequence[Treatment]) -> Evidence:
    facts = {k: v for k, v in run.facts.items() if not any(treatment.covers(k) for treatment in treatments)}
    return replace(run, facts=facts)
