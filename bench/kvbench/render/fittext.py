"""A fit as text: each figure with its interval and what it rests on, then what is refused and why."""

from __future__ import annotations

from kvbench.model import Check, Estimate, FitReport
from kvbench.render.sides_text import sides_lines
from kvbench.render.text import percent, safe

_LABEL = 28


def fit_lines(report: FitReport) -> list[str]:
    lines = [f"fit of {safe(', '.join(report.runs))}"]
    for estimate in report.estimates:
        lines.append(f"{_label(estimate.name)}{_figure(estimate)}")
        lines.append(f"{'':<{_LABEL}}{safe(estimate.method)}; n = {estimate.n:,}")
    for refusal in report.refusals:
        lines.append(f"{_label(refusal.name)}refused: {safe(refusal.reason)}")
        lines.append(f"{'':<{_LABEL}}next: {safe(refusal.experiment)}")
    lines += [line for check in report.checks for line in _check_lines(check)]
    if report.verdict is not None:
        lines.append(f"{'verdict':<{_LABEL}}{report.verdict.upper()}")
    if report.misfit is not None and report.misfit.share:
        told = f"{percent(report.misfit.share)} of what was observed (limit {percent(report.misfit.limit)})"
        if report.misfit.causes:
            told += f": looks like {', '.join(report.misfit.causes)}"
        lines.append(f"{'misfit':<{_LABEL}}{told}")
    lines += [f"{'assumed':<{_LABEL}}{safe(text)}" for text in report.assumed]
    lines += [f"{'note':<{_LABEL}}{safe(text)}" for text in report.notes]
    return lines + (sides_lines(report.side_by_side) if report.side_by_side is not None else [])


def _label(name: str) -> str:
    return f"{name:<{_LABEL - 1}} "


def _check_lines(check: Check) -> list[str]:
    lines = [f"{check.name:<{_LABEL}}{check.verdict}: {safe(check.says)}; n = {check.n:,}"]
    if check.excess is not None:
        money = check.money
        costs = f": {money['currency']} {money['amount']} of {money['of']}" if money is not None else ""
        lines.append(f"{'':<{_LABEL}}too much: {_amount(check.excess, check.excess_unit)}{costs}")
    if check.detectable is not None and check.verdict in ("confirmed", "cannot tell"):
        seen = _amount(check.detectable, check.detectable_unit)
        lines.append(f"{'':<{_LABEL}}would have been seen from {seen} on")
    return lines


def _amount(value: float, unit: str | None) -> str:
    """A share as a percentage, tokens as they are."""
    unit = unit or ""
    if not unit.startswith("of "):
        return f"{number(value)} {unit.removesuffix('s') if value == 1 else unit}"
    return f"{value:.1%} {unit}" if value >= 0.01 else f"{value:.2%} {unit}"


def number(value: float | None) -> str:
    """Five significant digits; whole numbers as they are."""
    if value is None:
        return "none"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:,.5g}"


def _figure(estimate: Estimate) -> str:
    low, high = estimate.low, estimate.high
    if low is None and high is None:
        bounds = ""
    elif low is None:
        bounds = f"at most {number(high)}"
    elif high is None:
        bounds = f"at least {number(low)}"
    else:
        bounds = f"{number(low)} to {number(high)}"
    if estimate.value is None:
        return f"{bounds or 'not known'} {estimate.unit}"
    return f"{number(estimate.value)} {estimate.unit}" + (f" ({bounds})" if bounds else "")
