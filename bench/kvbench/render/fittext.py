"""A fit as text: each figure with its interval and what it rests on, then what is refused and why."""

from __future__ import annotations

from kvbench.model import Estimate, FitReport
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
    if report.misfit is not None and report.misfit.share:
        told = f"{percent(report.misfit.share)} of what was observed (limit {percent(report.misfit.limit)})"
        if report.misfit.causes:
            told += f": looks like {', '.join(report.misfit.causes)}"
        lines.append(f"{'misfit':<{_LABEL}}{told}")
    lines += [f"{'assumed':<{_LABEL}}{safe(text)}" for text in report.assumed]
    lines += [f"{'note':<{_LABEL}}{safe(text)}" for text in report.notes]
    return lines


def _label(name: str) -> str:
    return f"{name:<{_LABEL - 1}} "


def number(value: float | None) -> str:
    """Five significant digits; whole numbers as they are."""
    if value is None:
        return "none"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:,.5g}"


def _figure(estimate: Estimate) -> str:
    told = f"{number(estimate.value)} {estimate.unit}" if estimate.value is not None else f"in {estimate.unit}"
    if estimate.low is None and estimate.high is None:
        return told
    if estimate.low is None:
        return f"{told} (at most {number(estimate.high)})"
    if estimate.high is None:
        return f"{told} (at least {number(estimate.low)})"
    return f"{told} ({number(estimate.low)} to {number(estimate.high)})"
