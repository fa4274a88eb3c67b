"""Replicas of one engine behind one address, and which of them gets a request."""

from __future__ import annotations

import random
from collections import OrderedDict

from kvbench.sim.cache import BlockHasher
from kvbench.sim.engine import Engine, hash_tokens
from kvbench.sim.job import Job, Token
from kvbench.sim.parameters import Preset
from kvbench.sim.text import OutputText

_REMEMBERED = 2**20
"""Pieces of prompts that a sticky router knows the place of; the least recently seen are forgotten."""


class Cluster:
    """The engines of a preset as if they were one (engine.Engine says what each method does)."""

    def __init__(self, preset: Preset, *, trace_time_scale: float = 1.0) -> None:
        self.engines = [
            Engine(preset, trace_time_scale=trace_time_scale, replica=number) for number in range(preset.replicas)
        ]
        self._hash_tokens = hash_tokens(preset)
        self._sticky = preset.routing == "sticky"
        self._chance = random.Random(f"{preset.seed} routing")
        self._place: OrderedDict[int, int] = OrderedDict()

    def submit(self, prompt: bytes, output: OutputText, *, salt: str | None, now_ns: int) -> Job:
        hasher = BlockHasher(self._hash_tokens, salt)
        hasher.extend(prompt)
        engine = self.engines[self._route(hasher.hashes)]
        return engine.submit(prompt, output, salt=salt, now_ns=now_ns, hasher=hasher)

    def abort(self, job: Job, now_ns: int) -> None:
        self.engines[job.replica].abort(job, now_ns)

    def reset_cache(self) -> bool:
        if any(engine.busy for engine in self.engines):
            return False
        for engine in self.engines:
            engine.reset_cache()
        return True

    @property
    def running(self) -> int:
        return sum(len(engine.running) for engine in self.engines)

    @property
    def step_ns(self) -> int:
        """Length of the shortest step under way."""
        return min(engine.step_ns for engine in self.engines)

    def next_ns(self) -> int | None:
        moments = [at_ns for engine in self.engines if (at_ns := engine.next_ns()) is not None]
        return min(moments, default=None)

    def take_planned(self) -> list[Token]:
        return [token for engine in self.engines for token in engine.take_planned()]

    def run_until(self, now_ns: int) -> list[Token]:
        if len(self.engines) == 1:
            return self.engines[0].run_until(now_ns)
        tokens = [token for engine in self.engines for token in engine.run_until(now_ns)]
        tokens.sort(key=lambda token: token.at_ns)
        return tokens

    def _route(self, hashes: list[int]) -> int:
        if len(self.engines) == 1:
            return 0
        chosen = self._chance.randrange(len(self.engines))
        if self._sticky:
            known = next((n for n, key in enumerate(hashes) if key not in self._place), len(hashes))
            if known and 2 * known >= len(hashes):
                chosen = self._place[hashes[known - 1]]
            for key in hashes:
                self._place[key] = chosen
                self._place.move_to_end(key)
            while len(self._place) > _REMEMBERED:
                self._place.popitem(last=False)
        return chosen
