"""TTFT over a grid of uncached and cached tokens, in random order, one request at a time."""

from __future__ import annotations

import math
import random

import msgspec

from kvbench.errors import UsageError
from kvbench.replay.probes.probe import Prober
from kvbench.replay.probes.taking import Takes

COLD_SHARE = 0.25
LEAST_TOKENS = 128


class LatencyDesign(msgspec.Struct, frozen=True, kw_only=True):
    """cells of (uncached, cached) tokens, each log-uniform up to max_input_tokens together; a quarter have nothing
    cached. repeats: of each cell, with other uncached tokens."""

    cells: int = 60
    repeats: int = 5
    max_input_tokens: int = 32_768
    seed: int = 0

    def check(self) -> LatencyDesign:
        """UsageError for what is too small to fit anything to."""
        if self.cells < 8 or self.repeats < 1 or self.max_input_tokens < 8 * LEAST_TOKENS:
            raise UsageError(
                f"--cells {self.cells}, --repeats {self.repeats}, --max-input-tokens {self.max_input_tokens}: at least "
                f"8 cells, 1 repeat and {8 * LEAST_TOKENS} tokens are needed"
            )
        return self


class LatencyProbe:
    """Series `cell<i>`: `base` is the cached part, sent before each read so that it is surely there."""

    def __init__(self, design: LatencyDesign) -> None:
        self._design = design

    async def probe(self, prober: Prober) -> None:
        rng = random.Random(self._design.seed)
        most = min(self._design.max_input_tokens, prober.most_input_tokens)
        cells = [self._cell(rng, i, most) for i in range(self._design.cells)]
        order = [(i, repeat) for i in range(len(cells)) for repeat in range(self._design.repeats)]
        rng.shuffle(order)
        hot = sum(1 for i, _ in order if cells[i][1])
        uncached_tokens, cached_tokens = (sum(cells[i][part] for i, _ in order) for part in (0, 1))
        requests = 2 + len(order) + hot
        if not prober.agreed(
            Takes(
                requests=requests,
                input_tokens=LEAST_TOKENS + most + uncached_tokens + 2 * cached_tokens,
                longest_tokens=most,
                output_tokens=requests,
                hours=prober.plan.budget.hours,
                note=f"{uncached_tokens:,} of the tokens surely uncached",
            )
        ):
            return
        await prober.ask("warm/0", "prime", LEAST_TOKENS)
        await prober.ask("warm/1", "prime", most)
        for done, (i, repeat) in enumerate(order):
            uncached, cached = cells[i]
            if cached:
                await prober.ask(f"cell{i}/base", "again", cached)
            await prober.ask(f"cell{i}/{repeat}", "read", uncached + cached, extends=f"cell{i}/base", kept=cached)
            if (done + 1) % 50 == 0:
                prober.plan.say(f"{done + 1} of {len(order)} measured")

    def _cell(self, rng: random.Random, number: int, most: int) -> tuple[int, int]:
        """A control pairs every fourth cell: nothing cached."""
        uncached = round(math.exp(rng.uniform(math.log(LEAST_TOKENS), math.log(most))))
        if number % round(1 / COLD_SHARE) == 0:
            return uncached, 0
        uncached = min(uncached, most - LEAST_TOKENS)
        return uncached, round(math.exp(rng.uniform(math.log(LEAST_TOKENS), math.log(most - uncached))))
