"""Claimed, architectural, allocated and measured bytes as a table: a figure a line, never one number."""

from __future__ import annotations

from typing import Any

from kvbench.render.text import percent, safe

_HEADS = ("", "bytes/token", "bytes/session", "")


def sides_lines(sides: dict[str, Any]) -> list[str]:
    rows = [_HEADS, *_figures(sides), *map(_measured, sides["measured"])]
    if not sides["measured"]:
        rows.append(("measured", "none", "none", "no bytes were measured: what is refused says why"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"side by side with {safe(sides['model'])}"]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True))
        lines.append(f"  {cells}  {safe(row[3])}".rstrip())
    remark = sides["allocated_remark"]
    return lines + [f"  {safe(text)}" for text in (*([remark] if remark else []), *sides["assumed"])]


def _figures(sides: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    rows = []
    if sides["claimed"] is not None:
        rows.append(("claimed", _number(sides["claimed"]["bytes_per_token"]), "", sides["claimed"]["source"]))
    both = sides["architecture"]
    of = f"by its config, cache {sides['cache_dtype']}"
    rows.append(("architecture", _number(both["bytes_per_token"]), _number(both["bytes_per_session"]), of))
    for layout in sides["allocated_by_layout"]:
        rows.append(("layout", _number(layout["bytes_per_token"]), "", f"{layout['engine']}, {layout['layout']}"))
    return rows


def _measured(one: dict[str, Any]) -> tuple[str, str, str, str]:
    ends = ["no bound" if one[end] is None else _number(one[end]) for end in ("low", "high")]
    value = "no value" if one["value"] is None else _number(one["value"])
    told = f"{value} ({ends[0]} to {ends[1]})"
    token = one["of"] == "bytes_per_token"
    return "measured", told if token else "", "" if token else told, f"{one['name']}: {_verdict(one)}"


def _verdict(one: dict[str, Any]) -> str:
    """What lies in the interval, and how far the value is from all that does not."""
    off = [
        f"{name} ({'+' if change > 0 else '-'}{percent(abs(change))})" if change is not None else name
        for name, change in one["off"].items()
    ]
    parts = [f"agrees with {', '.join(one['within'])}"] if one["within"] else ["none of these is in its interval"]
    return "; ".join(parts + ([f"differs from {', '.join(off)}"] if off else []))


def _number(value: float) -> str:
    """At most two decimals; of what was measured, none above 10,000."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.2f}"
