"""A miss-ratio curve as a page of its own, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from kvbench.render.curve_text import rule_table
from kvbench.render.modeltext import size
from kvbench.traces.curve.measure import Curve, Measured

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS = ("#1f4e9c", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#117a8b", "#5d6d7e")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 24px auto; max-width: 1000px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; }}
th {{ text-align: left; vertical-align: top; padding: 2px 14px 2px 0; white-space: nowrap; font-weight: 600; }}
td {{ vertical-align: top; padding: 2px 0; }}
</style></head><body>
<h1>{title}</h1>
<p>{about}</p>
{notes}{figure}
<h2>Rule</h2>
<table>{rule}</table>
</body></html>
"""


def plot_page(name: str, measured: Measured, notes: Sequence[str] = ()) -> str:
    """HTML with the figure and the rule. The points of `measured` are joined by lines."""
    every, rule = measured.all, measured.rule
    about = (
        f"{every.requests:,} requests, {every.blocks:,} blocks of {rule.block_size:,} tokens "
        f"({measured.unique_blocks:,} distinct in the whole trace). Points are exact; lines join them."
    )
    return _PAGE.format(
        title=escape(f"Prefix-cache hit rate by capacity: {name}"),
        about=escape(about),
        notes="".join(f"<p><b>Note:</b> {escape(note)}.</p>\n" for note in notes),
        figure=_figure(measured).to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False}),
        rule="".join(f"<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>" for key, text in rule_table(rule)),
    )


def _figure(measured: Measured) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    curves = (measured.all, *measured.groups)
    for curve, colour in zip(curves, _COLOURS * len(curves), strict=False):
        if not curve.points:
            continue
        label = "" if not measured.groups else f"{escape(curve.group)}, "
        figure.add_trace(_line(curve, f"{label}by token", colour, by_token=True))
        figure.add_trace(_line(curve, f"{label}by block", colour, by_token=False))
        ceiling = curve.unbounded.token_hit_rate
        if ceiling is not None:
            figure.add_hline(y=ceiling * 100, line={"color": colour, "width": 1, "dash": "dot"})
    figure.update_xaxes(type="log", title="cache capacity, tokens (log scale)", showgrid=True, gridcolor="#ddd")
    figure.update_yaxes(
        title="hit rate, % (dotted: unbounded cache)", rangemode="tozero", range=[0, 100], gridcolor="#ddd"
    )
    figure.update_layout(
        height=520,
        plot_bgcolor="white",
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"x": 0.01, "y": 0.99, "bgcolor": "rgba(255,255,255,0.8)"},
    )
    return figure


def _line(curve: Curve, name: str, colour: str, *, by_token: bool) -> go.Scatter:
    import plotly.graph_objects as go

    points = curve.points
    rates = [point.token_hit_rate if by_token else point.block_hit_rate for point in points]
    return go.Scatter(
        x=[point.capacity_tokens for point in points],
        y=[None if rate is None else rate * 100 for rate in rates],
        mode="lines",
        name=name,
        line={"color": colour, "width": 2, "dash": "solid" if by_token else "dash"},
        customdata=[
            f"{point.capacity_blocks:,} blocks"
            + (f", {size(point.capacity_bytes)}" if point.capacity_bytes is not None else "")
            for point in points
        ],
        hovertemplate="%{y:.2f}% with %{x:,} tokens (%{customdata})",
    )
