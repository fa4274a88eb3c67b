"""Capacity probes of caches whose size is known, without a network: the experiment itself, answered from memory."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvbench.model import Clock, Record, RunInfo, Usage
from kvbench.replay.probes.capacity import CapacityDesign, CapacityProbe
from kvbench.replay.probes.prober import Stopped
from kvbench.replay.probes.ttl import TtlDesign, TtlProbe
from kvbench.runs.reader import Run

Serve = Callable[[str, int], int | None]
"""A prompt's name and length to what it hits."""


class Blocks:
    """LRU of blocks, tails first; a partly full block keeps no room."""

    tails_first = True

    def __init__(self, blocks: int, size: int) -> None:
        self.capacity, self.size = blocks, size
        self.held: OrderedDict[tuple[str, int], None] = OrderedDict()

    def serve(self, name: str, tokens: int, extends: str | None = None, kept: int = 0) -> int:
        blocks = [(extends if extends and (n + 1) * self.size <= kept else name, n) for n in range(tokens // self.size)]
        hit = 0
        while hit < (tokens - 1) // self.size and blocks[hit] in self.held:
            hit += 1
        for block in reversed(blocks) if self.tails_first else blocks:
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.capacity - (tokens % self.size > 0):
            self.held.popitem(last=False)
        return hit * self.size


class HeadsFirst(Blocks):
    """The same, but of a prompt's blocks the first goes first."""

    tails_first = False


class Shared(Blocks):
    """One that others use too: of all blocks written they write a steady share."""

    def __init__(self, blocks: int, size: int, share: float) -> None:
        super().__init__(blocks, size)
        self._each, self._due, self._written = share / (1 - share), 0.0, 0

    def serve(self, name: str, tokens: int, extends: str | None = None, kept: int = 0) -> int:
        hit = super().serve(name, tokens, extends, kept)
        self._due += self._each * (tokens - hit) / self.size
        while self._due >= 1:
            self._due -= 1
            self._written += 1
            self.held["others", self._written] = None
        while len(self.held) > self.capacity:
            self.held.popitem(last=False)
        return hit


class Sessions:
    """LRU of whole sessions, each of so many bytes; a hit is all or nothing."""

    def __init__(self, memory: float, per_token: float, per_session: float, size: int) -> None:
        self.memory, self.per_token, self.per_session, self.size = memory, per_token, per_session, size
        self.held: OrderedDict[tuple[str, int], None] = OrderedDict()

    def serve(self, name: str, tokens: int) -> int:
        hit = (name, tokens) in self.held
        self.held[name, tokens] = None
        self.held.move_to_end((name, tokens))
        while sum(self.per_session + self.per_token * n for _, n in self.held) > self.memory:
            self.held.popitem(last=False)
        return (tokens - 1) // self.size * self.size if hit else 0


class SharedSessions(Sessions):
    """The same under others' sessions of 32 tokens, which make up a steady share of all tokens written."""

    def __init__(self, memory: float, per_token: float, size: int, share: float) -> None:
        super().__init__(memory, per_token, 0.0, size)
        self._each, self._due, self._written = share / (1 - share), 0.0, 0

    def serve(self, name: str, tokens: int) -> int:
        hit = super().serve(name, tokens)
        self._due += self._each * (tokens - hit) / 32
        while self._due >= 1:
            self._due -= 1
            self._written += 1
            super().serve(f"others{self._written}", 32)
        return hit


class Lives:
    """Whole prompts, each for so many seconds after it was sent last, and any number of them."""

    def __init__(self, ttl_s: float, size: int) -> None:
        self.ttl_s, self.size, self.now_s = ttl_s, size, 0.0
        self.sent_s: dict[str, float] = {}

    def serve(self, name: str, tokens: int) -> int:
        hit = self.now_s - self.sent_s.get(name, -1e9) <= self.ttl_s
        self.sent_s[name] = self.now_s
        return (tokens - 1) // self.size * self.size if hit else 0


class Lapsing(Lives):
    """The same, and this share of hits is lost besides."""

    def __init__(self, ttl_s: float, size: int, share: float, seed: int) -> None:
        super().__init__(ttl_s, size)
        self.share, self.rng = share, random.Random(seed + 1_000)

    def serve(self, name: str, tokens: int) -> int:
        hit = super().serve(name, tokens)
        return 0 if self.rng.random() < self.share else hit


class Mixed(Lives):
    """Behind each of two doors one of these, and every request takes one or the other by chance."""

    def __init__(self, ttl_s: float, size: int, seed: int) -> None:
        super().__init__(ttl_s, size)
        self.doors, self.rng = [Lives(ttl_s, size), Lives(ttl_s, size)], random.Random(seed)

    def serve(self, name: str, tokens: int) -> int:
        door = self.rng.choice(self.doors)
        door.now_s = self.now_s
        return door.serve(name, tokens)


class Fifo(Blocks):
    """What was written first goes first, asked for since or not."""

    def serve(self, name: str, tokens: int, extends: str | None = None, kept: int = 0) -> int:
        before = list(self.held)
        hit = super().serve(name, tokens, extends, kept)
        places = {block: n for n, block in enumerate(before)}
        self.held = OrderedDict.fromkeys(sorted(self.held, key=lambda block: places.get(block, len(before))))
        return hit


class Windowed:
    """One pool of blocks under a layer that keeps all tokens and `layers` that keep a window, as vLLM 0.32 uses it: a
    prefill takes the blocks of its whole prompt in every layer, then gives back those outside of the window; least
    recently used sessions go first, and whole (a hit needs all of its blocks)."""

    def __init__(self, blocks: int, size: int, layers: int, window_blocks: int) -> None:
        self.blocks, self.size, self.layers, self.window = blocks, size, layers, window_blocks
        self.held: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def serve(self, name: str, tokens: int, extends: str | None = None, kept: int = 0) -> int:
        whole = (tokens - 1) // self.size
        if name in self.held:
            self.held.move_to_end(name)
            self._make_room(1 + self.layers)
            return whole * self.size
        hit = 0
        if extends in self.held and self.held[extends][0] <= self.window:
            hit = kept // self.size * self.size
        # blocks of the prompt in every layer, its last ones partly full, and at the end fewer
        self._make_room((whole + 1) * (1 + self.layers))
        self.held[name] = (whole, whole + self.layers * min(self.window, whole))
        return hit

    def _make_room(self, blocks: int) -> None:
        while sum(size for _, size in self.held.values()) + blocks > self.blocks:
            self.held.popitem(last=False)


class _Prober:
    def __init__(self, serve: Serve, budget: int, silent: bool) -> None:
        self.records: list[Record] = []
        self.events: list[dict[str, Any]] = []
        self.most_input_tokens = 65_536
        self.plan = SimpleNamespace(
            say=lambda text: None,
            budget=SimpleNamespace(requests=budget, hours=1.0, tokens=None),
        )
        self._serve = serve
        self._silent = silent
        self.elapsed_s = 0.0

    def agreed(self, takes: object) -> bool:
        return True

    async def sleep_until(self, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s

    def room(self, requests: int, tokens: int) -> bool:
        return len(self.records) + requests <= self.plan.budget.requests

    def event(self, kind: str, **data: Any) -> None:
        self.events.append({"kind": kind, "at_ns": 0, **data})

    async def ask(self, name: str, role: str, tokens: int, *, extends: str | None = None, kept: int = 0) -> Record:
        if len(self.records) >= self.plan.budget.requests:
            raise Stopped("the budget is spent")
        at = round(self.elapsed_s * 1e9)
        if isinstance(owner := getattr(self._serve, "__self__", None), Lives):
            owner.now_s = self.elapsed_s
        found = self._found(name, tokens, extends, kept)
        usage = Usage(input_tokens=tokens, cached_tokens=None if self._silent else found, output_tokens=1)
        # 10 ns, and 1 for each uncached token
        took = 10 + tokens - (found or 0) if self._silent else 100
        # 1 ms for each token computed, by which prompts age
        self.elapsed_s += (tokens - (found or 0)) / 1000
        clock = Clock(scheduled=at, due=at, sent=at, first_token=at + took, end=at + took)
        name_of = f"{name}.{role}{at if role == 'again' else ''}"
        self.records.append(Record(request_id=name_of, session_id=name, turn=0, clock=clock, usage=usage))
        return self.records[-1]

    def _found(self, name: str, tokens: int, extends: str | None, kept: int) -> int:
        """Other caches than these are of whole sessions: half of one is not there."""
        if isinstance(getattr(self._serve, "__self__", None), Windowed | Blocks):
            return self._serve(name, tokens, extends, kept)
        return self._serve(name, tokens)


def probe(
    serve: Serve, *, memory: int | None = None, lengths: tuple[int, ...] = (), budget: int = 250, silent: bool = False
) -> Run:
    """The run of a whole capacity probe. silent: no cached tokens are reported, and times tell."""
    prober = _Prober(serve, budget, silent)
    design = CapacityDesign(kv_memory_bytes=memory, input_tokens=lengths)
    return _run(prober, CapacityProbe(design).probe, {"probe": "capacity", "kv_memory_bytes": memory})


def ttl_probe(serve: Serve, design: TtlDesign) -> Run:
    """The run of a whole ttl probe."""
    return _run(_Prober(serve, 250, silent=False), TtlProbe(design).probe, {"probe": "ttl"})


def _run(prober: _Prober, experiment: Callable[[Any], Coroutine[Any, Any, None]], settings: dict[str, Any]) -> Run:
    try:
        asyncio.run(experiment(prober))
    except Stopped as stop:
        prober.event("stopped", reason=str(stop))
    info = RunInfo(
        kvbench_version="0",
        run_id="r",
        name="probe",
        status="done",
        started_at="",
        settings=settings,
    )
    return Run(info=info, records=prober.records, events=prober.events, warnings=[], path=Path("r"))
