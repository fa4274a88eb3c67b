"""How many tokens a prefix cache holds: fill it with prompts until the first ones are gone, then read it backwards.

1. Two short prompts, each sent twice: is anything reported as cached, and in what grain?
2. Scout: prompts of growing length, and after each step the oldest that was not sent again since. Once that one has
   lost something, all that was sent together is more than the cache holds.
3. Read: send the latest again, then the one before, and so on until the first that is not all there. A forward pass
   would push out each prompt just before it is asked for.
4. Where what was lost left no part of it, prompts of which half is then asked for: it is there only where the layers
   that keep a window kept all of the prompt.
5. Fill and read with prompts of one length, longer than a window, and of half of it and twice it: what a session takes
   besides its tokens shows as a capacity that depends on the length.

Where no cached tokens are reported, prompts of one length sent twice show whether TTFT tells a hit from a miss; if it
does, steps 2, 3 and 5 go by it, with prompts of that length alone.
6. Read the last of these series once more, from the prompt asked for last to the one asked for first: hits write
   nothing, so that others who write a steady share of all blocks have written less among as many tokens.
7. Where nothing was found in part, a prompt that nothing is sent after, asked for at an age at which others were lost:
   what is given up by age looks like a full cache.

Lengths are odd, so never whole blocks: the last block of an aligned prompt is computed again and takes a second place.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from kvbench.model import Record
from kvbench.replay.probes.prober import Prober, Stopped
from kvbench.replay.probes.taking import Takes

GRAIN_LENGTHS = (565, 985)
"""Floors of (length - 1) in blocks of 16 to 256 tokens have nothing but the block in common."""
SHORT_GRAIN_LENGTHS = (201, 371)
SCOUT_GROWTH = 0.4
WINDOW_KNOWN = 1.04
"""The longest prompt kept whole and the shortest that was not are this near."""
BEYOND_WINDOW = 2.5
MORE_PROMPTS = 1.5
PROMPTS_A_SERIES = 24
SESSIONS_A_SERIES = 20
"""Where hits are whole: a budget of 250 requests is then enough to find the window and to read once more."""
CONTROL_LENGTHS = (1_025, 4_097, 16_385)
"""A token more than whole blocks of up to 256: all but that one can be hit, whatever the block."""
CONTROLS = 12
APART = 1.5
"""Least ratio of the median TTFT of misses to that of hits for which it is worth going on."""
BEYOND = 3
"""Prompts asked for beyond the first that is not all there: under LRU they are gone."""
REREAD = "reread"
OLDER = 1.1
"""Than the oldest that was lost first is the prompt that nothing is sent after."""
Prompt = tuple[int, int]
"""Its number in the series, and its length."""


class CapacityDesign(msgspec.Struct, frozen=True, kw_only=True):
    """kv_memory_bytes: what the endpoint has for its KV cache, if known. input_tokens: lengths to fill it with; none:
    chosen, once it is known about how much it holds."""

    kv_memory_bytes: int | None = None
    input_tokens: tuple[int, ...] = ()


class CapacityProbe:
    """The experiment; `probe` is called once."""

    def __init__(self, design: CapacityDesign) -> None:
        self._design = design
        self._slack = 0
        self._grain_tokens = 0
        self._hit_within_s: float | None = None
        """TTFT of a hit at most, where no cached tokens are reported."""
        self._only_length = 0
        """Then the one length that this holds for."""
        self._beyond = 0
        """Prompts asked for beyond the first that was lost, in the latest reading."""
        self._partly = False
        """Something was found that was not whole: blocks go one by one."""
        self._sent_s: dict[str, float] = {}
        """When each prompt was sent last."""
        self._lost_age_s = 0.0
        """Age of the oldest prompt that was the first of a reading to be lost."""

    async def probe(self, prober: Prober) -> None:
        good = await self._grain(prober)
        if not (good or self._silent(prober)) or not self._agreed(prober):
            return
        if not good and not await self._controls(prober):
            return
        upper = await self._scout(prober)
        if upper is None:
            return
        window = (
            0
            if self._partly or self._only_length
            else await self._window(prober, min(prober.most_input_tokens, upper // 4))
        )
        lengths = self._lengths(prober, upper, window)
        for number, length in enumerate(lengths):
            prompts = math.ceil(1.05 * upper / self._hit(length)) + 2
            requests, tokens = 2 * prompts + BEYOND, 2 * prompts * length
            if not prober.room(requests, tokens):
                prober.event("series_left_out", input_tokens=length, requests=requests, tokens=tokens)
                prober.plan.say(
                    f"left out: prompts of {length:,} tokens would take {requests:,} requests and {tokens:,} tokens"
                )
                continue
            prober.plan.say(f"prompts of {length:,} tokens ({number + 1} of {len(lengths)}): {prompts} to fill")
            series = f"ramp{length}"
            read, lost = await self._ramp(prober, series, length, prompts)
            # a long prompt of the scouting takes more room while it is computed than it keeps: more may be held
            while not lost and prober.room(round(MORE_PROMPTS * requests), round(MORE_PROMPTS * tokens)):
                prompts, requests = round(MORE_PROMPTS * prompts), round(MORE_PROMPTS * requests)
                tokens, series = round(MORE_PROMPTS * tokens), f"{series}+"
                prober.plan.say(f"all were found: {prompts} of them")
                read, lost = await self._ramp(prober, series, length, prompts)
            if lost and number == len(lengths) - 1 and prober.room(len(read), length * len(read)):
                prober.plan.say("the same once more, in the order in which they were asked for")
                await self._read(prober, series, read[::-1], REREAD, beyond=0)
        if self._lost_age_s and not self._partly:
            await self._age(prober, min(lengths))

    async def _age(self, prober: Prober, length: int) -> None:
        """Whether age alone makes a prompt go that others were lost at."""
        age_s = OLDER * self._lost_age_s
        if not prober.room(2, 2 * length) or prober.elapsed_s + age_s > prober.plan.budget.hours * 3600:
            return
        prober.plan.say(f"waiting {age_s:.3g} s: is a prompt lost that is left alone?")
        await prober.ask("still/0", "prime", length)
        await prober.sleep_until(prober.elapsed_s + age_s)
        await prober.ask("still/0", "aged", length)

    def _silent(self, prober: Prober) -> bool:
        """Whether no answer told cached tokens, and TTFT is there to go by."""
        return all(r.usage.cached_tokens is None and _ttft_s(r) is not None for r in prober.records)

    async def _controls(self, prober: Prober) -> bool:
        """Find the shortest length at which TTFT tells a prompt that was sent before from one that was not; the
        estimator says how well it does."""
        wanted = self._design.input_tokens[:1] or CONTROL_LENGTHS
        lengths = [length for length in wanted if length <= prober.most_input_tokens]
        for length in lengths or [prober.most_input_tokens]:
            prober.plan.say(f"no cached tokens are reported: {CONTROLS} prompts of {length:,} tokens, each sent twice")
            misses: list[float] = []
            hits: list[float] = []
            for number in range(CONTROLS):
                for role, found in (("prime", misses), ("again", hits)):
                    record = await prober.ask(f"control{length}/{number}", role, length)
                    found.append(_ttft_s(record) or math.inf)
            hit_s, miss_s = statistics.median(hits), statistics.median(misses)
            if max(hits) < min(misses) and miss_s > APART * hit_s:
                self._hit_within_s, self._only_length = math.sqrt(hit_s * miss_s), length
                return True
        return False

    async def _grain(self, prober: Prober) -> bool:
        """False: nothing is reported as cached, or not each time; the estimator says what that means."""
        lengths = GRAIN_LENGTHS if prober.most_input_tokens > 2 * max(GRAIN_LENGTHS) else SHORT_GRAIN_LENGTHS
        good = True
        for number, length in enumerate(lengths):
            await prober.ask(f"grain/{number}", "prime", length)
            for _ in range(2):
                record = await prober.ask(f"grain/{number}", "again", length)
                cached, sent = record.usage.cached_tokens, record.usage.input_tokens or length
                good = good and bool(cached)
                self._slack = max(self._slack, sent - (cached or 0))
                self._grain_tokens = math.gcd(self._grain_tokens, cached or 0)
        # how much a whole prompt lacks goes by its length, up to a grain
        self._slack = max(self._slack, self._grain_tokens)
        return good

    def _agreed(self, prober: Prober) -> bool:
        first = [r for r in prober.records if r.request_id.endswith(".prime")]
        seconds = [s for r in first if (s := _ttft_s(r)) is not None]
        tokens = sum(r.usage.input_tokens or r.wanted_input_tokens or 0 for r in first)
        speed = tokens / sum(seconds) if sum(seconds) > 0 else math.inf
        budget, longest = prober.plan.budget, prober.most_input_tokens
        return prober.agreed(
            Takes(
                requests=budget.requests,
                input_tokens=budget.requests * longest,
                longest_tokens=longest,
                output_tokens=budget.requests,
                hours=budget.hours,
                note=f"it needs some five times what the cache holds; short prompts took 1 s for {speed:,.0f} tokens",
            )
        )

    async def _scout(self, prober: Prober) -> int | None:
        """More tokens than the cache holds, by little; None where the budget did not reach so far."""
        longest = prober.most_input_tokens
        lengths: list[int] = []
        recent: list[int] = []
        total, unchecked, lost = 0, 0, None
        prober.plan.say("scouting: prompts of growing length until the oldest is lost")
        try:
            while lost is None:
                goal = max(GRAIN_LENGTHS[0], total * (1 + SCOUT_GROWTH))
                while total < goal:
                    length = self._only_length or odd(min(longest, max(GRAIN_LENGTHS[0], goal - total)))
                    await self._ask(prober, f"scout/{len(lengths)}", "prime", length)
                    recent.append(len(lengths))
                    lengths.append(length)
                    total += length
                if unchecked == len(lengths) - 1:
                    continue
                record, _ = await self._ask(prober, f"scout/{unchecked}", "check", lengths[unchecked])
                if not self._whole(record):
                    lost = unchecked
                recent.remove(unchecked)
                recent.append(unchecked)
                unchecked += 1
        except Stopped:
            prober.event("no_overflow", tokens=total)
            raise
        prober.event("overflow", tokens=total)
        read, _ = await self._read(prober, "scout", [(number, lengths[number]) for number in reversed(recent)])
        return min(total, sum(length for _, length in read[: len(read) - self._beyond]))

    async def _ramp(self, prober: Prober, series: str, length: int, prompts: int) -> tuple[list[Prompt], bool]:
        """As `_read`."""
        for number in range(prompts):
            await self._ask(prober, f"{series}/{number}", "prime", length)
        return await self._read(prober, series, [(number, length) for number in reversed(range(prompts))])

    async def _read(
        self, prober: Prober, series: str, order: list[Prompt], role: str = "read", beyond: int | None = None
    ) -> tuple[list[Prompt], bool]:
        """Ask for prompts, latest first, down to one that is not all there and so many beyond it: those asked for, and
        whether one was lost."""
        most = beyond if beyond is not None else 2 * BEYOND if self._only_length else BEYOND
        read: list[Prompt] = []
        self._beyond, lost = 0, False
        for number, length in order:
            if lost and self._beyond >= most:
                break
            record, age_s = await self._ask(prober, f"{series}/{number}", role, length)
            read.append((number, length))
            self._beyond += lost
            if not lost and not self._whole(record):
                lost, self._lost_age_s = True, max(self._lost_age_s, age_s)
        return read, lost

    async def _ask(self, prober: Prober, name: str, role: str, length: int) -> tuple[Record, float]:
        """The record, and how long ago the prompt had been sent before, seconds; 0 where it had not."""
        now_s = prober.elapsed_s
        record = await prober.ask(name, role, length)
        age_s = now_s - self._sent_s.get(name, now_s)
        self._sent_s[name] = prober.elapsed_s
        return record, age_s

    async def _window(self, prober: Prober, longest: int) -> int:
        """Length from which on a prompt was not kept whole, 0 for none up to `longest`; by bisection, to a grain or
        WINDOW_KNOWN."""
        grain = self._grain_tokens
        kept, lost, middle = 1, 0, longest // grain
        prober.plan.say("what was lost left no part: prompts of which half is asked for")
        while prober.room(2, 2 * middle * grain):
            length = middle * grain + 1
            half = length // 2
            await prober.ask(f"window{length}/0", "prime", length)
            record = await prober.ask(f"window{length}/1", "half", half + grain, extends=f"window{length}/0", kept=half)
            if record.usage.cached_tokens:
                kept = middle
            else:
                lost = middle
            if not lost or lost - kept <= 1 or lost <= WINDOW_KNOWN * kept:
                break
            middle = max(kept + 1, min(lost - 1, round(math.sqrt(kept * lost))))
        return lost * grain + 1 if lost else 0

    def _whole(self, record: Record) -> bool:
        if self._hit_within_s is not None:
            return (_ttft_s(record) or math.inf) <= self._hit_within_s
        sent, cached = record.usage.input_tokens or record.wanted_input_tokens or 0, record.usage.cached_tokens or 0
        whole = cached >= sent - self._slack
        self._partly = self._partly or (cached > 0 and not whole)
        return whole

    def _lengths(self, prober: Prober, upper: int, window: int) -> list[int]:
        if self._only_length:
            return [self._only_length]
        if self._design.input_tokens:
            return [odd(min(length, prober.most_input_tokens)) for length in self._design.input_tokens]
        prompts = PROMPTS_A_SERIES if self._partly else SESSIONS_A_SERIES
        full = max(upper / prompts, BEYOND_WINDOW * window)
        wanted = [self._off_grain(min(prober.most_input_tokens, n)) for n in (full, full / 2, full * 2)]
        return list(dict.fromkeys(wanted))

    def _hit(self, length: int) -> int:
        """Tokens of a prompt that can be hit, at least one grain."""
        grain = self._grain_tokens or 1
        return max(grain, (length - 1) // grain * grain)

    def _off_grain(self, length: float) -> int:
        """About as long, at least a grain and a half, and in the middle between two whole numbers of grains."""
        grain = self._grain_tokens
        return odd(max(1, int(length) // grain) * grain + grain // 2)


def odd(length: float) -> int:
    return int(length) | 1


def _ttft_s(record: Record) -> float | None:
    clock = record.clock
    return None if clock.first_token is None or clock.sent is None else (clock.first_token - clock.sent) / 1e9
