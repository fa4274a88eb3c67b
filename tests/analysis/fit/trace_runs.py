"""Ordinary runs against caches that are known, without a network: agent sessions, served by a cache of the test's."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.runs.blocks import BLOCKS_FILE, BlockChains
from kvbench.runs.reader import Run

SIZE = 32
Chain = list[tuple[int, ...]]
Serve = Callable[[list[int], str], int]


class Cache:
    """Blocks by their whole prefix. policy: lru (tails go first), head_first, or fifo (by time of writing)."""

    def __init__(self, blocks: int, policy: str = "lru") -> None:
        self.blocks, self.policy = blocks, policy
        self.held: OrderedDict[int, None] = OrderedDict()

    def serve(self, ids: list[int], salt: str = "") -> int:
        """Tokens hit; then all whole blocks are there, as far as they fit."""
        chain, prefix = [], hash(salt)
        for at in range(0, len(ids) - SIZE + 1, SIZE):
            prefix = hash((prefix, *ids[at : at + SIZE]))
            chain.append(prefix)
        hit = 0
        while hit < (len(ids) - 1) // SIZE and chain[hit] in self.held:
            hit += 1
        for block in chain if self.policy != "lru" else reversed(chain):
            if block in self.held and self.policy == "fifo":
                continue
            self.held[block] = None
            self.held.move_to_end(block)
        # what the request has beyond whole blocks takes one too, while it runs
        while len(self.held) > self.blocks - (len(ids) % SIZE > 0):
            self.held.popitem(last=False)
        return hit * SIZE

    def foreign(self, rng: random.Random, share: float, tokens: int) -> None:
        for _ in range(round(tokens / SIZE * share / (1 - share))):
            self.held[rng.getrandbits(60)] = None
            while len(self.held) > self.blocks:
                self.held.popitem(last=False)


def sessions(rng: random.Random, count: int, live: int) -> list[tuple[str, list[int]]]:
    """Prompts in order of sending: `live` sessions take turns at random, each growing; a system prompt is shared."""
    shared = [rng.randrange(50_000) for _ in range(rng.randint(100, 900))]
    waiting = [f"s{i}" for i in range(count)]
    running: dict[str, list[int]] = {}
    left: dict[str, int] = {}
    sent = []
    while waiting or running:
        while waiting and len(running) < live:
            name = waiting.pop()
            running[name] = [*shared, *(rng.randrange(50_000) for _ in range(rng.randint(50, 1500)))]
            left[name] = rng.randint(2, 12)
        name = rng.choice(list(running))
        sent.append((name, list(running[name])))
        running[name] += [rng.randrange(50_000) for _ in range(rng.randint(20, 900))]
        left[name] -= 1
        if not left[name]:
            del running[name]
    return sent


def run_of(sent: list[tuple[str, list[int]]], hits: list[int | None], path: Path) -> Run:
    """The run that would have been recorded."""
    path.mkdir(exist_ok=True)
    chains = BlockChains(SIZE, "run")
    records, rows = [], []
    turns: dict[str, int] = {}
    for at, ((name, ids), hit) in enumerate(zip(sent, hits, strict=True)):
        turn = turns[name] = turns.get(name, -1) + 1
        clock = Clock(scheduled=at * 1000, due=at * 1000, sent=at * 1000, first_token=at * 1000 + 5, end=at * 1000 + 9)
        usage = Usage(input_tokens=len(ids), cached_tokens=hit, output_tokens=1)
        key = f"{name}/{turn}"
        records.append(Record(request_id=key, session_id=name, root_id=name, turn=turn, clock=clock, usage=usage))
        rows.append(chains.row(key, name, 0, "", array("I", ids), None))
    (path / BLOCKS_FILE).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    info = RunInfo(kvbench_version="0", run_id="r", name="t", status="done", started_at="")
    return Run(info=info, records=records, events=[], warnings=[], path=path)
