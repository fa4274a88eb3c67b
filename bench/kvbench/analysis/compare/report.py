"""What is different between two groups of runs, by how much, where, and what else changed between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.compare.money import cost_note, cost_row
from kvbench.analysis.compare.pairs import TIMES, Pairs, Side, pair
from kvbench.analysis.compare.resample import LEVEL, MIN_CLUSTERS, changes_of, mean_change
from kvbench.analysis.gate.evidence import Evidence, from_run
from kvbench.analysis.gate.validity import FAILED_LIMIT, OTHER_RULES
from kvbench.analysis.measured import Measured
from kvbench.analysis.metrics import BY_WORD, METRICS
from kvbench.analysis.slo import Slo
from kvbench.errors import RefusedError
from kvbench.prices.pricing import PriceList

Floats = npt.NDArray[np.float64]

_LENGTHS = (0, 1_000, 4_000, 16_000, 64_000, 256_000, math.inf)
_TURNS = (0, 1, 2, 5, 10, 20, 50, math.inf)
_PLAIN = (
    *("eligible_hit_rate", "output_throughput", "steady_throughput", "active_prefill_throughput"),
    *("active_decode_throughput", "jobs_per_h", "interactivity_p90", "errors"),
)
_OF_SLOS = ("goodput", "good_fraction")
_OF_FAILURES = (("ttft_adjusted", "p95"), ("ttft_adjusted", "p99"), ("e2e_adjusted", "p95"))
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TURNS_SHOWN = 10


def compare(
    base: Sequence[Path], new: Sequence[Path], prices: PriceList | None = None, slos: tuple[Slo, ...] = ()
) -> dict[str, Any]:
    """The comparison as one JSON object.

    base, new: run ids. paired: both replay the same trace, so turns are compared with themselves. turns: {common,
    left_out}. metrics: {metric, stat, unit, base, new, ratio, difference, low, high, of}: low and high are the 95%
    interval of the ratio (of the difference for shares), None where it cannot be had. where: TTFT by group of turns.
    turns_changed: the turns whose TTFT changed most. changed: fields of run.json that differ. notes: what to know
    before one believes it. RefusedError where nothing can be compared.
    """
    sides = ([from_run(path, slos, prices) for path in base], [from_run(path, slos, prices) for path in new])
    _refuse_by_rules([*sides[0], *sides[1]])
    before, after = ([run.measured for run in side if run.measured is not None] for side in sides)
    for run in (*sides[0], *sides[1]):
        if not run.completed:
            raise RefusedError(f"{run.label} has no turn that succeeded", hint=f"kvbench show {run.label} says why")
    traces = {run.facts.get("trace.sha256") for side in sides for run in side}
    pairs = pair(before, after) if len(traces) == 1 and None not in traces else None
    if pairs is not None and pairs.turns.empty:
        pairs = None
    metrics = [
        *(_time(name, pairs, before, after) for name in TIMES),
        *_percentiles(pairs, before, after),
        *(_jobs(name, before, after, paired=pairs is not None) for name in ("job_latency_s", "ttfat_s")),
        _hit_rate(pairs, sides),
        *(_plain(word, sides) for word in _PLAIN),
        *(_cost(word, sides, paired=pairs is not None) for word in ("cost", "cost_per_job")),
        *(_plain(word, sides) for word in _OF_SLOS if slos),
        *(_plain(word, sides, stat) for word, stat in _OF_FAILURES if any(run.failed for run in chain(*sides))),
    ]
    return {
        "base": [run.label for run in sides[0]],
        "new": [run.label for run in sides[1]],
        "paired": pairs is not None,
        "turns": None if pairs is None else {"common": len(pairs.turns), "left_out": pairs.left_out},
        "interval_level": LEVEL,
        "metrics": metrics,
        "where": [] if pairs is None else _where(pairs),
        "turns_changed": [] if pairs is None else _turns_changed(pairs),
        "changed": _changed(sides),
        "notes": _notes(sides, pairs, bounded=any(row["low"] is not None for row in metrics)),
    }


def _refuse_by_rules(runs: Sequence[Evidence]) -> None:
    """RefusedError for a run that is not valid by the rules it was made by, and for one that was made by others."""
    for run in runs:
        if run.rules is not None and not run.rules.valid:
            why = "; ".join(run.rules.reasons)
            raise RefusedError(
                f"{run.label} is not valid by the {run.rules.name} rules: {why}",
                hint=f"kvbench show {run.label} shows its figures alone",
            )
    if len({None if run.rules is None else run.rules.name for run in runs}) > 1:
        raise RefusedError(OTHER_RULES, hint="compare runs that were made by the same rules")


def _row(word: str, stat: str | None, base: float | None, new: float | None, **more: Any) -> dict[str, Any]:
    ratio = new / base if base and new is not None else None
    difference = new - base if base is not None and new is not None else None
    return {
        "metric": word,
        "stat": stat,
        "unit": BY_WORD[word].unit,
        "base": base,
        "new": new,
        "ratio": ratio,
        "difference": difference,
        "low": None,
        "high": None,
        "of": None,
    } | more


def _logs_by_session(values: Floats, sessions: pd.Series) -> tuple[Floats, int]:
    """(sessions, runs): mean log of a session's turns, over turns that every run reports; and how many turns."""
    logs = pd.DataFrame(np.log(np.where(values > 0, values, np.nan)))
    whole = logs.notna().all(axis=1)
    return logs[whole].groupby(sessions[whole].to_numpy()).mean().to_numpy(), int(whole.sum())


def _geomean_row(word: str, base: Floats, new: Floats, of: str) -> dict[str, Any]:
    """Of (sessions, runs) of logs, paired by session."""
    if not len(base):
        return _row(word, "geomean", None, None)
    low, high = mean_change(base, new)
    return _row(
        word,
        "geomean",
        math.exp(float(base.mean())),
        math.exp(float(new.mean())),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        of=of,
    )


def _time(name: str, pairs: Pairs | None, before: Sequence[Measured], after: Sequence[Measured]) -> dict[str, Any]:
    word = METRICS[name].word
    if pairs is None:
        return _apart(word, [ran.ok.set_index("session_id")[name] for ran in before],
                      [ran.ok.set_index("session_id")[name] for ran in after])  # fmt: skip
    both = np.concatenate([pairs.base.values[name], pairs.new.values[name]], axis=1)
    logs, turns = _logs_by_session(both, pairs.turns["session_id"])
    runs = pairs.base.values[name].shape[1]
    return _geomean_row(word, logs[:, :runs], logs[:, runs:], f"{turns:,} turns of {len(logs):,} sessions, paired")


def _apart(word: str, before: Sequence[pd.Series], after: Sequence[pd.Series]) -> dict[str, Any]:
    """Session-weighted geometric means of sides that do not pair, sessions drawn on each side for itself."""

    def by_session(values: pd.Series) -> list[Floats]:
        above = values[values > 0].dropna()
        logs = pd.Series(np.log(above.to_numpy(dtype=float)), index=above.index)
        return [np.array([mean]) for mean in logs.groupby(level=0).mean()]

    groups = ([by_session(values) for values in before], [by_session(values) for values in after])
    if any(not run for side in groups for run in side):
        return _row(word, "geomean", None, None)
    ((low, high),) = _unequal(groups, lambda drawn: np.array([drawn.mean()]), 1)
    means = [float(np.mean([np.concatenate(run).mean() for run in side])) for side in groups]
    return _row(
        word,
        "geomean",
        *(math.exp(mean) for mean in means),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        of="not paired",
    )


def _unequal(
    groups: tuple[list[list[Floats]], list[list[Floats]]], figures: Callable[[Floats], Floats], count: int
) -> list[tuple[float | None, float | None]]:
    """Runs of a side may have different numbers of sessions where trees are used again: then there is no interval."""
    none: list[tuple[float | None, float | None]] = [(None, None)] * count
    if any(len({len(run) for run in side}) != 1 for side in groups):
        return none
    return changes_of(groups, figures, paired=False) or none


def _percentiles(
    pairs: Pairs | None, before: Sequence[Measured], after: Sequence[Measured]
) -> Iterator[dict[str, Any]]:
    def ttfts(ran: Measured) -> pd.Series:
        told = ran.ok[ran.ok["ttft_s"] > 0]
        if pairs is not None:
            told = told[pd.MultiIndex.from_frame(told[["session_id", "turn"]]).isin(_index(pairs))]
        return pd.Series(told["ttft_s"].to_numpy(dtype=float), index=told["root_id"].to_numpy())

    def figures(drawn: Floats) -> Floats:
        # Interpolated between times, as every percentile is; then the logarithm, so that changes are ratios.
        return np.log(np.quantile(drawn, list(_PERCENTILES.values())))

    sides = [[ttfts(ran) for ran in side] for side in (before, after)]
    if any(run.empty for side in sides for run in side):
        yield from (_row("ttft", stat, None, None) for stat in _PERCENTILES)
        return
    found = [np.mean([figures(run.to_numpy()) for run in side], axis=0) for side in sides]
    base, new = ([[part.to_numpy() for _, part in run.groupby(level=0)] for run in side] for side in sides)
    bounds = None if pairs is None else changes_of((base, new), figures, paired=True)
    if bounds is None:
        bounds = _unequal((base, new), figures, len(_PERCENTILES))
    for stat, one, other, (low, high) in zip(_PERCENTILES, *found, bounds, strict=True):
        yield _row(
            "ttft",
            stat,
            math.exp(one),
            math.exp(other),
            low=None if low is None else math.exp(low),
            high=None if high is None else math.exp(high),
            of="all turns" if pairs is None else "the same turns",
        )


def _index(pairs: Pairs) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(pairs.turns[["session_id", "turn"]])


def _jobs(name: str, before: Sequence[Measured], after: Sequence[Measured], *, paired: bool) -> dict[str, Any]:
    of, word = METRICS[name].of, METRICS[name].word
    jobs = [of(ran) for ran in (*before, *after)]
    tables = [job for job in jobs if isinstance(job, pd.Series)]
    if not paired:
        return _apart(word, tables[: len(before)], tables[len(before) :])
    together = pd.concat(tables, axis=1, join="inner").dropna()
    logs = np.log(together.to_numpy(dtype=float)) if len(together) else np.empty((0, len(tables)))
    return _geomean_row(word, logs[:, : len(before)], logs[:, len(before) :], f"{len(logs):,} jobs, paired")


def _hit_rate(pairs: Pairs | None, sides: tuple[list[Evidence], list[Evidence]]) -> dict[str, Any]:
    if pairs is None:
        return _plain("hit_rate", sides)
    both = [side.values for side in (pairs.base, pairs.new)]
    known = np.all([np.isfinite(v["cached_tokens"] + v["input_tokens"]).all(axis=1) for v in both], axis=0)
    if not known.any():
        return _row("hit_rate", None, None, None)
    roots = pairs.turns["root_id"][known].to_numpy()

    def by_tree(column: Floats) -> Floats:
        return pd.DataFrame(column[known]).groupby(roots).sum().to_numpy()

    cached, given = ([by_tree(v[name]) for v in both] for name in ("cached_tokens", "input_tokens"))
    rates = [c.sum() / g.sum() for c, g in zip(cached, given, strict=True)]
    # The share is a ratio of sums; drawn by its influence, which for trees drawn together is a mean again.
    parts = [(c - rate * g) / g.sum(axis=0) * len(g) + rate for c, g, rate in zip(cached, given, rates, strict=True)]
    low, high = mean_change(*parts)
    return _row("hit_rate", None, *map(float, rates), low=low, high=high, of=f"{int(known.sum()):,} turns, paired")


def _plain(word: str, sides: tuple[list[Evidence], list[Evidence]], stat: str | None = None) -> dict[str, Any]:
    """A mean over runs, without an interval."""
    means: list[float | None] = []
    for side in sides:
        values = [run.value(BY_WORD[word], stat) for run in side]
        told = [value for value in values if value is not None]
        means.append(sum(told) / len(told) if len(told) == len(values) else None)
    return _row(word, stat, *means)


def _cost(word: str, sides: tuple[list[Evidence], list[Evidence]], *, paired: bool) -> dict[str, Any]:
    found = cost_row(sides, per_job=word == "cost_per_job", paired=paired)
    return _row(word, None, found.pop("base"), found.pop("new"), **found)


def _where(pairs: Pairs) -> list[dict[str, Any]]:
    """TTFT by hit class, context length, turn and kind of session; classes that changed stand for themselves."""
    turns = pairs.turns
    classes = [
        None if a is None or b is None else a if a == b else f"{a} -> {b}"
        for a, b in zip(pairs.base.hit_class, pairs.new.hit_class, strict=True)
    ]
    kinds: list[str | None] = [
        "root" if session == root else "sub-agent"
        for session, root in zip(turns["session_id"], turns["root_id"], strict=True)
    ]
    groups: list[tuple[str, list[str | None]]] = [
        ("hit class", classes),
        ("context", [_bin(value, _LENGTHS, "tokens") for value in turns["input_tokens"]]),
        ("turn", [_bin(value, _TURNS, "") for value in turns["turn"]]),
        ("session", kinds),
    ]
    rows = []
    for by, labels in groups:
        column = pd.Series(labels, dtype=object)
        for label in sorted(column.dropna().unique(), key=_order):
            rows.append({"by": by, "group": label, **_group(pairs, (column == label).to_numpy())})
    return rows


def _group(pairs: Pairs, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    both = np.concatenate([side.values["ttft_s"][mask] for side in (pairs.base, pairs.new)], axis=1)
    logs, turns = _logs_by_session(both, pairs.turns["session_id"][mask].reset_index(drop=True))
    runs = pairs.base.values["ttft_s"].shape[1]
    row = _geomean_row("ttft", logs[:, :runs], logs[:, runs:], "")
    return {"turns": turns} | {name: row[name] for name in ("base", "new", "ratio", "low", "high")}


def _bin(value: float, edges: Sequence[float], unit: str) -> str | None:
    if not np.isfinite(value):
        return None
    i = int(np.searchsorted(edges, value, side="right")) - 1
    low, high = edges[i], edges[i + 1]
    text = (
        f"{low:,.0f}"
        if high == low + 1
        else f"{low:,.0f} and more"
        if math.isinf(high)
        else f"{low:,.0f} to {high - 1:,.0f}"
    )
    return f"{text} {unit}".strip()


def _order(label: str) -> tuple[float, str]:
    digits = label.split(" ")[0].replace(",", "")
    return (float(digits), "") if digits.isdigit() else (0.0, label)


def _turns_changed(pairs: Pairs) -> list[dict[str, Any]]:
    means = [np.log(side.values["ttft_s"]).mean(axis=1) for side in (pairs.base, pairs.new)]
    change = np.abs(means[1] - means[0])
    largest = np.argsort(-np.where(np.isfinite(change), change, -1.0), kind="stable")[:TURNS_SHOWN]
    return [_turn(pairs, int(i), means) for i in largest if np.isfinite(change[i])]


def _turn(pairs: Pairs, i: int, means: Sequence[Floats]) -> dict[str, Any]:
    turn = pairs.turns.iloc[i]

    def cached(side: Side) -> float | None:
        value = float(side.values["cached_tokens"][i].mean())
        return value if math.isfinite(value) else None

    return {
        "session_id": str(turn["session_id"]),
        "turn": int(turn["turn"]),
        "input_tokens": None if not np.isfinite(turn["input_tokens"]) else int(turn["input_tokens"]),
        "base_ttft_s": math.exp(means[0][i]),
        "new_ttft_s": math.exp(means[1][i]),
        "ratio": math.exp(means[1][i] - means[0][i]),
        "base_cached_tokens": cached(pairs.base),
        "new_cached_tokens": cached(pairs.new),
    }


def _changed(sides: tuple[list[Evidence], list[Evidence]]) -> list[dict[str, Any]]:
    names = sorted({name for side in sides for run in side for name in run.facts})
    rows = []
    for name in names:
        values = [sorted({run.facts.get(name) or "not set" for run in side}) for side in sides]
        if values[0] != values[1] or len(values[0]) > 1:
            rows.append({"field": name, "base": values[0], "new": values[1]})
    return rows


def _notes(sides: tuple[list[Evidence], list[Evidence]], pairs: Pairs | None, *, bounded: bool) -> list[str]:
    runs = [run for side in sides for run in side]
    notes = [f"{run.label} {problem}" for run in runs for problem in run.problems]
    notes += [
        f"{run.failed:,} turns of {run.label} failed: its latencies are of what succeeded"
        for run in runs
        if run.failed_share > FAILED_LIMIT
    ]
    if pairs is None:
        notes.append("the runs do not replay the same turns: sides are compared as wholes, and the work may differ")
    elif pairs.left_out:
        notes.append(f"{pairs.left_out:,} turns are left out: not every run has them, or has them ok")
    notes += cost_note(sides)
    if not bounded:
        notes.append(
            f"no intervals: they are drawn from sessions, of which it takes {MIN_CLUSTERS} on either side; kvbench "
            "gate judges several runs a side"
        )
    elif min(len(side) for side in sides) == 1:
        notes.append(
            "a side is a single run: the intervals hold the spread over sessions and not that from run to run, so a "
            "ratio outside them may still be noise; kvbench gate judges several runs a side"
        )
    return notes
