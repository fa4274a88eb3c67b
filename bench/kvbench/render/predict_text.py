"""A prediction, and the cliff, as text."""

from __future__ import annotations

from kvbench.model import Cliff, CliffPoint, Figure, Predicted
from kvbench.render.text import percent, safe

_LABEL = 13
_NAMES = {"hit_rate": "hit rate", "ttft_p50_s": "TTFT p50", "ttft_p95_s": "TTFT p95"}


def predict_lines(found: Predicted) -> list[str]:
    lines = [
        _line("predicted", f"{safe(found.target)}: {found.requests:,} requests, {safe(found.how)}"),
        _line("fitted on", safe(found.fitted_on)),
    ]
    if found.capacity_tokens is not None:
        lines.append(_line("capacity", f"{found.capacity_tokens:,.0f} tokens"))
    if found.figures:
        lines += ["", f"{'':<{_LABEL}}{'predicted':>12}{'interval':>26}{'observed':>12}{'off':>14}"]
    for figure in found.figures:
        seen = _told(figure, figure.observed)
        name = _NAMES[figure.name]
        lines.append(f"{name:<{_LABEL}}{_value(figure):>12}{_interval(figure):>26}{seen:>12}{_off(figure):>14}")
    for refusal in found.refusals:
        label = _NAMES.get(refusal.name, refusal.name)
        lines += [_line(label, f"refused: {safe(refusal.reason)}"), _line("", f"next: {safe(refusal.experiment)}")]
    if found.cliff is not None:
        lines += ["", *cliff_lines(found.cliff)]
    lines += [_line("note", safe(note)) for note in found.notes]
    return lines


def cliff_lines(cliff: Cliff) -> list[str]:
    """The cliff named, then the table it was read from."""
    lines = [_line("cliff", _named(cliff)), _line("", _present(cliff))]
    lines.append(f"{'sessions':>{_LABEL + 8}}{'hit rate':>10}{'unbounded':>11}{'needed, tokens':>18}")
    for point in cliff.points:
        lines.append(
            f"{point.sessions or 0:>{_LABEL + 8},}{percent(point.hit_rate):>10}{percent(point.ceiling):>11}"
            f"{point.needed_tokens:>18,}{'  falls' if point.falls else ''}"
        )
    return lines


def _named(cliff: Cliff) -> str:
    held = f"{cliff.capacity_tokens:,.0f} tokens"
    if cliff.falls_at is None:
        return f"none: {held} hold all {cliff.sessions_tried:,} sessions that the trace has"
    if cliff.sessions_held is None:
        return (
            f"at any load: {held} lose over {percent(cliff.lost)} of the hits with one live session at a time already"
        )
    return (
        f"at {cliff.falls_at:,} live sessions: {held} hold {cliff.sessions_held:,}, and with more than that over "
        f"{percent(cliff.lost)} of the hits are lost"
    )


def _present(cliff: Cliff) -> str:
    point: CliffPoint = cliff.present
    load = "in the trace's own time" if point.sessions is None else f"at {point.sessions:,} live sessions"
    room = cliff.capacity_tokens - point.needed_tokens
    told = f"{room:,.0f} less than there are" if room >= 0 else f"{-room:,.0f} more than there are"
    return f"{load} the hit rate falls below {point.needed_tokens:,} tokens, {told}"


def _value(figure: Figure) -> str:
    return f"over {_told(figure, figure.low)}" if figure.value is None else _told(figure, figure.value)


def _interval(figure: Figure) -> str:
    return f"{_told(figure, figure.low)} to {_told(figure, figure.high)}" if figure.high is not None else "a floor"


def _told(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return percent(value) if figure.name == "hit_rate" else f"{value:.4g} s"


def _off(figure: Figure) -> str:
    if figure.error is None:
        return "-"
    return f"{figure.error * 100:+.1f} points" if figure.name == "hit_rate" else f"{figure.error * 100:+.1f}%"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"
