"""The simulated engine: one accelerator, continuous batching, chunked prefill. Pure: the caller brings the time.

Work is done in steps, as in vLLM. A step gives every decoding request its next tokens (one, and what was drafted and
accepted), then spends what is left of `max_batched_tokens` on prefill, in order of arrival; it takes the decode step's
time plus that of the chunks in it (parameters.Preset has the formulas), so a long prefill delays the decode steps of
the others by one chunk each, and without load a request's first token comes exactly when the formula says, however
many chunks it took. Blocks that must come up from a lower tier do so beside the steps. Steps follow each other in
virtual time: a caller that comes late catches up and shifts nothing. What a step will sample and when it leaves is
settled when it begins (`take_planned`), so a caller may get it ready before it is due.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque

from kvbench.sim.cache import BlockHasher
from kvbench.sim.costs import NS, decode_s, life_ns, prefill_s
from kvbench.sim.hits import BlockStore, Found
from kvbench.sim.job import Job, Token
from kvbench.sim.parameters import Preset
from kvbench.sim.text import OutputText
from kvbench.sim.units import UnitStore


def hash_tokens(preset: Preset) -> int:
    """Tokens that one hash of a prompt stands for."""
    return preset.unit_granularity_tokens if preset.prefix == "units" else preset.block_size


class Engine:
    """Schedules jobs over one pool of blocks.

    Where hits are prefix units (preset.prefix), the pool is only the memory of running requests.
    `trace_time_scale` multiplies how long what is cached lives and how long a unit takes to build; 0, a trace replayed
    without its pauses, means that no time passes.
    """

    def __init__(self, preset: Preset, *, trace_time_scale: float = 1.0, replica: int = 0) -> None:
        self.preset = preset
        self.store = BlockStore(preset, trace_time_scale)
        self.pool = self.store.pool
        self.units: UnitStore | None = None
        self._hash_tokens = hash_tokens(preset)
        if preset.prefix == "units":
            interval = preset.unit_interval_tokens
            self.units = UnitStore(
                interval=None if interval is None else interval // self._hash_tokens,
                build_ns=round(preset.unit_build_s * trace_time_scale * NS),
                ttl_ns=life_ns(preset.idle_ttl_s, trace_time_scale),
                refresh_on_hit=preset.refresh_on_hit,
            )
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.step_ns = 0
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.external_hit_tokens = 0
        self._replica = replica
        self._arriving: deque[Job] = deque()
        self._restoring: list[tuple[int, int, Job]] = []
        self._frontend_ns = round(preset.frontend_s * NS)
        self._batch: list[Job] = []
        self._sampling: list[Token] = []
        self._planned: list[Token] = []
        self._sent_ns = 0
        self._reached_ns = 0
        self._step_end_ns: int | None = None
        self._order = itertools.count()
        self._jobs = 0
        self._chance = random.Random(f"{preset.seed} steps {replica}")

    def submit(
        self, prompt: bytes, output: OutputText, *, salt: str | None, now_ns: int, hasher: BlockHasher | None = None
    ) -> Job:
        """A new request; the prompt (four bytes a token) is not empty and fits max_model_len with its output.

        hasher: the prompt's, of pieces of hash_tokens(preset), where the caller has it.
        """
        if hasher is None:
            hasher = BlockHasher(self._hash_tokens, salt)
            hasher.extend(prompt)
        self._jobs += 1
        chance = random.Random(f"{self.preset.seed} job {self._replica} {self._jobs}")
        # A request read before its connection was free may have come before what has happened since.
        ready_ns = max(now_ns + self._frontend_ns, self._reached_ns)
        job = Job(prompt, output, salt, now_ns, hasher, chance, ready_ns=ready_ns)
        job.replica = self._replica
        job.noise = math.exp(chance.gauss(0, self.preset.noise_sigma))
        job.loses_hit = chance.random() < self.preset.lapse_probability
        if self.preset.fault_cached_text:
            job.differs_when_cached = chance.random() < self.preset.fault_cached_text
        self._arriving.append(job)
        return job

    def abort(self, job: Job, now_ns: int) -> None:
        """The client went away: its blocks are free at once."""
        if job.done:
            return
        for queue in (self._arriving, self.waiting, self.running):
            if job in queue:
                queue.remove(job)
        if job.restoring:
            self._restoring = [entry for entry in self._restoring if entry[2] is not job]
            heapq.heapify(self._restoring)
        self._finish(job, now_ns)

    @property
    def waiting_requests(self) -> int:
        """Those whose blocks come up are still to run, as in vLLM's count."""
        return len(self.waiting) + len(self._restoring)

    @property
    def busy(self) -> bool:
        """A request holds blocks."""
        return bool(self.running or self._restoring)

    def reset_cache(self) -> bool:
        """Forget all cached content; refused (False) while a request holds blocks."""
        if not self.store.reset():
            return False
        if self.units is not None:
            self.units.reset()
        return True

    def next_ns(self) -> int | None:
        """When something happens next; None while idle."""
        if self._step_end_ns is not None:
            return self._step_end_ns
        moments = [self._arriving[0].ready_ns] if self._arriving else []
        if self._restoring:
            moments.append(self._restoring[0][0])
        return min(moments, default=None)

    def take_planned(self) -> list[Token]:
        """The tokens of the steps begun since the last call, in the order in which they leave. A request aborted
        before its step has ended gets no more of them."""
        planned, self._planned = self._planned, []
        return planned

    def run_until(self, now_ns: int) -> list[Token]:
        """All tokens sampled up to now, in order; they may still have to leave."""
        tokens: list[Token] = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            self._reached_ns = at_ns
            while self._arriving and self._arriving[0].ready_ns <= at_ns:
                self.waiting.append(self._arriving.popleft())
            if self._step_end_ns is not None:
                self._end_step(at_ns, tokens)
            self._end_restores(at_ns)
            self._start_step(at_ns)
        return tokens

    # ---- a step's end

    def _end_step(self, at_ns: int, tokens: list[Token]) -> None:
        self._step_end_ns = None
        for job in self._batch:
            if not job.done:
                job.computed += job.chunk
        for token in self._sampling:
            if not token.job.done:
                self._sample(token, at_ns)
                tokens.append(token)

    def _sample(self, token: Token, at_ns: int) -> None:
        job = token.job
        job.prefilling = False
        if job.first_token_ns is None:
            job.first_token_ns = token.at_ns
            if self.units is not None:
                self.units.persist(self._input_hashes(job), at_ns, common=job.common)
            else:
                self.store.window.keep(self._input_hashes(job), at_ns)
        job.sampled = token.stop
        # The KV of the token sampled last is not computed before it is read, so never at the end.
        job.hasher.extend(job.output.tokens(token.number, job.sampled - token.last))
        if not token.last:
            return
        job.last_token_ns = token.at_ns
        if self.units is None:
            self._publish(job, job.computed, at_ns)
            if self.preset.cache_outputs:
                self.store.window.keep(job.hasher.hashes, at_ns)
        elif self.preset.cache_outputs:
            self.units.persist(job.hasher.hashes, at_ns, after=job.prompt_tokens // self._hash_tokens)
        self.running.remove(job)
        self._finish(job, at_ns)

    def _end_restores(self, at_ns: int) -> None:
        while self._restoring and self._restoring[0][0] <= at_ns:
            job = heapq.heappop(self._restoring)[2]
            for position, block_hash in job.restoring:
                self.store.come_up(job.blocks[position], block_hash, at_ns)
            job.restoring = []
            self.running.append(job)

    # ---- a step's beginning

    def _start_step(self, at_ns: int) -> None:
        self._batch = []
        budget = self.preset.max_batched_tokens
        prefill_ns, decoding, context_tokens, preempted = 0, 0, 0, False
        for job in list(self.running):
            if job.prefilling or not job.blocks:  # no blocks: preempted by an older request a moment ago
                continue
            chunk = self._decode_chunk(job)
            while not self._grow(job, chunk, at_ns):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim, at_ns)
                if victim is job:
                    break
            else:
                decoding += 1
                context_tokens += job.computed
                budget -= 1 + self.preset.speculative_tokens
                self._schedule(job, chunk, at_ns)
        for job in self.running:
            if job.prefilling and budget > 0:
                prefill_ns += self._prefill(job, min(budget, job.known_tokens - job.computed), at_ns)
                budget -= job.chunk
        while self.waiting and not preempted and budget > 0 and self._active < self.preset.max_running:
            job = self.waiting[0]
            if not self._admit(job, at_ns):
                break
            self.waiting.popleft()
            if job.restoring:
                continue
            self.running.append(job)
            prefill_ns += self._prefill(job, min(budget, job.known_tokens - job.computed), at_ns)
            budget -= job.chunk
        self._sampling = []
        if self._batch:
            self._step_end_ns = at_ns + prefill_ns + self._decode_ns(decoding, context_tokens)
            self.step_ns = self._step_end_ns - at_ns
            self._plan(self._step_end_ns)

    @property
    def _active(self) -> int:
        return len(self.running) + len(self._restoring)

    def _plan(self, step_end_ns: int) -> None:
        spacing_ns = round(self.preset.send_s_per_chunk * NS)
        sampling = [job for job in self._batch if job.computed + job.chunk >= job.known_tokens]
        sampling.sort(key=_has_begun)
        for job in sampling:
            # What a chunk computes beyond the tokens known before are the accepted drafts; one more is sampled.
            stop = job.sampled + job.computed + job.chunk - job.known_tokens + 1
            at_ns = max(self._sent_ns, step_end_ns)
            self._sent_ns = at_ns + spacing_ns
            self._sampling.append(Token(job, job.sampled, stop, at_ns, stop == job.output.length_tokens))
        self._planned += self._sampling

    def _decode_chunk(self, job: Job) -> int:
        """Tokens a decoding request computes: the one sampled last, and drafts up to the first that is refused."""
        preset = self.preset
        accepted = 0
        for _ in range(min(preset.speculative_tokens, job.output.length_tokens - job.sampled - 1)):
            if job.chance.random() >= preset.speculative_acceptance:
                break
            accepted += 1
        return 1 + accepted

    def _decode_ns(self, decoding: int, context_tokens: int) -> int:
        if not decoding:
            return 0
        noise = math.exp(self._chance.gauss(0, self.preset.noise_sigma))
        return round(NS * noise * decode_s(self.preset, decoding, context_tokens))

    def _admit(self, job: Job, at_ns: int) -> bool:
        size = self.preset.block_size
        # The last token must be computed to have something to sample from.
        hashes = job.hasher.hashes[: (job.known_tokens - self.preset.recompute_last_token) // self._hash_tokens]
        found = Found([], [], 0)
        if self.units is None:
            found = self.store.find(hashes, at_ns)
            if job.loses_hit and job.scheduled_ns is None and found.blocks:
                self.store.lose(found, hashes)
                job.lapsed = True
                found = Found([], [], 0)
        tokens = job.known_tokens
        if self.preset.admission == "whole":
            tokens = job.prompt_tokens + job.output.length_tokens - 1
        before = self.pool.evictions
        resident = [block for block in found.blocks if block is not None]
        new = -(-tokens // size) - len(resident)
        taken = self.pool.take(resident, new + self.preset.session_blocks, at_ns)
        if taken is None:
            return False
        job.evicted_blocks += self.pool.evictions - before
        job.state_blocks = taken[len(resident) + new :]
        fresh = iter(taken[len(resident) : len(resident) + new])
        job.blocks = [next(fresh) if block is None else block for block in found.blocks] + list(fresh)
        job.published = len(found.blocks)
        hit = len(found.blocks) * size
        job.found = job.computed = hit - found.replay_tokens
        if self.units is not None:
            if job.loses_hit and job.scheduled_ns is None:
                job.lapsed = self.units.lose(hashes, at_ns)
            hit = 0 if job.lapsed else self.units.find(hashes, at_ns) * self._hash_tokens
            job.found = job.computed = hit
            if job.scheduled_ns is None:
                job.common = self.units.common_prefix(self._input_hashes(job), at_ns)
        job.prefilling = True
        if job.scheduled_ns is None:
            self._note_hit(job, hit, found, at_ns)
        if any(found.below):
            restored_ns = self.store.tiers.restore(found.below, at_ns)
            if not job.preemptions:
                job.restored_ns = restored_ns
            job.restoring = [(n, hashes[n]) for n, block in enumerate(found.blocks) if block is None]
            heapq.heappush(self._restoring, (restored_ns, next(self._order), job))
        return True

    def _note_hit(self, job: Job, hit: int, found: Found, at_ns: int) -> None:
        size = self.preset.block_size
        job.scheduled_ns = at_ns
        job.cached_tokens = hit
        if hit:
            job.output.come_from_cache(differs=job.differs_when_cached, lower_by=self.preset.fault_cached_logprob)
        job.replayed_tokens = found.replay_tokens
        below = {name: blocks * size for name, blocks in zip(self.store.tiers.names, found.below, strict=False)}
        job.hits = {"units" if self.units is not None else "hbm": hit - sum(below.values()), **below}
        self.queried_tokens += job.prompt_tokens
        self.hit_tokens += hit - sum(below.values())
        self.external_hit_tokens += sum(below.values())

    def _prefill(self, job: Job, chunk: int, at_ns: int) -> int:
        """Schedule a chunk; its time in ns is a difference of the whole's, so that chunks add up to the formula."""
        done = job.computed - job.found
        self._schedule(job, chunk, at_ns)
        whole_ns = self._prefill_ns(job, done + chunk) - (self._prefill_ns(job, done) if done else 0)
        return whole_ns + (round(self.preset.prefill_s_per_chunk * job.noise * NS) if chunk else 0)

    def _prefill_ns(self, job: Job, uncached: int) -> int:
        return round(NS * job.noise * prefill_s(self.preset, uncached, job.found))

    def _schedule(self, job: Job, chunk: int, at_ns: int) -> None:
        """Put `chunk` tokens of a job into the step; blocks they fill can be hit by others from now on."""
        job.chunk = chunk
        self._batch.append(job)
        if self.units is None:
            self._publish(job, job.computed + chunk, at_ns)

    def _publish(self, job: Job, computed: int, at_ns: int) -> None:
        if not self.preset.cache_outputs:
            computed = min(computed, job.prompt_tokens)
        # Of drafts accepted in the running step the hasher does not know yet.
        full = min(computed // self.preset.block_size, len(job.hasher.hashes))
        for number in range(job.published, full):
            self.store.publish(job.blocks[number], job.hasher.hashes[number], at_ns)
        job.published = max(job.published, full)

    def _input_hashes(self, job: Job) -> list[int]:
        return job.hasher.hashes[: job.prompt_tokens // self._hash_tokens]

    def _grow(self, job: Job, chunk: int, at_ns: int) -> bool:
        """Blocks for the tokens about to be computed, where those it has are full."""
        lacking = -(-(job.computed + chunk) // self.preset.block_size) - len(job.blocks)
        if lacking <= 0:
            return True
        before = self.pool.evictions
        blocks = self.pool.take((), lacking, at_ns)
        if blocks is None:
            return False
        job.evicted_blocks += self.pool.evictions - before
        job.blocks += blocks
        return True

    def _preempt(self, job: Job, at_ns: int) -> None:
        """Give up a request's blocks; it starts again from the head of the queue with the tokens it has."""
        self.preemptions += 1
        job.preemptions += 1
        self._release(job, at_ns)
        self.waiting.appendleft(job)

    def _finish(self, job: Job, at_ns: int) -> None:
        job.done = True
        self._release(job, at_ns)

    def _release(self, job: Job, at_ns: int) -> None:
        self.pool.release(job.blocks, at_ns)
        self.pool.release_blank(job.state_blocks)
        job.blocks, job.state_blocks = [], []


def _has_begun(job: Job) -> bool:
    return job.sampled > 0
