"""Runs made up for the gate: what each measured, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.metrics import Metric

START = datetime(2026, 11, 30, tzinfo=UTC)


def made(label: str, at_min: float = 0, values: Mapping[str, float | None] | None = None, **fields: object) -> Evidence:
    """A good run of 100 turns that began `at_min` minutes after START; `values` by metric's word."""
    known = dict(values or {})

    def value(metric: Metric, stat: str | None) -> float | None:
        return known.get(metric.word)

    defaults: dict[str, object] = {
        "label": label,
        "source": "kvbench",
        "started_at": START + timedelta(minutes=at_min),
        "ended_at": START + timedelta(minutes=at_min + 0.9),
        "facts": {"trace.sha256": "a", "settings.rate": "2", "server.server": "vLLM 1", "endpoint.url": "u"},
        "value": value,
        "requested": 100,
        "completed": 100,
        "failed": 0,
        "turns": {(f"s{i}", 0): (1000, 10) for i in range(100)},
        "marks": frozenset(hash((label, i)) for i in range(100)),
        "url": "u",
    }
    return Evidence(**(defaults | fields))  # type: ignore[arg-type]


def abba(
    base: Sequence[float], new: Sequence[float], word: str = "ttft", **fields: object
) -> tuple[list[Evidence], list[Evidence]]:
    """As many of each, in the order B N N B B N N B ..."""
    sides: tuple[list[Evidence], list[Evidence]] = ([], [])
    for pair, values in enumerate(zip(base, new, strict=True)):
        for place, side in enumerate((0, 1) if pair % 2 == 0 else (1, 0)):
            sides[side].append(made(f"{'BN'[side]}{pair}", 2 * pair + place, {word: values[side]}, **fields))
    return sides
