"""Expected prefix-cache hits on token ids, as an interval [floor, ceiling] per request, under a named rule.

| rule | what a prompt hits | known from |
|---|---|---|
| `block` | whole blocks of the longest stored prefix; the last token is always computed | vLLM, measured |
| `block-replay` | the same, but a hit no longer than the replayed window is not taken | vLLM's source (0.32.0) |
| `units` | the longest stored unit that the prompt begins with, whole | DeepSeek's documentation |
| `steps` | 1,024 tokens at least, then steps of 128 | OpenAI's documentation |
| `breakpoints` | what was cached up to a mark, found within 20 blocks of one | Anthropic's documentation |
| `none` | nothing is expected | |

What is *surely* stored when a request is sent makes the floor, what is *possibly* stored before its first token the
ceiling. They differ where requests overlap, where generated tokens of unknown ids may be repeated, where eviction
depends on an order that cannot be known, and where a rule is not fully published.

Used by runs and by anything else that knows requests, their times and their ids: nothing here knows of endpoints.
"""

from __future__ import annotations

from collections.abc import Callable

from kvbench.model import Expectation
from kvbench.traces.prefix.blocks import BlockHits, chain_hashes
from kvbench.traces.prefix.breakpoints import BreakpointHits, Marked
from kvbench.traces.prefix.lru import LruPool
from kvbench.traces.prefix.rules import BlockRule, BreakpointsRule, Rule, Sent, StepsRule, UnitsRule
from kvbench.traces.prefix.units import UnitHits

__all__ = [
    "BlockRule",
    "BreakpointHits",
    "BreakpointsRule",
    "HitModel",
    "LruPool",
    "Marked",
    "Rule",
    "Sent",
    "StepsRule",
    "UnitsRule",
    "chain_hashes",
]


class HitModel:
    """Feeds on requests in order of sending and gives each one's expectation to `emit(key, Expectation)`.

    Expectations come in order of sending too, each as soon as every request that could still matter to it (sent
    before its first token) is known, so memory holds what was ever stored and the requests in flight, not the run.
    """

    def __init__(self, rule: Rule, emit: Callable[[str, Expectation], None]) -> None:
        self.rule = rule
        self._hits = UnitHits(rule, emit) if isinstance(rule, UnitsRule) else BlockHits(rule, emit)

    def add(self, sent: Sent, resent_bytes: int = 0) -> None:
        """Register a request. `resent_bytes` bounds how many tokens of the session's previous output this prompt can
        repeat right after the previous prompt: the bytes the re-sent text has in common with that output. It is not
        looked at where the previous request has its output's ids. ValueError: sent before the one added last."""
        self._hits.add(sent, resent_bytes)

    def finish(self) -> None:
        """Emit what is still pending: no further request will come."""
        self._hits.finish()
