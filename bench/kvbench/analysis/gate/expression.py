"""Gate expressions: METRIC[.STAT] (>|<) [+|-] X (%|unit)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvbench.analysis.metrics import BY_WORD, STATISTICS, Metric
from kvbench.analysis.slo import Slo
from kvbench.errors import UsageError

PASS_MARGIN = 5 / 3
"""A gate that fails above +3% passes below +5%, and so on in proportion: with run noise that is in proportion too, any
threshold then has the error rates that were measured for 3% and 5%."""

Kind = Literal["ratio", "difference", "value"]

_EXPRESSION = re.compile(
    r"\s*([a-z][a-z0-9_]*)(?:\.([a-z0-9_]+))?\s*([<>])\s*([+-])?\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]+)?\s*"
)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SHAPE = "METRIC[.STAT] > or <, then +X% or -X% (against the baseline) or X (an absolute value)"


@dataclass(frozen=True)
class Gate:
    """One expression.

    kind: ratio (new / base), difference (new - base, in the metric's unit) or value (of the new runs alone).
    sign: +1 where more is worse, -1 where less is. threshold: the change, or the value, beyond which the gate fails,
    on the scale that is tested: log ratio for `ratio`, and turned by `sign` so that more is worse. pass_bound: what the
    upper bound must stay below to pass, on the same scale.
    """

    expr: str
    metric: Metric
    stat: str | None
    kind: Kind
    sign: int
    threshold: float
    pass_bound: float

    @property
    def log(self) -> bool:
        """Tested on logs: ratios, and absolute values of times and rates; shares and differences are taken as they
        are."""
        return self.kind == "ratio" or (self.kind == "value" and self.metric.unit != "1")


def metric_list() -> str:
    many = [metric.word for metric in BY_WORD.values() if metric.many]
    one = [metric.word for metric in BY_WORD.values() if not metric.many]
    return f"metrics: {', '.join(many)} (each with .{', .'.join(STATISTICS)}); {', '.join(one)}"


def parse_fail_if(expr: str) -> Gate:
    """`ttft.geomean>+3%`, `hit_rate<-0.02`, `errors>1%`. UsageError names what is allowed."""
    metric, stat, more, signed, amount, unit = _parts(expr, "--fail-if")
    worse = metric.better if metric.better != "neither" else ("lower" if more else "higher")
    if (worse == "lower") != more:
        raise UsageError(
            f"--fail-if {expr}: {metric.word} is better when {metric.better}, so this would fail on an improvement",
            hint=f"turn the sign: {metric.word} {'<' if more else '>'}",
        )
    if signed is None:
        return _absolute(expr, metric, stat, more, amount, unit, "--fail-if")
    if (signed == "+") != more:
        raise UsageError(f"--fail-if {expr}: > goes with +, < with -", hint="for example ttft.geomean>+3%")
    if amount <= 0:
        raise UsageError(
            f"--fail-if {expr}: the change must be above 0, as no number of runs shows that nothing changed at all",
            hint="name the smallest change that matters, for example +3%",
        )
    sign = 1 if more else -1
    if unit == "%":
        if metric.word == "errors":
            raise UsageError(
                f"--fail-if {expr}: a share that may be 0 has no relative change",
                hint="errors>1% (of all turns), or errors>+0.01 (one in a hundred more than the baseline)",
            )
        change = amount / 100
        if sign < 0 and change * PASS_MARGIN >= 1:
            raise UsageError(f"--fail-if {expr}: must be below 60%", hint="a fall is 100% at most, pass bound included")
        return Gate(
            expr,
            metric,
            stat,
            "ratio",
            sign,
            sign * math.log1p(sign * change),
            sign * math.log1p(sign * change * PASS_MARGIN),
        )
    change = _scaled(amount, unit, metric, expr, "--fail-if")
    return Gate(expr, metric, stat, "difference", sign, change, change * PASS_MARGIN)


def parse_slo(expr: str) -> Gate | Slo:
    """`ttft.p95<2s`: the new runs must keep it. Without a statistic, `ttft<2s`: each request must, to be good."""
    metric, stat, more, signed, amount, unit = _parts(expr, "--slo", stat_needed=False)
    if signed is not None:
        raise UsageError(f"--slo {expr}: an SLO is an absolute value, without a sign", hint="for example ttft.p95<2s")
    if metric.better != "neither" and (metric.better == "higher") != more:
        raise UsageError(
            f"--slo {expr}: says what must hold, and {metric.word} is better when {metric.better}",
            hint=f"turn the sign: {metric.word} {'<' if more else '>'}",
        )
    if metric.many and stat is None:
        if metric.name not in ("ttft_s", "ttft_scheduled_s", "ttfo_s", "tpot_s", "e2e_s", "e2e_scheduled_s"):
            raise UsageError(
                f"--slo {expr}: {metric.word} is not a figure of one request",
                hint=f"name one of .{', .'.join(STATISTICS)}",
            )
        return Slo(metric.name, _scaled(amount, unit, metric, expr, "--slo"))
    return _absolute(expr, metric, stat, not more, amount, unit, "--slo")


def request_slos(exprs: Sequence[str]) -> tuple[Slo, ...]:
    """`ttft<2s` for each request. UsageError also for what is a figure of a run."""
    goals = [parse_slo(text) for text in exprs]
    if any(not isinstance(goal, Slo) for goal in goals):
        raise UsageError("--slo says here what one request must meet, without a statistic", hint="--slo 'ttft<2s'")
    return tuple(goal for goal in goals if isinstance(goal, Slo))


def _parts(
    expr: str, option: str, *, stat_needed: bool = True
) -> tuple[Metric, str | None, bool, str | None, float, str | None]:
    match = _EXPRESSION.fullmatch(expr)
    if match is None:
        raise UsageError(f"{option} {expr}: not an expression: {_SHAPE}", hint=metric_list())
    word, stat, relation, signed, amount, unit = match.groups()
    metric = BY_WORD.get(word)
    if metric is None:
        raise UsageError(f"{option} {expr}: there is no metric '{word}'", hint=metric_list())
    if not metric.many and stat is not None:
        raise UsageError(f"{option} {expr}: {word} is one value a run, without a statistic", hint=f"write {word}")
    if metric.many and ((stat is None and stat_needed) or (stat is not None and stat not in STATISTICS)):
        wrong = "name a statistic" if stat is None else f"there is no statistic '{stat}'"
        raise UsageError(
            f"{option} {expr}: {word} has a value a turn: {wrong}",
            hint=f"one of {', '.join(f'{word}.{name}' for name in STATISTICS)}",
        )
    return metric, stat, relation == ">", signed, float(amount), unit


def _absolute(
    expr: str, metric: Metric, stat: str | None, fails_above: bool, amount: float, unit: str | None, option: str
) -> Gate:
    limit = _scaled(amount, unit, metric, expr, option)
    sign = 1 if fails_above else -1
    share = metric.unit == "1"
    if limit <= 0 or (share and limit >= 1):
        raise UsageError(
            f"{option} {expr}: must be {'above 0% and below 100%' if share else 'above 0'}",
            hint="no number of turns shows a share of exactly 0; name one that may be left, for example errors>0.5%"
            if share
            else None,
        )
    at = sign * (limit if share else math.log(limit))
    return Gate(expr, metric, stat, "value", sign, at, at)


def _scaled(amount: float, unit: str | None, metric: Metric, expr: str, option: str) -> float:
    """`amount` in the metric's own unit."""
    if metric.unit in ("s", "s/token"):
        if unit in _SECONDS:
            return amount * _SECONDS[unit]
        raise UsageError(f"{option} {expr}: {metric.word} is a time: give s, ms or us", hint=f"for example {amount:g}s")
    if metric.unit == "1" and unit == "%":
        return amount / 100
    if unit is not None:
        raise UsageError(f"{option} {expr}: {metric.word} is in {metric.unit}", hint=f"leave {unit!r} out")
    return amount
