"""A request inside the engine, and the tokens that come out of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbench.sim.cache import BlockHasher
from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import TOKEN_BYTES


@dataclass(eq=False)
class Job:
    """Times are ns of the caller's clock, None until they happened; `hits` are tokens by where they were, what is
    replayed among them."""

    prompt: bytes
    output: OutputText
    salt: str | None
    arrival_ns: int
    hasher: BlockHasher
    chance: random.Random
    ready_ns: int = 0
    replica: int = 0
    scheduled_ns: int | None = None
    restored_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    cached_tokens: int = 0
    replayed_tokens: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    evicted_blocks: int = 0
    sampled: int = 0
    done: bool = False
    # Decided when it arrives, so that no other request shifts it.
    noise: float = 1.0
    loses_hit: bool = False
    lapsed: bool = False
    differs_when_cached: bool = False
    # Of the prompt, in pieces of the granularity: what it has in common with an earlier one (prefix units only).
    common: int = 0
    # Since the last admission: tokens in the cache, those that were there already, chunk of the running step.
    computed: int = 0
    found: int = 0
    chunk: int = 0
    prefilling: bool = True
    published: int = 0
    blocks: list[int] = field(default_factory=list)
    state_blocks: list[int] = field(default_factory=list)
    restoring: list[tuple[int, int]] = field(default_factory=list)
    """Positions of blocks on their way up, each with its hash."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // TOKEN_BYTES

    @property
    def known_tokens(self) -> int:
        """Prompt and sampled tokens; the last sampled one is never in the cache."""
        return self.prompt_tokens + self.sampled


class Token(NamedTuple):
    """A request's tokens `number` (from 0) to `stop` - 1 leave together at `at_ns`; `last`: they end it."""

    job: Job
    number: int
    stop: int
    at_ns: int
    last: bool
