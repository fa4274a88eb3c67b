"""Which hit rule holds: prompts that share a known number of leading tokens with one sent before."""

from __future__ import annotations

from kvbench.replay.probes.prober import Prober
from kvbench.replay.probes.taking import Takes

BASE_TOKENS = 2_305
SHARED = (1, 16, 17, 33, 64, 65, 100, 128, 129, 150, 200, 256, 257, 300, 400, 513, 700, 1024, 1025, 1153, 1500, 2049)
AGAIN = (17, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1024, 1025, 1153)
TAIL_TOKENS = 40
SETTLE_S = 15.0
"""DeepSeek documents that what was sent can be hit some seconds later."""


class GranularityProbe:
    """Series `shared`: one prompt, then others that begin with so many of its tokens. Series `same`: prompts sent
    twice, whole numbers of blocks among them, which show whether the last token is computed again."""

    async def probe(self, prober: Prober) -> None:
        longest = min(prober.most_input_tokens, BASE_TOKENS)
        shared = [n for n in SHARED if n + TAIL_TOKENS <= longest]
        again = [n for n in AGAIN if n <= longest]
        requests = 2 + len(shared) + 2 * len(again)
        tokens = 2 * longest + sum(n + TAIL_TOKENS for n in shared) + 2 * sum(again)
        if not prober.agreed(
            Takes(
                requests=requests,
                input_tokens=tokens,
                longest_tokens=longest,
                output_tokens=requests,
                hours=prober.plan.budget.hours,
                note="about a minute",
            )
        ):
            return
        await prober.ask("base/0", "prime", longest)
        for length in again:
            await prober.ask(f"same{length}/0", "prime", length)
        if not (await prober.ask("base/0", "again", longest)).usage.cached_tokens:
            prober.plan.say(f"nothing is cached yet: waiting {SETTLE_S:g} s")
            await prober.sleep_until(prober.elapsed_s + SETTLE_S)
        # these first: what is sent for the others may push them out of a small cache
        for length in again:
            await prober.ask(f"same{length}/0", "again", length)
        for length in shared:
            await prober.ask(f"shared{length}/0", "read", length + TAIL_TOKENS, extends="base/0", kept=length)
