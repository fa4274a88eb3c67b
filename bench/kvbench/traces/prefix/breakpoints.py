"""Hits at explicit breakpoints (rule `breakpoints`, Anthropic's cache_control), without token ids.

A request caches the prefix that ends at each of its marks, and reads the longest cached one that ends at a mark or at
one of the blocks before it, 20 in all. Where blocks lie is known from the prompts, and how many tokens a prefix has
from the usage reports: what a request read and wrote is the prefix up to its last mark.

Floor: the longest prefix that was surely cached (by a request that had its first token when this one was sent), within
its lifetime (which its own hit, or its being marked last again, begins anew), and so long for sure. Ceiling: the
longest that any other request sent before this one's first token has in common, up to that one's last mark; no end of
a lifetime is taken for certain. Not documented, and therefore bounds: whether a prefix can be hit at a block that was
not marked, whether the look-back counts the marked block, whether a hit prolongs the shorter prefixes inside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvbench.model import Expectation
from kvbench.traces.prefix.marks import Mark
from kvbench.traces.prefix.rules import FAR_NS, BreakpointsRule

LAPSED = "whether it was still cached, at which blocks, and how long that prefix is, is not all known"
TOO_MANY = "more than 4 marks, which the API refuses"
UNREPORTED = "what was written to the cache is not reported, so how long its prefixes are is not known"


@dataclass(frozen=True)
class Marked:
    """A request. space: what shares a cache (salt and model). read_tokens, written_tokens: as reported.

    first_token_ns: when what it wrote could surely be read; None: never (it failed, or nobody knows).
    """

    key: str
    space: str
    chain: tuple[bytes, ...]
    marks: tuple[Mark, ...]
    sent_ns: int
    first_token_ns: int | None
    end_ns: int | None
    input_tokens: int | None = None
    read_tokens: int | None = None
    written_tokens: int | None = None

    @property
    def decided_ns(self) -> int:
        if self.first_token_ns is not None:
            return self.first_token_ns
        return self.end_ns if self.end_ns is not None else FAR_NS

    @property
    def cached_tokens(self) -> int | None:
        """Of the prefix up to its last mark."""
        return (
            None if self.read_tokens is None or self.written_tokens is None else self.read_tokens + self.written_tokens
        )


@dataclass(slots=True)
class _Held:
    """Who had a prefix first, up to a mark or before it, and the first other one."""

    holder: str
    first_ns: int
    other_ns: int = FAR_NS

    def by_others(self, key: str) -> int:
        return self.other_ns if self.holder == key else self.first_ns


@dataclass(slots=True)
class _Entry:
    """A prefix that is cached from since_ns on, and was last surely used, or written, at used_ns."""

    since_ns: int
    used_ns: int
    ttl_ns: int

    def at(self, now_ns: int) -> bool:
        return self.since_ns <= now_ns <= self.used_ns + self.ttl_ns


@dataclass(slots=True)
class _Pending:
    request: Marked
    floor: int


_Place = tuple[str, bytes]


class BreakpointHits:
    """Takes requests in order of sending and gives each one's expectation to `emit`; see HitModel."""

    def __init__(self, rule: BreakpointsRule, emit: Callable[[str, Expectation], None]) -> None:
        self.rule = rule
        self._emit = emit
        self._held: dict[_Place, _Held] = {}
        self._entries: dict[_Place, _Entry] = {}
        self._least: dict[_Place, int] = {}
        self._most: dict[_Place, int] = {}
        self._pending: deque[_Pending] = deque()
        self._last_sent_ns = -1

    def learn(self, requests: Iterable[Marked]) -> None:
        """How long prefixes are: lengths do not change, so all requests can tell, also later ones. Where a report is
        shorter than that of a prefix inside it, the lesser is what is sure, and nothing is at most."""
        told = [each for each in requests if each.cached_tokens and 0 < len(each.marks) <= self.rule.marks]
        for request in sorted(told, key=lambda each: each.marks[-1].block):
            tokens, last = request.cached_tokens or 0, request.marks[-1].block
            place = request.space, request.chain[last]
            inside = enumerate(request.chain[: last + 1])
            known = [(block, self._least.get((request.space, value))) for block, value in inside]
            if any(least is not None and tokens < least + last - block for block, least in known):
                self._least[place], self._most[place] = tokens, FAR_NS
                continue
            for block, value in enumerate(request.chain):
                # Each block has a token at least.
                place, apart = (request.space, value), abs(block - last)
                if block <= last:
                    self._most[place] = min(self._most.get(place, FAR_NS), tokens - apart)
                if block >= last:
                    self._least[place] = max(self._least.get(place, 0), tokens + apart)

    def add(self, request: Marked) -> None:
        """ValueError: sent before the one added last."""
        if request.sent_ns < self._last_sent_ns:
            raise ValueError("requests must come in order of sending")
        self._last_sent_ns = request.sent_ns
        self._settle(request.sent_ns)
        if len(request.marks) > self.rule.marks:
            self._emit(
                request.key, Expectation(rule=self.rule.name, input_tokens=request.input_tokens, reason=TOO_MANY)
            )
            return
        hit, floor = self._sure(request)
        self._pending.append(_Pending(request, floor))
        self._store(request, hit)

    def finish(self) -> None:
        """Emit what is still pending: no further request will come."""
        self._settle(FAR_NS)

    # ------------------------------------------------------------------------------------------------ internals

    def _settle(self, now_ns: int) -> None:
        while self._pending and self._pending[0].request.decided_ns <= now_ns:
            self._expect(self._pending.popleft())

    def _expect(self, pending: _Pending) -> None:
        request, rule = pending.request, self.rule
        possible = self._possible(request)
        if possible is None:
            self._emit(request.key, Expectation(rule=rule.name, input_tokens=request.input_tokens, reason=UNREPORTED))
            return
        ceiling = max(pending.floor, possible)
        reason = None
        if pending.floor < ceiling:
            told = request.cached_tokens is not None or not request.marks
            reason = LAPSED if told else UNREPORTED
        self._emit(
            request.key,
            Expectation(
                rule=rule.name,
                input_tokens=request.input_tokens,
                floor=pending.floor,
                ceiling=ceiling,
                reason=reason,
            ),
        )

    def _sure(self, request: Marked) -> tuple[int | None, int]:
        """The block of the longest prefix that is surely read, and how many tokens that is at least."""
        best: tuple[int, int | None] = (0, None)
        for block in self._blocks(request, self.rule.look_back):
            place = request.space, request.chain[block]
            entry = self._entries.get(place)
            if entry is not None and entry.at(request.sent_ns):
                best = max(best, (self._least.get(place, 0), block), key=lambda pair: pair[0])
        return best[1], best[0] if best[0] >= (self.rule.minimum_tokens or 0) else 0

    def _possible(self, request: Marked) -> int | None:
        """Tokens that are read at most; None: nothing says how many."""
        before_ns = request.decided_ns
        whole = request.input_tokens if request.input_tokens is not None else FAR_NS
        best = 0
        for block in self._blocks(request, self.rule.look_back + 1):
            place = request.space, request.chain[block]
            held = self._held.get(place)
            if held is not None and held.by_others(request.key) < before_ns:
                best = max(best, min(whole, self._most.get(place, FAR_NS)))
        if best >= FAR_NS:
            return None
        return best if best >= (self.rule.minimum_tokens or 0) else 0

    def _blocks(self, request: Marked, look_back: int) -> set[int]:
        """Where a cached prefix can end that the request finds."""
        return {block for mark in request.marks for block in range(max(0, mark.block - look_back + 1), mark.block + 1)}

    def _store(self, request: Marked, hit: int | None) -> None:
        if not request.marks:
            return
        space, now_ns, chain = request.space, request.sent_ns, request.chain
        shared = self._shared(request)
        found = max((block for block in self._blocks(request, self.rule.look_back + 1) if block <= shared), default=-1)
        last = request.marks[-1].block
        for value in chain[: last + 1]:
            held = self._held.get((space, value))
            if held is None:
                self._held[space, value] = _Held(request.key, now_ns)
            elif held.holder != request.key and now_ns < held.other_ns:
                held.other_ns = now_ns
        if request.first_token_ns is None:
            return
        if hit is not None and hit == found:
            # No longer prefix can have been hit in its place.
            self._entries[space, chain[hit]].used_ns = now_ns
        for mark in request.marks:
            # The last one is hit or written; an earlier one is passed by where a longer prefix may be hit.
            if mark.block == last or mark.block > shared:
                self._renew((space, chain[mark.block]), request, round(mark.ttl_s * 1e9))

    def _shared(self, request: Marked) -> int:
        """The last block that requests before this one had too; -1: none."""
        low, high = 0, len(request.chain)
        while low < high:
            middle = (low + high) // 2
            if (request.space, request.chain[middle]) in self._held:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _renew(self, place: _Place, request: Marked, ttl_ns: int) -> None:
        assert request.first_token_ns is not None
        entry = self._entries.get(place)
        if entry is None:
            self._entries[place] = _Entry(request.first_token_ns, request.sent_ns, ttl_ns)
        elif entry.at(request.sent_ns):
            entry.used_ns, entry.ttl_ns = request.sent_ns, min(entry.ttl_ns, ttl_ns)
        elif request.sent_ns < entry.since_ns:
            entry.since_ns = min(entry.since_ns, request.first_token_ns)
            entry.ttl_ns = min(entry.ttl_ns, ttl_ns)
        else:
            self._entries[place] = _Entry(request.first_token_ns, request.sent_ns, ttl_ns)
