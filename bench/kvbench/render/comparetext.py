"""A comparison as text."""

from __future__ import annotations

from typing import Any

from kvbench.render.gatetext import amount
from kvbench.render.text import NOT_REPORTED, plural, safe, seconds

_SHARES = ("1",)
_NAME, _AMOUNT = 26, 18


def compare_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"base  {safe(', '.join(report['base']))}",
        f"new   {safe(', '.join(report['new']))}",
        "",
        f"{'':<{_NAME}}{'base':>{_AMOUNT}}{'new':>{_AMOUNT}}{'change':>10}   95% interval",
    ]
    lines += [_metric(row) for row in report["metrics"]]
    for by in dict.fromkeys(row["by"] for row in report["where"]):
        lines += ["", f"TTFT by {by}"]
        lines += [_group(row) for row in report["where"] if row["by"] == by]
    if report["turns_changed"]:
        lines += ["", "turns whose TTFT changed most"]
        lines += [_turn(row) for row in report["turns_changed"][:5]]
    lines += ["", "what else is different" if report["changed"] else "nothing else is different"]
    lines += [
        f"  {safe(row['field'])}: {safe(' | '.join(row['base']))} -> {safe(' | '.join(row['new']))}"
        for row in report["changed"]
    ]
    unpriced = [row["reason"] for row in report["metrics"] if row["metric"] == "cost" and row.get("reason")]
    return [
        *lines,
        *(f"note: {safe(note)}" for note in [*report["notes"], *(f"not priced: {why}" for why in unpriced)]),
    ]


def _metric(row: dict[str, Any]) -> str:
    name = row["metric"] + (f".{row['stat']}" if row["stat"] else "")
    base, new = amount(row["base"], row["unit"]), amount(row["new"], row["unit"])
    if row["base"] is None and row["new"] is None:
        return f"{name:<{_NAME}}{'not priced' if row['unit'] == 'currency' else NOT_REPORTED:>{_AMOUNT}}"
    if row["unit"] in _SHARES:
        change = "" if row["difference"] is None else f"{row['difference'] * 100:+.2f} pt"
        interval = "" if row["low"] is None else f"   {row['low'] * 100:+.2f} to {row['high'] * 100:+.2f} pt"
    else:
        change = "" if row["ratio"] is None else _percent(row["ratio"])
        interval = "" if row["low"] is None else f"   {_percent(row['low'])} to {_percent(row['high'])}"
    of = f"   ({row['of']})" if row["of"] else ""
    return f"{name:<{_NAME}}{base:>{_AMOUNT}}{new:>{_AMOUNT}}{change:>10}{interval}{of}"


def _group(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return f"  {safe(row['group']):<26}{plural(row['turns'], 'turn')}: {NOT_REPORTED}"
    interval = "" if row["low"] is None else f"   {_percent(row['low'])} to {_percent(row['high'])}"
    sides = f"{seconds(row['base'])} -> {seconds(row['new'])}"
    return (
        f"  {safe(row['group']):<26}{sides:<22}{_percent(row['ratio']):>8}{interval}   ({plural(row['turns'], 'turn')})"
    )


def _turn(row: dict[str, Any]) -> str:
    where = f"{safe(row['session_id'])} turn {row['turn']}"
    cached = [
        NOT_REPORTED if value is None else f"{value:,.0f}"
        for value in (row["base_cached_tokens"], row["new_cached_tokens"])
    ]
    hits = "" if cached[0] == cached[1] else f"   cached {cached[0]} -> {cached[1]}"
    sides = f"{seconds(row['base_ttft_s'])} -> {seconds(row['new_ttft_s'])}"
    return f"  {where:<26}{sides:<22}{_percent(row['ratio']):>8}{hits}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}%"
