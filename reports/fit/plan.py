"""What the report tries: kinds of endpoints, what is asked of them, and what is kept of each answer."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import cases

from kvbench.analysis.fit.fit import fit_run
from kvbench.model import FitReport
from kvbench.replay.probes.ttl import TtlDesign
from kvbench.runs.reader import load_run

MISFITS: dict[str, dict[str, Any]] = {
    "FIFO": {"eviction": "fifo"},
    "head first": {"eviction": "head_first"},
    "two replicas, random": {"replicas": 2},
    "two replicas, sticky": {"replicas": 2, "routing": "sticky"},
    "30% foreign load": {"foreign_share": 0.3},
    "prefix units": {"prefix": "units"},
}
PRESSURE = {"30% foreign load": 1.4, "two replicas, random": 0.7, "two replicas, sticky": 0.6}
"""Of a replay's pool, so that about as much is lost in each kind."""
ONE_LRU = "one LRU cache"
RULES: dict[str, dict[str, Any]] = {
    "the last token is computed again": {},
    "bounded replay": {"window_tokens": 128, "window_replay": "always"},
    "nothing is computed again": {"recompute_last_token": False},
}
STEP, LAPSES = "a step", "a step with lapses"
OVERLAP, SHARED = "requests overlap", "requests overlap, others write 1 to 5%"


class Case(NamedTuple):
    """way: probe, replay, granularity, ttl or interval. kind: of endpoint."""

    way: str
    kind: str
    seed: int


def all_cases(seeds: int, intervals: int) -> list[Case]:
    """Waiting for lifetimes first, then by seed, so that a part of them is a smaller report."""
    made = [Case("ttl", kind, seed) for seed in range(seeds) for kind in (STEP, LAPSES)]
    for seed in range(seeds):
        made += [Case(way, kind, seed) for way in ("probe", "replay") for kind in (ONE_LRU, *MISFITS)]
        made.append(Case("granularity", list(RULES)[seed % len(RULES)], seed))
        share = range(seed * intervals // (2 * seeds), (seed + 1) * intervals // (2 * seeds))
        made += [Case("interval", kind, number) for number in share for kind in (OVERLAP, SHARED)]
    return made


def tried(case: Case) -> dict[str, Any]:
    """Start the endpoint, ask it, fit the run; what is published of it."""
    out = Path(tempfile.mkdtemp(prefix="kvbench-fit-"))
    began = time.monotonic()
    try:
        found = {"probe": _capacity, "replay": _capacity, "interval": _capacity, "granularity": _rule, "ttl": _life}
        row = found[case.way](case, random.Random(f"{case.way}, {case.kind}, {case.seed}"), out)
    finally:
        shutil.rmtree(out)
    return {**case._asdict(), **row, "took_s": round(time.monotonic() - began, 1)}


def _capacity(case: Case, rng: random.Random, out: Path) -> dict[str, Any]:
    settings = {**MISFITS.get(case.kind, {}), "seed": case.seed}
    if case.way == "probe":
        blocks = rng.randint(400, 1200)
        path = cases.capacity(out, {**settings, "num_blocks": blocks})
    else:
        in_flight = 1
        blocks = round(rng.randint(430, 620) * PRESSURE.get(case.kind, 1))
        if case.way == "interval":
            blocks, in_flight = rng.randint(400, 700), rng.choice([2, 4, 6, 8])
            settings["noise_sigma"] = rng.choice([0.05, 0.3])
            settings["foreign_share"] = rng.choice([0.01, 0.02, 0.03, 0.05]) if case.kind == SHARED else 0
        path = cases.replayed(out, {**settings, "num_blocks": blocks}, rng, in_flight=in_flight)
    report = fit_run(load_run(path), kv_memory_bytes=cases.memory_of(blocks))
    return {**settings, "truth": cases.tokens_of(blocks), **figure(report, "capacity_tokens")}


def _rule(case: Case, rng: random.Random, out: Path) -> dict[str, Any]:
    # hits of up to 128 tokens show only where blocks are no longer
    size = rng.choice([16, 32, 64, 128])
    settings = {**RULES[case.kind], "block_size": size, "num_blocks": 16_384 // size + 1}
    report = fit_run(load_run(cases.granularity(out, settings)))
    told = next((n.removeprefix("hit rule: ") for n in report.notes if n.startswith("hit rule")), None)
    right = told is not None and f"{size} tokens" in told and case.kind in told
    return {"block_size": size, "rule": told, "right": right}


def _life(case: Case, rng: random.Random, out: Path) -> dict[str, Any]:
    truth = round(rng.uniform(0.5, 1.5), 4)
    lapses = 0.1 if case.kind == LAPSES else 0.0
    settings = {"idle_ttl_s": truth, "lapse_probability": lapses, "seed": case.seed}
    design = TtlDesign(min_age_s=0.25, max_age_s=2.5, passes=3)
    report = fit_run(load_run(cases.ttl(out, settings, design)))
    row = {"truth": truth, **figure(report, "ttl_s")}
    if lapses:
        row["lapse_share"] = {"truth": lapses, **figure(report, "lapse_share")}
    return row


def figure(report: FitReport, name: str) -> dict[str, Any]:
    """The estimate, a bound alone, or the first reason for there being none. Any figure in bytes counts as one."""
    found = report.named(name)
    if found is None:
        beside = [e.name for e in report.estimates if e.name.startswith("bytes_") and e.value is not None]
        return {"refused": [r.reason for r in report.refusals][:1]} | ({"beside": beside} if beside else {})
    if found.value is None:
        return {"at_least": found.low, "notes": list(report.notes)}
    row = {"value": found.value, "low": found.low, "high": found.high, "requests": found.n, "notes": list(report.notes)}
    return row | {"kind_of_interval": "90%" if "90%" in found.method else "bounds"}
