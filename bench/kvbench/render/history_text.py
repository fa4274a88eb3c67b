"""Nights as text: a line a metric, with a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.render.gatetext import amount
from kvbench.render.text import NOT_REPORTED, plural, safe

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 60
UNITS = {
    **dict.fromkeys(("ttft.geomean", "ttft.p95", "e2e.geomean", "job_latency.geomean"), "s"),
    "tpot.geomean": "s/token",
    "hit_rate": "1",
    "errors": "1",
    "output_throughput": "tokens/s",
}


def history_lines(found: dict[str, Any]) -> list[str]:
    """What `kvbench history --json` has, the newest night last; a gap is a night that did not report the metric."""
    lines: list[str] = []
    for key in found["keys"]:
        nights = key["nights"]
        side = "" if key["side"] is None else f", {key['side']}"
        runs = plural(sum(night["runs"] for night in nights), "run")
        lines += [
            f"{safe(str(key['trace']))} -> {safe(str(key['model']))}, {safe(str(key['endpoint']))}{side}"
            f"  (key {key['key']}): {plural(len(nights), 'night')}, {runs}",
            f"  {safe(nights[0]['night'])} to {safe(nights[-1]['night'])}"
            f"; server {', '.join(map(safe, key['servers'][-3:]))}",
        ]
        lines += [_line(name, nights[-_SHOWN:]) for name in UNITS]
        verdicts = "".join(_letter(night) for night in nights[-_SHOWN:])
        if verdicts.strip():
            lines.append(f"  {'verdicts':<20} {verdicts}")
        lines.append("")
    lines += [f"left out   {safe(row['run'])}: {safe(row['reason'])}" for row in found["left_out"]]
    if not found["keys"]:
        return [*lines, f"no whole runs in {safe(found['directory'])}"]
    if any(_letter(night).strip() for key in found["keys"] for night in key["nights"]):
        lines.append("verdicts: P pass, F fail, i inconclusive, r refused, x not finished")
    return lines


def _letter(night: dict[str, Any]) -> str:
    """Under the night's bar; a blank for plain runs."""
    if night["verdict"] is not None:
        return _LETTERS[night["verdict"]]
    return " " if night["status"] is None else "x"


_LETTERS = {"pass": "P", "fail": "F", "inconclusive": "i", "refused": "r"}


def _line(name: str, nights: Sequence[dict[str, Any]]) -> str:
    values = [night["values"][name] for night in nights]
    told = [value for value in values if value is not None]
    if not told:
        return f"  {name:<20} {NOT_REPORTED}"
    unit = UNITS[name]
    return (
        f"  {name:<20} {sparkline(values)}  {amount(values[-1], unit)}"
        f"  (least {amount(min(told), unit)}, most {amount(max(told), unit)})"
    )


def sparkline(values: Sequence[float | None]) -> str:
    """A bar a value between the least and the most of them; a blank where there is none; alike: all in the middle."""
    told = [value for value in values if value is not None]
    if not told:
        return " " * len(values)
    low, high = min(told), max(told)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        return "".join(" " if value is None else _BARS[3] for value in values)
    top = len(_BARS) - 1
    return "".join(" " if value is None else _BARS[round((value - low) / (high - low) * top)] for value in values)
