"""How full the server says its cache is while requests of known lengths hold it: several at a time, kept generating.

Prompts share nothing. A set of requests of one length begins at once and generates long enough for all of them to do so
together; meanwhile the server's gauges are read over and over. One, two and four requests of three lengths, in random
order: what a token takes and what a request takes besides then show apart. Lengths differ a little from request to
request, so that last blocks are filled to any degree.
"""

from __future__ import annotations

import asyncio
import math
import random

import msgspec

from kvbench.errors import UsageError
from kvbench.model import Record
from kvbench.replay.probes.prober import Prober, Stopped
from kvbench.replay.probes.taking import Takes

REQUESTS = (1, 2, 4)
SCALES = (1, 2, 4)
FIRST_TOKENS = 1_001
FIRST_OUTPUT = 48
FULLEST = 0.6
"""Of the pool: far from where requests wait or are preempted."""
LONGEST_TOKENS = 16_384
HOLD_S = 0.8
MOST_OUTPUT = 1_024
INTERVAL_S = 0.1
VARIED = 0.1
DEFAULT_SEED = 0


class OccupancyDesign(msgspec.Struct, frozen=True, kw_only=True):
    """kv_memory_bytes: what the endpoint has for its KV cache, if known. input_tokens: lengths of the prompts; none:
    chosen, once it is known about how much is held. repeats: of each number of requests and length."""

    kv_memory_bytes: int | None = None
    input_tokens: tuple[int, ...] = ()
    repeats: int = 2

    def check(self) -> OccupancyDesign:
        """UsageError for what cannot tell anything."""
        if self.repeats < 1:
            raise UsageError(f"--repeats {self.repeats}: at least 1")
        if len(set(self.input_tokens)) == 1:
            raise UsageError(
                f"--input-tokens {self.input_tokens[0]}: one length cannot tell what a token takes from what a request "
                "takes",
                hint="at least two lengths, a factor of two apart",
            )
        return self


class OccupancyProbe:
    """The experiment; `probe` is called once."""

    def __init__(self, design: OccupancyDesign) -> None:
        self._design = design

    async def probe(self, prober: Prober) -> None:
        if not await prober.gauges():
            return
        length = min(FIRST_TOKENS, prober.most_input_tokens // 2)
        sampling = asyncio.ensure_future(self._sample(prober))
        try:
            first = await prober.ask("first/0", "read", length, output_tokens=FIRST_OUTPUT)
            lengths = self._lengths(prober, length)
            cells = [(n, tokens) for n in REQUESTS for tokens in lengths] * self._design.repeats
            random.Random(DEFAULT_SEED).shuffle(cells)
            plan = [(n, tokens, self._output_tokens(first, prober, n, tokens)) for n, tokens in cells]
            if not self._agreed(prober, plan):
                return
            for number, (n, tokens, output) in enumerate(plan):
                await self._hold(prober, number, n, tokens, output)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def _hold(self, prober: Prober, number: int, n: int, tokens: int, output: int) -> None:
        rng = random.Random(f"{DEFAULT_SEED} {number}")
        most = prober.most_input_tokens - output
        lengths = [min(most, round(tokens * (1 + rng.uniform(-VARIED, VARIED)))) for _ in range(n)]
        asked = [
            prober.ask(f"cell{number}/{i}", "read", length, output_tokens=output) for i, length in enumerate(lengths)
        ]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        await asyncio.sleep(2 * INTERVAL_S)

    async def _sample(self, prober: Prober) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not await prober.gauges():
                return

    def _lengths(self, prober: Prober, first: int) -> list[int]:
        if self._design.input_tokens:
            longest = max(self._design.input_tokens)
            if longest > prober.most_input_tokens // 2:
                raise Stopped(
                    f"prompts of {longest:,} tokens leave no room for answers: the endpoint takes "
                    f"{prober.most_input_tokens:,} tokens in all"
                )
            return sorted(set(self._design.input_tokens))
        # what the first request took may be mostly what a request takes: the pool then holds more tokens than this says
        held = max(prober.usages, default=0.0)
        room = FULLEST * (first + FIRST_OUTPUT) / held if held > 0 else LONGEST_TOKENS * max(REQUESTS)
        longest = min(LONGEST_TOKENS, int(room / max(REQUESTS)), prober.most_input_tokens // 2)
        return [max(16, longest * scale // max(SCALES)) for scale in SCALES]

    def _output_tokens(self, first: Record, prober: Prober, n: int, tokens: int) -> int:
        """So many that the first of n requests still generates HOLD_S after the last has begun to."""
        clock = first.clock
        if clock.first_token is None or clock.last_token is None or clock.sent is None:
            return FIRST_OUTPUT
        made = max(1, (first.usage.output_tokens or FIRST_OUTPUT) - 1)
        token_s = max(1e-5, (clock.last_token - clock.first_token) / 1e9 / made)
        read_s = (clock.first_token - clock.sent) / 1e9 / (first.usage.input_tokens or tokens)
        wanted = round((HOLD_S + n * tokens * read_s) / token_s)
        return max(FIRST_OUTPUT, min(MOST_OUTPUT, wanted, prober.most_input_tokens // 4))

    def _agreed(self, prober: Prober, plan: list[tuple[int, int, int]]) -> bool:
        """The first request, which was sent before, counts too."""
        requests = prober.requests + sum(n for n, _, _ in plan)
        prompt, output = (sum(n * cell[i] for n, *cell in plan) for i in (0, 1))
        return prober.agreed(
            Takes(
                requests=requests,
                input_tokens=prober.tokens + math.ceil(prompt * (1 + VARIED)),
                longest_tokens=math.ceil(max(length for _, length, _ in plan) * (1 + VARIED)),
                output_tokens=FIRST_OUTPUT + output,
                hours=prober.plan.budget.hours,
                note=f"up to {max(REQUESTS)} requests at a time; the server's metrics are read some "
                f"{1 / INTERVAL_S:.0f} times a second",
            )
        )
