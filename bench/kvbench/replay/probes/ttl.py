"""How long a cached prompt lives: each prompt is asked for once, at an age of its own.

Asking refreshes what it finds, so no prompt is asked twice. Prompts of all ages are sent at once and asked for when
they have reached them; each further pass has its ages between the oldest that was found and the youngest that was not.
"""

from __future__ import annotations

import math

import msgspec

from kvbench.errors import UsageError
from kvbench.model import Record
from kvbench.replay.probes.prober import Prober
from kvbench.replay.probes.taking import Takes

FIRST_AGES = 12
AGES = 8
DONE = 0.01
APART = 1.3
"""How much wider than the ages that chance decided at are those that are tried again."""
SLOWER = 3
"""Than the first request, the others at most are; what takes longer than that is stopped."""
BELOW, ABOVE = (0.7, 0.85, 0.95, 0.99), (1.01, 1.05, 1.15, 1.4)
"""Of the bracket's ends: one prompt lost by chance would have drawn the bracket to its age, and these show it."""


class TtlDesign(msgspec.Struct, frozen=True, kw_only=True):
    """max_age_s: the oldest prompt that is asked for. passes: each narrows the bracket about eightfold."""

    max_age_s: float
    min_age_s: float = 1.0
    passes: int = 3
    input_tokens: int = 1_201

    def check(self) -> TtlDesign:
        """UsageError for ages that are none."""
        if not 0 < self.min_age_s < self.max_age_s < math.inf:
            raise UsageError(f"--min-age {self.min_age_s:g} and --max-age {self.max_age_s:g}: 0 < min < max are needed")
        if self.passes < 1 or self.input_tokens < 2:
            raise UsageError("--passes and --input-tokens: at least 1 pass, and prompts of 2 tokens")
        return self


class TtlProbe:
    def __init__(self, design: TtlDesign) -> None:
        self._design = design

    async def probe(self, prober: Prober) -> None:
        design = self._design
        length = min(design.input_tokens, prober.most_input_tokens)
        await prober.ask("first/0", "prime", length)
        most = 1 + 2 * (FIRST_AGES + AGES * (design.passes - 1) + len(BELOW) + len(ABOVE))
        waiting_s = design.max_age_s * (design.passes + ABOVE[-1])
        hours = (waiting_s + SLOWER * most * prober.elapsed_s) / 3600
        if not prober.agreed(
            Takes(
                requests=most,
                input_tokens=most * length,
                longest_tokens=length,
                output_tokens=most,
                hours=hours,
                note=f"{waiting_s:,.3g} s of it waiting",
            )
        ):
            return
        ratio = design.max_age_s / design.min_age_s
        ages = [design.min_age_s * ratio ** (i / (FIRST_AGES - 1)) for i in range(FIRST_AGES)]
        alive, dead = 0.0, math.inf
        for number in range(design.passes):
            prober.plan.say(f"pass {number + 1}: ages {ages[0]:.3g} to {ages[-1]:.3g} s")
            found = await self._pass(prober, number, ages)
            alive = max([alive, *(age for age, hit in found if hit)])
            dead = min([dead, *(age for age, hit in found if not hit)])
            if alive == 0.0 or dead == math.inf:
                return
            if dead <= alive:  # chance decides: how often, and whether at any age, tell ages of all kinds
                ages = _spread(dead / APART, min(alive * APART, design.max_age_s), AGES // 2)
                ages += _spread(design.min_age_s, design.max_age_s, AGES // 2)
                continue
            if dead - alive <= DONE * dead:
                break
            ages = [alive + (dead - alive) * (i + 1) / (AGES + 1) for i in range(AGES)]

        if alive < dead:
            prober.plan.say("check: ages on both sides of what was found")
            await self._pass(prober, design.passes, [*(alive * f for f in BELOW), *(dead * f for f in ABOVE)])

    async def _pass(self, prober: Prober, number: int, ages: list[float]) -> list[tuple[float, bool]]:
        sent: list[tuple[float, str]] = []
        length = min(self._design.input_tokens, prober.most_input_tokens)
        for i, age in enumerate(ages):
            name = f"age/{number}-{i}"
            await prober.ask(name, "prime", length)
            sent.append((prober.elapsed_s + age, name))
        found = []
        for due_s, name in sorted(sent):
            await prober.sleep_until(due_s)
            record = await prober.ask(name, "read", length)
            # what every prompt begins with, a chat template, may be there without it
            hit = 2 * (record.usage.cached_tokens or 0) >= (record.usage.input_tokens or length)
            found.append((_age_s(prober, name, record), hit))
        return found


def _spread(low: float, high: float, count: int) -> list[float]:
    """Ages evenly apart in their logarithms, none at the ends."""
    return [low * (high / low) ** ((i + 0.5) / count) for i in range(count)]


def _age_s(prober: Prober, name: str, record: Record) -> float:
    primed = next(r for r in prober.records if r.request_id == f"{name}.prime")
    assert record.clock.sent is not None
    assert primed.clock.end is not None
    return (record.clock.sent - primed.clock.end) / 1e9
