"""The simulated engine: one accelerator, continuous batching, chunked prefill. Pure: the caller brings the time.

Work is done in steps, as in vLLM. A step gives every decoding request one token, then spends what is left of
`max_batched_tokens` on prefill, in order of arrival; it takes

    decode_base_s + decode_s_per_request * n      where n > 0 requests decode
    + the prefill time of the chunks in it        (presets.Preset has the formula)

so a long prefill delays the decode steps of the others by one chunk each, and without load a request's first token
comes exactly when the formula says, however many chunks it took. Steps follow each other in virtual time: a caller
that comes late catches up and shifts nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbench.sim.cache import BlockHasher, BlockPool
from kvbench.sim.presets import Preset
from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import TOKEN_BYTES
from kvbench.sim.units import UnitStore

NS = 1_000_000_000


@dataclass(eq=False)
class Job:
    """A request inside the engine. Times are ns of the caller's clock, None until they happened."""

    prompt: bytes
    output: OutputText
    salt: str | None
    arrival_ns: int
    hasher: BlockHasher
    ready_ns: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    sampled: int = 0
    done: bool = False
    # Of the prompt, in pieces of the granularity: what it has in common with an earlier one (prefix units only).
    common: int = 0
    # Since the last admission: tokens in the cache, tokens found there, chunk of the running step.
    computed: int = 0
    hit: int = 0
    chunk: int = 0
    prefilling: bool = True
    published: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // TOKEN_BYTES

    @property
    def known_tokens(self) -> int:
        """Prompt and sampled tokens; the last sampled one is never in the cache."""
        return self.prompt_tokens + self.sampled


class Token(NamedTuple):
    """A request's token `number` (from 0) was sampled at `at_ns`; `last` ends the request."""

    job: Job
    number: int
    at_ns: int
    last: bool


class Engine:
    """Schedules jobs over one pool of blocks.

    Where hits are prefix units (preset.prefix), the pool is only the memory of running requests.
    `trace_time_scale` multiplies how long what is cached lives and how long a unit takes to build; 0, a trace replayed
    without its pauses, means that no time passes.
    """

    def __init__(self, preset: Preset, *, trace_time_scale: float = 1.0) -> None:
        self.preset = preset
        ttl_ns = round((preset.idle_ttl_s or 0) * trace_time_scale * NS) or None
        self.pool = BlockPool(preset.num_blocks, ttl_ns, preset.cache_blocks)
        self.units: UnitStore | None = None
        self._hash_tokens = preset.block_size
        if preset.prefix == "units":
            self._hash_tokens = preset.unit_granularity_tokens
            interval = preset.unit_interval_tokens
            self.units = UnitStore(
                interval=None if interval is None else interval // self._hash_tokens,
                build_ns=round(preset.unit_build_s * trace_time_scale * NS),
                ttl_ns=ttl_ns,
                lapse_probability=preset.unit_lapse_probability,
                seed=preset.unit_lapse_seed,
            )
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._arriving: deque[Job] = deque()
        self._frontend_ns = round(preset.frontend_s * NS)
        self._batch: list[Job] = []
        self._step_end_ns: int | None = None

    def submit(self, prompt: bytes, output: OutputText, *, salt: str | None, now_ns: int) -> Job:
        """A new request; the prompt (four bytes a token) is not empty and fits max_model_len with its output."""
        hasher = BlockHasher(self._hash_tokens, salt)
        hasher.extend(prompt)
        job = Job(prompt, output, salt, now_ns, hasher, ready_ns=now_ns + self._frontend_ns)
        self._arriving.append(job)
        return job

    def abort(self, job: Job, now_ns: int) -> None:
        """The client went away: its blocks are free at once."""
        if job.done:
            return
        for queue in (self._arriving, self.waiting, self.running):
            if job in queue:
                queue.remove(job)
        self._finish(job, now_ns)

    def reset_cache(self) -> bool:
        """Forget all cached content; refused (False) while a request holds blocks."""
        if not self.pool.reset():
            return False
        if self.units is not None:
            self.units.reset()
        return True

    def next_ns(self) -> int | None:
        """When something happens next; None while idle."""
        if self._step_end_ns is not None:
            return self._step_end_ns
        return self._arriving[0].ready_ns if self._arriving else None

    def run_until(self, now_ns: int) -> list[Token]:
        """All tokens sampled up to now, in order."""
        tokens: list[Token] = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            while self._arriving and self._arriving[0].ready_ns <= at_ns:
                self.waiting.append(self._arriving.popleft())
            if self._step_end_ns is not None:
                self._end_step(at_ns, tokens)
            self._start_step(at_ns)
        return tokens

    def _end_step(self, at_ns: int, tokens: list[Token]) -> None:
        self._step_end_ns = None
        for job in self._batch:
            if job.done:
                continue
            job.computed += job.chunk
            if job.computed < job.known_tokens:
                continue
            job.prefilling = False
            if job.first_token_ns is None:
                job.first_token_ns = at_ns
                if self.units is not None:
                    self.units.persist(self._input_hashes(job), at_ns, common=job.common)
            number = job.sampled
            job.sampled += 1
            last = job.sampled == job.output.length_tokens
            tokens.append(Token(job, number, at_ns, last))
            if last:
                if self.units is not None and self.preset.cache_outputs:
                    # Without the token just sampled: its KV was never computed.
                    inputs = job.prompt_tokens // self._hash_tokens
                    self.units.persist(job.hasher.hashes, at_ns, after=inputs)
                self.running.remove(job)
                self._finish(job, at_ns)
            else:
                job.hasher.extend(job.output.tokens(number, number + 1))

    def _start_step(self, at_ns: int) -> None:
        self._batch = []
        budget = self.preset.max_batched_tokens
        cost_ns, decoding, preempted = 0, 0, False
        for job in list(self.running):
            if job.prefilling or not job.blocks:  # no blocks: preempted by an older request a moment ago
                continue
            while not self._grow(job):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim, at_ns)
                if victim is job:
                    break
            else:
                decoding += 1
                budget -= 1
                self._schedule(job, 1)
        for job in self.running:
            if job.prefilling and budget > 0:
                cost_ns += self._prefill(job, min(budget, job.known_tokens - job.computed))
                budget -= job.chunk
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.preset.max_running:
            job = self.waiting[0]
            if not self._admit(job, at_ns):
                break
            self.waiting.popleft()
            self.running.append(job)
            cost_ns += self._prefill(job, min(budget, job.known_tokens - job.computed))
            budget -= job.chunk
        if decoding:
            cost_ns += round((self.preset.decode_base_s + self.preset.decode_s_per_request * decoding) * NS)
        if self._batch:
            self._step_end_ns = at_ns + cost_ns

    def _admit(self, job: Job, at_ns: int) -> bool:
        size = self.preset.block_size
        hits: list[int] = []
        # The last token must be computed to have something to sample from.
        hashes = job.hasher.hashes[: (job.known_tokens - self.preset.recompute_last_token) // self._hash_tokens]
        if self.units is None:
            hits = self.pool.find(hashes, at_ns)
        before = self.pool.evictions
        blocks = self.pool.take(hits, -(-job.known_tokens // size) - len(hits))
        if blocks is None:
            return False
        job.evicted_blocks += self.pool.evictions - before
        job.blocks, job.published = blocks, len(hits)
        job.hit = job.computed = len(hits) * size
        if self.units is not None:
            job.hit = job.computed = self.units.find(hashes, at_ns) * self._hash_tokens
            if job.scheduled_ns is None:
                job.common = self.units.common_prefix(self._input_hashes(job), at_ns)
        job.prefilling = True
        if job.scheduled_ns is None:
            job.scheduled_ns = at_ns
            job.cached_tokens = job.hit
            self.queried_tokens += job.prompt_tokens
            self.hit_tokens += job.hit
        return True

    def _prefill(self, job: Job, chunk: int) -> int:
        """Schedule a chunk; its time in ns is a difference of the whole's, so that chunks add up to the formula."""
        done = job.computed - job.hit
        self._schedule(job, chunk)
        return self._prefill_ns(done + chunk, job.hit) - (self._prefill_ns(done, job.hit) if done else 0)

    def _prefill_ns(self, uncached: int, cached: int) -> int:
        preset = self.preset
        return round(
            NS
            * (
                preset.prefill_base_s
                + preset.prefill_s_per_token * uncached
                + preset.prefill_s_per_cached_token * cached
                + preset.attention_s_per_token2 * (uncached * cached + uncached * uncached / 2)
            )
        )

    def _schedule(self, job: Job, chunk: int) -> None:
        """Put `chunk` tokens of a job into the step; blocks they fill can be hit by others from now on."""
        job.chunk = chunk
        self._batch.append(job)
        if self.units is not None:
            return
        cacheable = job.computed + chunk
        if not self.preset.cache_outputs:
            cacheable = min(cacheable, job.prompt_tokens)
        full = cacheable // self.preset.block_size
        for number in range(job.published, full):
            self.pool.publish(job.blocks[number], job.hasher.hashes[number])
        job.published = max(job.published, full)

    def _input_hashes(self, job: Job) -> list[int]:
        return job.hasher.hashes[: job.prompt_tokens // self._hash_tokens]

    def _grow(self, job: Job) -> bool:
        """A block for the token about to be computed, if the last one is full."""
        if job.computed < len(job.blocks) * self.preset.block_size:
            return True
        before = self.pool.evictions
        blocks = self.pool.take((), 1)
        if blocks is None:
            return False
        job.evicted_blocks += self.pool.evictions - before
        job.blocks += blocks
        return True

    def _preempt(self, job: Job, at_ns: int) -> None:
        """Give up a request's blocks; it starts again from the head of the queue with the tokens it has."""
        self.preemptions += 1
        job.preemptions += 1
        self.pool.release(job.blocks, at_ns)
        job.blocks = []
        self.waiting.appendleft(job)

    def _finish(self, job: Job, at_ns: int) -> None:
        job.done = True
        self.pool.release(job.blocks, at_ns)
        job.blocks = []
