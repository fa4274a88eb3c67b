"""Run directories as a replay leaves them, with latencies that are made up and known."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from tests.books import book

from kvbench.model import Clock, Expectation, Record, RunInfo, Trust, Usage

MS = 1_000_000
SESSIONS, TURNS = 12, 4
START = datetime(2026, 11, 30, tzinfo=UTC)


def make_run(
    out: Path, name: str, at_min: float, *, ttft: float = 1.0, seed: int = 0, noise: float = 0.02, **changes: Any
) -> Path:
    """A run of 12 sessions of 4 turns that began `at_min` after START; the third turn of each even session is a
    sub-agent's. TTFT: 100 ms and 100 more on the first turn, which hits nothing, times `ttft` and run noise.

    changes: fields of RunInfo; failed=N: the first N turns failed; hits: the share that is hit of what could be;
    zeros=False: cached tokens are not reported where there are none.
    """
    failed, hits, zeros = changes.pop("failed", 0), changes.pop("hits", 1.0), changes.pop("zeros", True)
    rng = random.Random(f"{name}{seed}")
    run_noise = rng.gauss(1, noise / 2)
    records = []
    for session in range(SESSIONS):
        at = session * 2000 * MS
        for turn in range(TURNS):
            child = turn == 2 and session % 2 == 0
            wait = round((200 if turn == 0 else 100) * ttft * run_noise * rng.gauss(1, noise) * MS)
            tokens = 1000 * (turn + 1)
            chunks = [at + wait, at + wait + 10 * MS, at + wait + 20 * MS]
            broken = len(records) < failed
            cached = round((tokens - 1000) * hits)
            records.append(
                Record(
                    request_id=f"{session}/{turn}",
                    session_id=f"s{session:02d}" + (".a" if child else ""),
                    root_id=f"s{session:02d}",
                    turn=0 if child else turn,
                    clock=Clock(
                        scheduled=at,
                        due=at,
                        upload_start=at,
                        sent=at,
                        stamp="kernel",
                        first_token_bound_ns=0,
                        first_token=None if broken else chunks[0],
                        first_output_token=None if broken else chunks[0],
                        last_token=None if broken else chunks[-1],
                        end=chunks[-1],
                        chunks=[] if broken else chunks,
                    ),
                    usage=Usage()
                    if broken
                    else Usage(input_tokens=tokens, cached_tokens=cached if cached or zeros else None, output_tokens=3),
                    error_class="reset" if broken else None,
                    expectation=Expectation(
                        rule="block 16", input_tokens=tokens, floor=tokens - 1000, ceiling=tokens - 1000
                    )
                    if turn
                    else None,
                )
            )
            at = chunks[-1] + 50 * MS
    started = START + timedelta(minutes=at_min)
    info: dict[str, Any] = {
        "kvbench_version": "0.1.0",
        "run_id": name,
        "name": "made",
        "status": "done",
        "started_at": started.isoformat(),
        "ended_at": (started + timedelta(seconds=50)).isoformat(),
        "endpoint": {"url": "http://127.0.0.1:8000/v1", "dialect": "vllm"},
        "server": {"server": "vLLM 0.32.0", "model": "tiny"},
        "trace": {"sha256": "a" * 64, "turns": SESSIONS * TURNS, "name": "made"},
        "settings": {"time_scale": 1.0},
        "environment": {"cpus": 2, "load_average_1min": rng.random()},
        "trust": Trust(),
    }
    path = out / name
    path.mkdir(parents=True)
    (path / "run.json").write_bytes(msgspec.json.encode(RunInfo(**(info | changes))))
    (path / "records.jsonl").write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


BOOK = book("tiny", "0.10", "1.00", "4.00", name="mine")
"""A tree has 4,000 tokens missed, 6,000 hit and 12 out: USD 0.004 + 0.0006 + 0.000048 = 0.004648, a run twelve."""


def make_abba(out: Path, n: int, *, ttft: float = 1.0, noise: float = 0.02, **changes: Any) -> None:
    """n runs a side, base-0 ... and new-0 ..., in the order B N N B ...; `ttft` and `changes` are the new ones'."""
    for pair in range(n):
        for place, side in enumerate(("base", "new") if pair % 2 == 0 else ("new", "base")):
            mine = {"ttft": ttft, **changes} if side == "new" else {}
            make_run(out, f"{side}-{pair}", 2 * pair + place, noise=noise, **mine)
