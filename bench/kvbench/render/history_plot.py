"""Nights as a page of its own, which needs no network."""

from __future__ import annotations

from html import escape
from typing import Any

from kvbench.render.history_text import UNITS
from kvbench.render.text import safe

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 24px auto; max-width: 1000px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; }}</style></head><body>
<h1>{title}</h1>
<p>Points are runs, lines join the means of nights. A night without a point did not report the metric.</p>
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
    for row, name in enumerate(names, start=1):
        factor, unit = (100, "%") if UNITS[name] == "1" else (1, UNITS[name])
        points = [
            (night, value * factor)
            for night, given in zip(nights, key["nights"], strict=True)
            for value in given["all"][name]
            if value is not None
        ]
        means = [night["values"][name] for night in key["nights"]]
        figure.add_trace(
            go.Scatter(
                x=[night for night, _ in points],
                y=[value for _, value in points],
                mode="markers",
                marker={"size": 5, "color": "#9db4d6"},
                name=f"{name}, runs",
            ),
            row=row,
            col=1,
        )
        figure.add_trace(
            go.Scatter(
                x=nights,
                y=[None if mean is None else mean * factor for mean in means],
                mode="lines+markers",
                line={"color": "#1f4e9c", "width": 2},
                name=name,
            ),
            row=row,
            col=1,
        )
        figure.update_yaxes(title=f"{name}<br>{unit}", row=row, col=1, gridcolor="#ddd")
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=nights)
    figure.update_layout(
        height=150 * max(len(names), 1) + 80, plot_bgcolor="white", showlegend=False, margin={"t": 10, "l": 90}
    )
    return figure
