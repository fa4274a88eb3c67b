"""Runs whose server's gauge is known, without a network: requests that hold blocks of a pool of the test's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.runs.reader import Run

S = 1_000_000_000
BLOCKS, BLOCK = 500, 32
MEMORY = BLOCKS * BLOCK * 512


class Sent(NamedTuple):
    """Sent at `sent`, generating evenly from `first` until `end`, seconds."""

    sent: float
    first: float
    end: float
    tokens: int
    output: int

    def generated(self, at_s: float) -> int:
        if at_s < self.first:
            return 0
        return min(self.output, int((at_s - self.first) / (self.end - self.first) * self.output) + 1)


def record(number: int, sent: Sent, **more: Any) -> Record:
    chunks = [round((sent.first + i * (sent.end - sent.first) / sent.output) * S) for i in range(sent.output)]
    clock = Clock(
        scheduled=round(sent.sent * S),
        due=round(sent.sent * S),
        sent=round(sent.sent * S),
        first_token=chunks[0],
        last_token=chunks[-1],
        end=round(sent.end * S),
        chunks=chunks,
    )
    usage = Usage(input_tokens=sent.tokens, cached_tokens=0, output_tokens=sent.output)
    return Record(**{  # type: ignore[arg-type]
        "request_id": f"cell{number}/0.read", "session_id": f"cell{number}/0", "turn": 0, "clock": clock,
        "usage": usage, **more,
    })  # fmt: skip


def blocks_held(tokens: int, beside: int = 0) -> int:
    """Whole blocks of a request, and `beside` blocks that it takes whatever its length."""
    return -(-tokens // BLOCK) + beside


def cells(seed: int, count: int = 14, most: int = 4, lengths: tuple[int, int] = (400, 3000)) -> list[Sent]:
    """One to `most` requests at a time, two seconds a set, then a pause of one."""
    rng = random.Random(seed)
    sent = []
    for cell in range(count):
        for _ in range(rng.randint(1, most)):
            begins = cell * 3 + rng.uniform(0, 0.1)
            tokens = rng.randint(*lengths)
            sent.append(Sent(begins, begins + 0.2, cell * 3 + 2, tokens, 40))
    return sent


def gauge_run(
    sent: list[Sent],
    share: Callable[[list[int]], float],
    *,
    settings: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    running: Callable[[float, int], int] = lambda at_s, n: n,
    waiting: Callable[[float], int] = lambda at_s: 0,
    preemptions: Callable[[float], int] = lambda at_s: 0,
    every_s: float = 0.25,
    records: list[Record] | None = None,
    path: Path = Path("nowhere"),
) -> Run:
    """The run that a probe would have recorded. share: of the pool, from the tokens that each running request holds."""
    events = []
    last = max(s.end for s in sent) + 1
    at_s = 0.05
    while at_s < last:
        there = [s.tokens + s.generated(at_s) for s in sent if s.first <= at_s < s.end]
        events.append(
            {
                "kind": "gauges",
                "at_ns": round((at_s + 0.001) * S),
                "took_ns": 2_000_000,
                "kv_usage": share(there),
                "running": float(running(at_s, len(there))),
                "waiting": float(waiting(at_s)),
                "preemptions": float(preemptions(at_s)),
            }
        )
        at_s += every_s
    info = RunInfo(
        kvbench_version="0",
        run_id="r",
        name="t",
        status="done",
        started_at="",
        settings={"probe": "occupancy", "kv_memory_bytes": MEMORY} if settings is None else settings,
        server=server or {},
    )
    made = records if records is not None else [record(i, s) for i, s in enumerate(sent)]
    return Run(info=info, records=made, events=events, warnings=[], path=path)
