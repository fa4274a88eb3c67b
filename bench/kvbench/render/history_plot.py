"""Nights as a page of its own, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

from kvbench.render.history_text import UNITS
from kvbench.render.text import plural, safe

_SCALED = {"1": (100, "%"), "s/token": (1000, "ms/token")}
_MARKS = {
    "pass": ("#1f4e9c", "circle"),
    "fail": ("#c0392b", "x"),
    "inconclusive": ("#1f4e9c", "circle-open"),
    "refused": ("#555", "square-open"),
    "not finished": ("#555", "diamond-open"),
    "plain runs": ("#1f4e9c", "circle"),
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 24px auto; max-width: 1000px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; }}</style></head><body>
<h1>{title}</h1>
<p>Small points are runs, large ones the means of nights, marked by the night's verdict. A night without a point did not
report the metric. A dotted line is a change of server. Axes do not begin at 0.</p>
{parts}{left_out}
</body></html>
"""


def history_page(found: dict[str, Any]) -> str:
    """HTML: a figure a key, a row a metric."""
    parts = []
    for at, key in enumerate(found["keys"]):
        side = "" if key["side"] is None else f", {key['side']}"
        name = f"{key['trace']} -> {key['model']}, {key['endpoint']}{side} (key {key['key']})"
        drawn = _figure(key).to_html(full_html=False, include_plotlyjs=at == 0, config={"displaylogo": False})
        parts.append(f"<h2>{escape(safe(name))}</h2>\n{drawn}\n")
    left_out = "".join(
        f"<p><b>Left out:</b> {escape(safe(row['run']))}: {escape(safe(row['reason']))}</p>\n"
        for row in found["left_out"]
    )
    title = escape(safe(f"Nights of {found['directory']}"))
    return _PAGE.format(title=title, parts="".join(parts), left_out=left_out)


def _figure(key: dict[str, Any]) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    names = [name for name in UNITS if any(night["values"][name] is not None for night in key["nights"])]
    figure = make_subplots(rows=max(len(names), 1), cols=1, shared_xaxes=True, vertical_spacing=0.02)
    nights = [safe(night["night"]) for night in key["nights"]]
    states = [_state(night) for night in key["nights"]]
    said = [_said(night) for night in key["nights"]]
    for row, name in enumerate(names, start=1):
        factor, unit = _SCALED.get(UNITS[name], (1, UNITS[name]))
        points = [
            (night, value * factor)
            for night, given in zip(nights, key["nights"], strict=True)
            for value in given["all"][name]
            if value is not None
        ]
        told = [night["values"][name] for night in key["nights"]]
        means = [None if mean is None else mean * factor for mean in told]
        runs = {"size": 5, "color": "#9db4d6"}
        marks = {"size": 8, "color": [_MARKS[s][0] for s in states], "symbol": [_MARKS[s][1] for s in states]}
        for trace in (
            go.Scatter(x=[at for at, _ in points], y=[y for _, y in points], mode="markers", marker=runs, name="a run"),
            go.Scatter(
                x=nights,
                y=means,
                mode="lines+markers",
                line={"color": "#1f4e9c", "width": 2},
                marker=marks,
                customdata=said,
                hovertemplate=f"%{{x}}: %{{y:.5~g}} {unit}<br>%{{customdata}}<extra>{name}</extra>",
            ),
        ):
            figure.add_trace(trace.update(showlegend=False), row=row, col=1)
        figure.update_yaxes(
            title=f"{name}<br>{unit}",
            range=_span([y for _, y in points] + [mean for mean in means if mean is not None], share=unit == "%"),
            tickformat=".4~g",
            nticks=5,
            gridcolor="#ddd",
            row=row,
            col=1,
        )
    for state in dict.fromkeys(states):
        colour, symbol = _MARKS[state]
        marker = {"size": 8, "color": colour, "symbol": symbol}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=state), row=1, col=1)
    _servers(figure, key["nights"])
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=nights, range=[-0.5, len(nights) - 0.5])
    figure.update_xaxes(title="night", row=max(len(names), 1), col=1)
    figure.update_layout(
        height=150 * max(len(names), 1) + 140,
        plot_bgcolor="white",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "yref": "paper"},
        margin={"t": 70, "l": 90, "r": 20},
    )
    return figure


def _state(night: dict[str, Any]) -> str:
    if night["verdict"] is not None:
        return str(night["verdict"])
    return "plain runs" if night["status"] is None else "not finished"


def _said(night: dict[str, Any]) -> str:
    return escape(safe(f"{plural(night['runs'], 'run')}, {_state(night)}; server {', '.join(night['servers'])}"))


def _span(values: Sequence[float], *, share: bool) -> list[float]:
    """Of an axis: all values with some room, and 2% either way at least, so that no noise is blown up to a change; no
    further below 0, or above 100%, than a point is large."""
    low, high = min(values), max(values)
    middle = (low + high) / 2
    half = max(0.58 * (high - low), 0.02 * abs(middle)) or 1.0
    return [max(middle - half, 0.0 if low > 0 else -0.05 * half), min(middle + half, 103.0) if share else middle + half]


def _servers(figure: Any, nights: Sequence[dict[str, Any]]) -> None:
    """A line before each night whose server is not that of the night before."""
    for at, (before, after) in enumerate(pairwise(nights), start=1):
        if before["servers"] != after["servers"]:
            line = {"color": "#888", "width": 1, "dash": "dot"}
            figure.add_shape(type="line", x0=at - 0.5, x1=at - 0.5, xref="x", y0=0, y1=1, yref="paper", line=line)
            text = escape(safe(", ".join(after["servers"])))
            text = text if len(text) <= 40 else f"{text[:39]}…"
            place = {"x": at - 0.5, "xref": "x", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "top"}
            figure.add_annotation(text=text, showarrow=False, font={"size": 11, "color": "#666"}, **place)
