"""Agent traffic from a seed, as the runs that the curve is computed from, and as a trace file.

Sessions of 20 turns on average come at a rate; a turn adds 2,000 tokens in the median (lognormal), up to a million.
Three system prompts of 8,192 tokens are shared. Pauses are seconds nine times in ten, minutes else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.traces.curve.hits import Runs

BLOCK = 64
SYSTEM_BLOCKS = 128
SYSTEM_PROMPTS = 3
LONGEST_BLOCKS = 1_000_000 // BLOCK
SESSIONS_PER_S = 0.5

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """One entry a turn, sessions one after the other. own: blocks of its own, the new ones included."""

    session: Ints
    turn: Ints
    prompt: Ints
    start_s: NDArray[np.float64]
    gap_s: NDArray[np.float64]
    own_before: Ints
    own: Ints


def traffic(requests: int, seed: int = 1) -> Traffic:
    """At least so many turns, of whole sessions."""
    rng = np.random.default_rng(seed)
    turns = 1 + rng.geometric(1 / 20, requests // 10)
    turns = turns[: int(np.searchsorted(np.cumsum(turns), requests)) + 1]
    n = int(turns.sum())
    session = np.repeat(np.arange(len(turns)), turns)
    first = np.concatenate(([True], session[1:] != session[:-1]))
    begin = np.flatnonzero(first)
    start_s = np.cumsum(rng.exponential(1 / SESSIONS_PER_S, len(turns)))
    short = rng.random(n) < 0.9
    gap_s = 5 + np.where(short, rng.lognormal(np.log(8), 1, n), rng.lognormal(np.log(240), 1, n))
    gap_s[first] = 0
    elapsed_s = np.cumsum(gap_s)
    new = np.maximum(1, rng.lognormal(np.log(2000 / BLOCK), 0.8, n).astype(np.int64))
    new[first] += rng.lognormal(8, 0.6, len(turns)).astype(np.int64) // BLOCK
    grown = np.cumsum(new)
    own = np.minimum(grown - np.repeat((grown - new)[begin], turns), LONGEST_BLOCKS)
    return Traffic(
        session=session,
        turn=np.arange(n) - np.repeat(begin, turns),
        prompt=np.repeat(rng.integers(0, SYSTEM_PROMPTS, len(turns)), turns),
        start_s=np.repeat(start_s, turns) + elapsed_s - np.repeat(elapsed_s[begin], turns),
        gap_s=gap_s,
        own_before=np.where(first, 0, np.concatenate(([0], own[:-1]))),
        own=own,
    )


def runs_of(made: Traffic) -> tuple[Runs, Ints]:
    """The runs, and each request's tokens. Worked out directly: what a session had before, and its system prompt."""
    n = len(made.session)
    by_time = np.argsort(made.start_s, kind="stable")
    rank = np.empty(n, np.int64)
    rank[by_time] = np.arange(n)
    own_last = np.where(made.turn > 0, np.concatenate(([-1], rank[:-1])), -1)[by_time]
    prompt_last = np.full(n, -1)
    for prompt in range(SYSTEM_PROMPTS):
        same = np.flatnonzero(made.prompt[by_time] == prompt)
        prompt_last[same[1:]] = same[:-1]
    own_before, depth = made.own_before[by_time], SYSTEM_BLOCKS + made.own[by_time]
    together = (own_last == prompt_last) & (own_last >= 0)
    blocks = np.stack((np.where(own_last >= 0, own_before, 0), np.full(n, SYSTEM_BLOCKS)), axis=1)
    blocks[together] = [[0, SYSTEM_BLOCKS]]
    blocks[together, 1] += own_before[together]
    previous = np.stack((own_last, prompt_last), axis=1).reshape(-1)
    there = (blocks.reshape(-1) > 0) & (previous >= 0)
    request = np.repeat(np.arange(n), 2)
    return Runs(request[there], previous[there], blocks.reshape(-1)[there], depth), depth * BLOCK


def trace_lines(made: Traffic) -> Iterator[bytes]:
    """The same as a native trace of hash ids."""
    yield json.dumps({"kvbench_trace": 1, "name": "agents", "block_size": BLOCK}).encode() + b"\n"
    next_id = SYSTEM_PROMPTS * SYSTEM_BLOCKS
    for i in range(len(made.session)):
        turn, own = int(made.turn[i]), int(made.own[i])
        kept = SYSTEM_BLOCKS + int(made.own_before[i]) if turn else 0
        new = own - int(made.own_before[i])
        ids = list(range(next_id, next_id + new))
        next_id += new
        if not turn:
            prompt = int(made.prompt[i]) * SYSTEM_BLOCKS
            ids = [*range(prompt, prompt + SYSTEM_BLOCKS), *ids]
        line = {
            "session_id": f"s{made.session[i]}",
            "turn": turn,
            **({"delay_s": float(made.gap_s[i])} if turn else {"start_s": float(made.start_s[i])}),
            "input_tokens": (SYSTEM_BLOCKS + own) * BLOCK,
            **({"keep_blocks": kept} if turn else {}),
            "hash_ids": ids,
        }
        yield json.dumps(line).encode() + b"\n"
