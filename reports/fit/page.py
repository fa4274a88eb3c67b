"""README.md of this report, from its results alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from latency import table
from plan import LAPSES, MISFITS, ONE_LRU, OVERLAP, RULES, SHARED, STEP

Row = dict[str, Any]


OPENING = """# How near fits come

Made by `make fit-report`: probes and replays over HTTP against simulated endpoints whose truth is known, and fitted by
what `kvbench fit` calls. No endpoint answers at /metrics, so that the hits alone have to tell. Blocks have 32 tokens, a
token 512 bytes; probes ask pools of 400 to 1,200 blocks, replays of 80 sessions, one request at a time unless it is
said, pools that lose a part of what they could hit (mostly 400 to 700 blocks).

## One LRU cache

Errors are those of the capacity; those of bytes a token are the same the other way round.
"""
KINDS = """## Intervals

There are two kinds, and an estimate's `method` says which. **Bounds** follow from counts that are exact: a probe reads
to the block, a replay without overlap is predicted to the block, a prompt was found at one age and lost at another.
They hold the truth whenever the endpoint is what is assumed, and so are not of 90%. **90% intervals** are for what
chance decides: which requests overlapped, what others wrote between them, which prompts lapsed. Here 2 to 8 requests
ran at a time, with noise in their times, and in half of the runs others wrote 1, 2, 3 or 5% of all blocks.
"""
APART = """By how much a fit has to be worse to lie outside was set on other runs of this kind (227 of them): these are
shares of a rule that was fixed before.

## What is not one LRU cache

A figure would be wrong, however narrow its interval. A bound alone says that the capacity is at least so much, and a
note with it that the run cannot tell more: that is what replays give of pools that lose hardly anything, or nearly all.

| endpoint | asked by | cases | refused | a bound alone | a figure |
| --- | --- | --- | --- | --- | --- |"""


def page(results: dict[str, list[Row]]) -> str:
    rows = results["cases"]
    lines = [
        OPENING,
        *_figures(
            [
                ("capacity, by probe", _of(rows, "probe", ONE_LRU)),
                ("capacity, by replay", _of(rows, "replay", ONE_LRU)),
                ("lifetime of 0.5 to 1.5 s", _of(rows, "ttl", STEP)),
                ("lifetime, one hit in ten lapses", _of(rows, "ttl", LAPSES)),
            ]
        ),
        "",
        f"The hit rule was named, with its block size, in {_right(rows)} (blocks of 16 to 128 tokens;",
        f"{'; '.join(RULES)}).",
        "",
        KINDS,
        *_coverage(
            [
                ("bounds", "capacity, by probe", _of(rows, "probe", ONE_LRU)),
                ("bounds", "capacity, by replay", _of(rows, "replay", ONE_LRU)),
                ("bounds", "lifetime", _of(rows, "ttl", STEP)),
                ("90%", f"capacity, {OVERLAP}", _of(rows, "interval", OVERLAP)),
                ("90%", f"capacity, {SHARED}", _of(rows, "interval", SHARED)),
                ("90%", "capacity, both", [row for row in rows if row["way"] == "interval"]),
                ("90%", "lifetime, one hit in ten lapses", _of(rows, "ttl", LAPSES)),
                ("90%", "share of lapses", [row["lapse_share"] for row in _of(rows, "ttl", LAPSES)]),
            ]
        ),
        "",
        APART,
    ]
    for kind in MISFITS:
        for way in ("probe", "replay"):
            lines.append(_misfit(kind, way, _of(rows, way, kind)))
    lines += ["", f"Of one LRU cache, asked in the same ways, {_accused(rows)} were refused or given a bound alone."]
    lines += ["", "## Latency", "", *table(results["latency"])]
    lines += ["", "What probes find of a real server: [vllm.md](vllm.md)."]
    return "\n".join(lines) + "\n"


def _of(rows: Sequence[Row], way: str, kind: str) -> list[Row]:
    return [row for row in rows if row["way"] == way and row["kind"] == kind]


def given(rows: Sequence[Row]) -> list[Row]:
    """Those with a figure."""
    return [row for row in rows if "value" in row]


def error(row: Row) -> float:
    return float(row["value"] / row["truth"] - 1)


def covered(row: Row) -> bool:
    return bool(row["low"] <= row["truth"] <= row["high"])


def width(row: Row) -> float:
    return float((row["high"] - row["low"]) / row["truth"])


def is_figure(row: Row) -> bool:
    """Of a capacity, or of bytes a token without one."""
    return "value" in row or bool(row.get("beside"))


def _figures(of: Sequence[tuple[str, list[Row]]]) -> list[str]:
    lines = [
        "| what | cases | no figure | median error | largest error | most requests |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in of:
        got = given(rows)
        errors = [abs(error(row)) for row in got]
        requests = max((row["requests"] for row in got), default="")
        cells = [_percent(statistics.median, errors), _percent(max, errors), requests]
        lines.append(_line(name, len(rows), len(rows) - len(got), *cells))
    return lines


def _coverage(of: Sequence[tuple[str, str, list[Row]]]) -> list[str]:
    lines = [
        "| interval | of | cases | with a figure | hold the truth | share | median width | widest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, name, rows in of:
        got = given(rows)
        widths = [width(row) for row in got]
        held = sum(map(covered, got))
        share = f"{held / len(got) * 100:.0f}%" if got else ""
        cells = [len(rows), len(got), held, share, _percent(statistics.median, widths)]
        lines.append(_line(kind, name, *cells, _percent(max, widths)))
    return lines


def _misfit(kind: str, way: str, rows: list[Row]) -> str:
    figures = sum(map(is_figure, rows))
    bounds = sum("at_least" in row for row in rows)
    return _line(kind, way, len(rows), len(rows) - figures - bounds, bounds, figures)


def _right(rows: list[Row]) -> str:
    told = [row["right"] for row in rows if row["way"] == "granularity"]
    return f"{sum(told)} of {len(told)} probes"


def _accused(rows: list[Row]) -> str:
    honest = [*_of(rows, "probe", ONE_LRU), *_of(rows, "replay", ONE_LRU)]
    return f"{len(honest) - len(given(honest))} of {len(honest)}"


def _percent(of: Callable[[list[float]], float], values: list[float]) -> str:
    return f"{of(values) * 100:.2f}%" if values else ""


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
