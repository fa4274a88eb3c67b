"""TTFT over a grid of uncached and cached tokens, in random order, one request at a time."""

from __future__ import annotations

import math
import random

import msgspec

from kvbench.errors import UsageError
from kvbench.replay.probes.prober import Prober
from kvbench.replay.probes.taking import Takes

COLD_SHARE = 0.25
LEAST_TOKENS = 128
RESTORED = "restored"
"""Event: what the server's counters say came from below HBM for one request (analysis/fit/latency_rows.py)."""


class LatencyDesign(msgspec.Struct, frozen=True, kw_only=True):
    """cells of (uncached, cached) tokens, each log-uniform up to max_input_tokens together; a quarter have nothing
    cached. repeats: of each cell, with other uncached tokens. output_tokens: of each measured answer.

    tier_after_tokens: for each tier below HBM, so many tokens sent in between push a prompt down to it; each cell with
    a hit is then also read from there.
    """

    cells: int = 60
    repeats: int = 5
    max_input_tokens: int = 32_768
    output_tokens: int = 1
    tier_after_tokens: tuple[int, ...] = ()
    seed: int = 0

    def check(self) -> LatencyDesign:
        """UsageError for what is too small to fit anything to."""
        if self.cells < 8 or self.repeats < 1 or self.max_input_tokens < 8 * LEAST_TOKENS:
            raise UsageError(
                f"--cells {self.cells}, --repeats {self.repeats}, --max-input-tokens {self.max_input_tokens}: at least "
                f"8 cells, 1 repeat and {8 * LEAST_TOKENS} tokens are needed"
            )
        if self.output_tokens < 1:
            raise UsageError(f"--output-tokens {self.output_tokens}: at least 1 is needed")
        if list(self.tier_after_tokens) != sorted(set(self.tier_after_tokens)):
            raise UsageError(
                f"--tier-after-tokens {','.join(map(str, self.tier_after_tokens))}: each takes more than the one before"
            )
        return self


class LatencyProbe:
    """Series `cell<i>`: `base` is the cached part, sent before each read so that it is surely there. Series
    `tier<n>cell<i>`: the same, read after enough has been sent to push it down to tier n; `flush<n>`: what pushed."""

    def __init__(self, design: LatencyDesign) -> None:
        self._design = design

    async def probe(self, prober: Prober) -> None:
        design = self._design
        rng = random.Random(design.seed)
        most = min(design.max_input_tokens, prober.most_input_tokens - design.output_tokens)
        cells = _cells(rng, design.cells, most)
        order = [(i, repeat) for i in range(len(cells)) for repeat in range(design.repeats)]
        rng.shuffle(order)
        if not prober.agreed(self._takes(prober, cells, most)):
            return
        await prober.ask("warm/0", "prime", LEAST_TOKENS)
        await prober.ask("warm/1", "prime", most)
        for done, (i, repeat) in enumerate(order):
            if cells[i][1]:
                await prober.ask(f"cell{i}/base", "again", cells[i][1])
            await self._read(prober, f"cell{i}", repeat, cells[i])
            if (done + 1) % 50 == 0:
                prober.plan.say(f"{done + 1} of {len(order)} measured")
        hot = [i for i, (_, cached) in enumerate(cells) if cached]
        for tier, tokens in enumerate(design.tier_after_tokens, start=1):
            for repeat in range(design.repeats):
                await self._from_tier(prober, f"tier{tier}", repeat, tokens, [(i, cells[i]) for i in hot], most)
                rng.shuffle(hot)
                prober.plan.say(f"tier {tier}: {repeat + 1} of {design.repeats} times measured")

    async def _from_tier(
        self, prober: Prober, tier: str, repeat: int, tokens: int, cells: list[tuple[int, tuple[int, int]]], most: int
    ) -> None:
        for i, (_, cached) in cells:
            await prober.ask(f"{tier}cell{i}/base", "again", cached)
        left, number = tokens, 0
        while left > 0:
            size = min(most, max(left, LEAST_TOKENS))
            await prober.ask(f"flush{tier}x{repeat}/{number}", "prime", size)
            left, number = left - size, number + 1
        for i, cell in cells:
            before = await prober.restored_tokens()
            request_id = await self._read(prober, f"{tier}cell{i}", repeat, cell)
            after = await prober.restored_tokens()
            if before is not None and after is not None:
                prober.event(RESTORED, request_id=request_id, tokens=round(after - before))

    async def _read(self, prober: Prober, series: str, repeat: int, cell: tuple[int, int]) -> str:
        uncached, cached = cell
        record = await prober.ask(
            f"{series}/{repeat}",
            "read",
            uncached + cached,
            output_tokens=self._design.output_tokens,
            extends=f"{series}/base",
            kept=cached,
        )
        return record.request_id

    def _takes(self, prober: Prober, cells: list[tuple[int, int]], most: int) -> Takes:
        design = self._design
        hot = [cell for cell in cells if cell[1]]
        reads = design.repeats * len(cells)
        requests = 2 + reads + design.repeats * len(hot)
        tokens = LEAST_TOKENS + most + design.repeats * (sum(map(sum, cells)) + sum(c for _, c in hot))
        uncached = design.repeats * sum(u for u, _ in cells) + sum(c for _, c in hot)
        for flush in design.tier_after_tokens:
            reads += design.repeats * len(hot)
            requests += design.repeats * (2 * len(hot) + -(-flush // most))
            tokens += design.repeats * (sum(u + 2 * c for u, c in hot) + flush + LEAST_TOKENS)
            uncached += design.repeats * (sum(u for u, _ in hot) + flush) + sum(c for _, c in hot)
        return Takes(
            requests=requests,
            input_tokens=tokens,
            longest_tokens=most,
            output_tokens=requests - reads + reads * design.output_tokens,
            hours=prober.plan.budget.hours,
            note=f"{uncached:,} of the tokens surely uncached",
        )


def _cells(rng: random.Random, count: int, most: int) -> list[tuple[int, int]]:
    """(uncached, cached): logarithms evenly spread, in an order of chance; every fourth is a control with nothing
    cached."""
    spread = []
    for _ in range(2):
        places = [(i + rng.random()) / count for i in range(count)]
        rng.shuffle(places)
        spread.append(places)

    def upto(place: float, limit: int) -> int:
        return round(LEAST_TOKENS * math.exp(math.log(limit / LEAST_TOKENS) * place))

    found = []
    for number, (at_uncached, at_cached) in enumerate(zip(*spread, strict=True)):
        uncached = upto(at_uncached, most)
        if number % round(1 / COLD_SHARE) == 0:
            found.append((uncached, 0))
            continue
        uncached = min(uncached, most - LEAST_TOKENS)
        found.append((uncached, upto(at_cached, most - uncached)))
    return found
