"""A miss-ratio curve as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvbench.render.modeltext import size
from kvbench.render.text import percent, plural, safe
from kvbench.traces.curve.measure import Curve, Measured, Needed, Rule

LABEL = 14


def curve_json(trace: str, measured: Measured, notes: Sequence[str]) -> dict[str, Any]:
    """All requests' curve at the top level, the groups' under `groups`. None: nothing to divide by, or no capacity."""
    every = msgspec.to_builtins(measured.all)
    every.pop("group")
    return {
        "trace": trace,
        "rule": msgspec.to_builtins(measured.rule),
        "unique_blocks": measured.unique_blocks,
        **every,
        "groups": msgspec.to_builtins(measured.groups),
        "notes": list(notes),
    }


def curve_lines(name: str, measured: Measured, model: str | None = None) -> list[str]:
    """model: whose bytes a token the capacities in bytes are."""
    every, rule = measured.all, measured.rule
    counted = f" after the first {rule.warmup_requests:,}" if rule.warmup_requests else ""
    lines = [
        _line(
            "trace",
            f"{safe(name)}: {plural(every.requests, 'request')}{counted}, {plural(every.blocks, 'block')} of "
            f"{rule.block_size:,} tokens, {every.input_tokens:,} input tokens",
        ),
        _line("blocks", f"{measured.unique_blocks:,} distinct in the whole trace"),
    ]
    for curve in (every, *measured.groups):
        lines += ["", *_curve_lines(curve, alone=not measured.groups, model=model)]
    return [*lines, "", "rule", *(_line(f"  {name}", text) for name, text in rule_table(rule))]


def _curve_lines(curve: Curve, *, alone: bool, model: str | None) -> list[str]:
    lines = []
    if not alone:
        what = (
            f"{plural(curve.requests, 'request')}, {plural(curve.blocks, 'block')}, {curve.input_tokens:,} input tokens"
        )
        lines.append(_line(safe(curve.group), what))
    lines.append(_line("ceiling", _ceiling(curve)))
    lines += [_line("needed", _needed(needed)) for needed in curve.needed]
    if curve.points:
        lines += _table(curve, model)
    return lines


def _ceiling(curve: Curve) -> str:
    if not curve.hit_blocks_unbounded:
        return "no block is hit at any capacity"
    unbounded = curve.unbounded
    return (
        f"{percent(unbounded.block_hit_rate)} by block, {percent(unbounded.token_hit_rate)} by token, from "
        f"{_capacity(curve.sufficient_blocks, curve.sufficient_tokens, curve.sufficient_bytes)} on"
    )


def _needed(needed: Needed) -> str:
    wanted = f"{needed.hit_rate * 100:g}% by {needed.by}: "
    if needed.capacity_blocks is None or needed.capacity_tokens is None:
        return f"{wanted}no capacity has it, the ceiling is lower"
    return wanted + _capacity(needed.capacity_blocks, needed.capacity_tokens, needed.capacity_bytes)


def _capacity(blocks: int, tokens: int, in_bytes: int | None) -> str:
    return f"{plural(blocks, 'block')} ({tokens:,} tokens" + (f", {size(in_bytes)})" if in_bytes is not None else ")")


def _table(curve: Curve, model: str | None) -> list[str]:
    with_bytes = curve.points[0].capacity_bytes is not None
    head = ["blocks", "tokens", *(["bytes"] if with_bytes else []), "hit blocks", "by block", "by token"]
    rows = [
        [
            f"{point.capacity_blocks:,}",
            f"{point.capacity_tokens:,}",
            *([size(point.capacity_bytes)] if point.capacity_bytes is not None else []),
            f"{point.hit_blocks:,}",
            percent(point.block_hit_rate),
            percent(point.token_hit_rate),
        ]
        for point in curve.points
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [_columns("capacity", head, widths), *(_columns("", row, widths) for row in rows)]
    if with_bytes and model is not None:
        whose = f"bytes a token by the architecture of {safe(model)}; what a session takes besides is not in them"
        lines.append(_line("", whose))
    return lines


def _columns(label: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return _line(label, "   ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def rule_table(rule: Rule) -> list[tuple[str, str]]:
    """The rule as pairs of what it is about and what it says."""
    warmup = (
        f"the first {rule.warmup_requests:,} requests ({rule.warmup * 100:g}%) fill the cache and are not counted"
        if rule.warmup_requests
        else "none: the cache begins empty, and every request counts"
    )
    said = [
        ("cache", rule.cache),
        (rule.order, rule.touch),
        ("requests", rule.requests),
        ("warm-up", warmup),
        ("outputs", rule.outputs),
        ("partial tail", rule.partial_tail),
        ("tokens", rule.tokens),
        ("weighting", rule.weighting),
    ]
    if rule.ttl_s is not None:
        said.append(("TTL", rule.ttl))
    if rule.repeated_ids:
        said.append(("ids", f"{rule.repeated_ids:,} stand after more than one prefix: a block of its own after each"))
    return said


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}} {text}".rstrip()
