"""Whether an answer from the cache is the one that was computed: the same prompts cold and cached, greedy."""

from __future__ import annotations

import msgspec

from kvbench.errors import UsageError
from kvbench.replay.probes.prober import Prober
from kvbench.replay.probes.taking import Takes


class ConsistencyDesign(msgspec.Struct, frozen=True, kw_only=True):
    prompts: int = 20
    input_tokens: int = 1_001
    output_tokens: int = 32

    def check(self) -> ConsistencyDesign:
        """UsageError for less than one of anything."""
        if min(self.prompts, self.input_tokens, self.output_tokens) < 1:
            raise UsageError("--prompts, --input-tokens and --output-tokens: at least 1 of each")
        return self


class ConsistencyProbe:
    """A trial shows whether log probabilities are given. Then each prompt three times: cold, from the cache, and cold
    once more where the endpoint has a salt for it (without one: from the cache once more), which shows how far answers
    differ by themselves."""

    def __init__(self, design: ConsistencyDesign) -> None:
        self._design = design

    async def probe(self, prober: Prober) -> None:
        design = self._design
        salted = prober.endpoint.salt_field
        length = min(design.input_tokens, prober.most_input_tokens - design.output_tokens)
        requests = 3 * design.prompts + 1
        if not prober.agreed(
            Takes(
                requests=requests,
                input_tokens=requests * length,
                longest_tokens=length,
                output_tokens=requests * design.output_tokens,
                hours=prober.plan.budget.hours,
            )
        ):
            return
        greedy = {"temperature": 0.0}
        trial = await prober.ask("logprobs/0", "trial", length, extra=greedy, logprobs=True, may_be_refused=True)
        given = trial.output_logprobs is not None
        for number in range(design.prompts):
            for role in ("cold", "cached", "control"):
                salt = {"cache_salt": f"consistency-{role == 'control'}"} if salted else {}
                await prober.ask(
                    f"prompt/{number}",
                    role,
                    length,
                    output_tokens=design.output_tokens,
                    extra={**greedy, **salt},
                    logprobs=given,
                )
