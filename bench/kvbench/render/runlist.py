"""The runs of a directory as a table of plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvbench.render.text import NOT_REPORTED, percent, safe, seconds

COLUMNS = ("run", "status", "when", "trace", "endpoint", "turns", "TTFT p50", "hit rate")


def run_table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Lines of a table of the rows that `kvbench runs --json` has; a row with a problem shows that instead."""
    table: list[Sequence[str]] = [COLUMNS]
    problems: list[str] = []
    for row in rows:
        if row["problem"] is not None:
            problems.append(f"{safe(row['run'])}: {safe(row['problem'])}")
            continue
        table.append(
            (
                safe(row["run"]),
                safe(row["status"]),
                safe(row["started_at"]),
                safe(row["trace"] or "-"),
                safe(row["endpoint"] or "-"),
                f"{row['turns']:,}",
                _short(seconds(row["ttft_p50_s"])),
                _short(percent(row["hit_rate"])),
            )
        )
    widths = [max(len(cells[i]) for cells in table) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]
    return (lines if len(table) > 1 else []) + [f"not readable   {problem}" for problem in problems]


def _short(text: str) -> str:
    return "-" if text == NOT_REPORTED else text
