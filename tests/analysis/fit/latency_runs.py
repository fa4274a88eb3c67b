"""Runs whose times are made from known terms, without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.model import Clock, Record, RunInfo, Trust, Usage
from kvbench.runs.reader import Run


class Sent(NamedTuple):
    """One request as it was measured. at_s: when it was sent; None: once the one before has ended."""

    group: str
    uncached: int
    cached: int
    ttft_s: float
    at_s: float | None = None
    restored: int | None = None
    tpot_s: float = 0.0
    output_tokens: int = 1
    bound_s: float | None = None
    role: str = "read"


def run_of(
    sent: Sequence[Sent],
    *,
    probe: bool = True,
    trust: Trust | None = None,
    metrics: Sequence[float] = (),
    path: Path = Path("r"),
) -> Run:
    """A latency probe's run (group: its cell), or a replay's (group: its session). metrics: tokens that had come from
    below HBM, at each scrape."""
    records, clock_s = [], 0.0
    events: list[dict[str, Any]] = [
        {"kind": "metrics", "metrics": {"prompt_tokens_by_source": {"external_kv_transfer": value}}}
        for value in metrics
    ]
    turns: dict[str, int] = {}
    for i, one in enumerate(sent):
        at = clock_s if one.at_s is None else one.at_s
        first = at + one.ttft_s
        last = first + one.tpot_s * (one.output_tokens - 1)
        clock_s = max(clock_s, last + 0.001)
        turn = turns[one.group] = turns.get(one.group, -1) + 1
        ns = [round(t * 1e9) for t in (at, first, last)]
        clock = Clock(
            scheduled=ns[0],
            due=ns[0],
            sent=ns[0],
            first_token=ns[1],
            last_token=ns[2],
            end=ns[2],
            first_token_bound_ns=None if one.bound_s is None else round(one.bound_s * 1e9),
        )
        usage = Usage(input_tokens=one.uncached + one.cached, cached_tokens=one.cached, output_tokens=one.output_tokens)
        name = f"{one.group}/{i}.{one.role}" if probe else f"r{i}"
        records.append(
            Record(request_id=name, session_id=one.group, root_id=one.group, turn=turn, clock=clock, usage=usage)
        )
        if one.restored is not None:
            events.append({"kind": "restored", "request_id": name, "tokens": one.restored})
    settings = {"probe": "latency"} if probe else {}
    info = RunInfo(
        kvbench_version="0", run_id="r", name="t", status="done", started_at="", trust=trust, settings=settings
    )
    return Run(info=info, records=records, events=events, warnings=[], path=path)


def formula(
    uncached: int,
    cached: int,
    *,
    base: float,
    token: float,
    square: float,
    chunk: int | None = None,
    chunk_s: float = 0.0,
    replay: int = 0,
    floor: float = 0.0,
) -> float:
    """TTFT as the definition has it, without the tiers."""
    u, c = uncached, cached
    if c and replay:
        u, c = u + replay, c - replay
    steps = math.ceil(u / chunk) if chunk else 0
    return max(floor, base + token * u + square * (u * c + u * u / 2) + chunk_s * steps)
