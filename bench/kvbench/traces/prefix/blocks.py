"""Hits in whole blocks of a stored prefix (rules `block`, `block-replay` and `steps`).

A block is *surely* there once a request that holds it had its first token before this one was sent, and *possibly*
there once a request that holds it was sent before this one's first token. Where the two counts agree the expectation
is a point; they differ only while an overlapping request shares a prefix that was not cached yet.

Generated tokens are cached too, all but the last sampled one. Where the server gave their ids they are blocks like any
other, surely there once the request has ended. Else their ids are not known (re-tokenised output may have other ids),
so they only raise the ceiling, by as many tokens as the re-sent text can share with them.

With a known capacity, what is there is also bounded by what was evicted (residency.py).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from kvbench.model import Expectation
from kvbench.traces.prefix.residency import Held, Residency
from kvbench.traces.prefix.rules import FAR_NS, BlockRule, Sent, StepsRule

OVERLAP = "an overlapping request shares a prefix that was not cached yet"
GENERATED = "the prompt may repeat generated tokens"
EVICTION = "more was stored than the cache holds, and overlapping requests leave the order of eviction open"
LAST_TOKEN = "whether a hit may include the last token is not documented"


@dataclass(slots=True)
class _Tail:
    """The open end of a request's prompt: ids after its last whole block, then tokens it generated."""

    ids: bytes
    extra_tokens: int


@dataclass(slots=True)
class _Block:
    """Who can have brought a block into the cache: the first request that held it, and the first other one."""

    holder: str
    possible_ns: int
    other_ns: int = FAR_NS
    sure_ns: int = FAR_NS

    def by_others(self, key: str) -> int:
        return self.other_ns if self.holder == key else self.possible_ns

    def closed(self, now_ns: int) -> bool:
        return self.other_ns < FAR_NS and self.sure_ns <= now_ns


@dataclass(slots=True)
class _Session:
    ids: array[int] = field(default_factory=lambda: array("I"))
    hashes: list[bytes] = field(default_factory=list)
    salt: str = ""
    last: Sent | None = None
    unnamed: list[Hashable] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    sent: Sent
    hashes: list[bytes]
    generated: list[bytes]
    session: _Session
    repeats: bool
    """Whether it may repeat generated tokens of unknown ids."""
    held: Held


class BlockHits:
    """See HitModel, whose interface this is."""

    def __init__(self, rule: BlockRule | StepsRule, emit: Callable[[str, Expectation], None]) -> None:
        self.rule = rule
        self._emit = emit
        self._blocks: dict[bytes, _Block] = {}
        self._tails: dict[bytes, list[_Tail]] = {}
        self._sessions: dict[str, _Session] = {}
        self._pending: deque[_Pending] = deque()
        capacity = rule.capacity_tokens
        self._residency = None if capacity is None else Residency(capacity // rule.block_size)
        self._last_sent_ns = -1

    def add(self, sent: Sent, resent_bytes: int = 0) -> None:
        if sent.sent_ns < self._last_sent_ns:
            raise ValueError("requests must come in order of sending")
        self._last_sent_ns = sent.sent_ns
        self._settle(sent.sent_ns)
        session = self._sessions.setdefault(sent.session_id, _Session())
        repeats = self._open_tail(session, resent_bytes)
        hashes = self._chain(session, sent)
        generated = self._generated(sent, hashes)
        self._hold(hashes, sent, sent.computed_ns)
        self._hold(generated, sent, sent.released_ns)
        tokens = len(sent.ids) + max(0, sent.output_tokens - 1)
        whole, part = divmod(tokens, self.rule.block_size)
        held = Held(sent.sent_ns, sent.released_ns, whole, 1 if part else 0, failed=sent.first_token_ns is None)
        if self._residency is not None:
            self._residency.register(held)
        self._pending.append(_Pending(sent, hashes, generated, session, repeats, held))

    def finish(self) -> None:
        self._settle(FAR_NS)

    # ------------------------------------------------------------------------------------------------ internals

    def _settle(self, now_ns: int) -> None:
        while self._pending and self._pending[0].sent.decided_ns <= now_ns:
            pending = self._pending.popleft()
            self._emit(pending.sent.key, self._expect(pending))

    def _expect(self, pending: _Pending) -> Expectation:
        sent, rule, hashes, residency = pending.sent, self.rule, pending.hashes, self._residency
        key, sent_ns, looked_up_ns, blocks = sent.key, sent.sent_ns, sent.decided_ns, self._blocks
        possible = _leading(hashes, len(hashes), lambda value: blocks[value].by_others(key) < looked_up_ns)
        resident = len(hashes)
        if residency is not None:
            later = [p for p in self._pending if p.sent.sent_ns < looked_up_ns]
            named = hashes + pending.generated
            resident, at_most = residency.find(pending.held, named, [p.held for p in later])
            # what a later request brings is there if it overtook this one
            overtaken = max((common_prefix(hashes, p.hashes + p.generated) for p in later), default=0)
            possible = min(possible, max(at_most, overtaken))
            self._lapse(pending, named[resident:])
        sure = _leading(hashes, min(resident, possible), lambda value: blocks[value].sure_ns <= sent_ns)
        reason = None if sure == possible else OVERLAP if sure < resident else EVICTION
        ceiling_tokens = self._with_generated(sent, hashes, possible)
        if ceiling_tokens > possible * rule.block_size:
            reason = reason or GENERATED
        floor = rule.floor_tokens(sure * rule.block_size, len(sent.ids))
        ceiling = rule.ceiling_tokens(ceiling_tokens, len(sent.ids))
        if residency is not None:
            self._store(residency, pending, floor, ceiling)
        return Expectation(
            rule=rule.name,
            input_tokens=len(sent.ids),
            floor=floor,
            ceiling=ceiling,
            reason=(reason or LAST_TOKEN) if floor < ceiling else None,
        )

    def _lapse(self, pending: _Pending, evicted: list[bytes]) -> None:
        """Blocks that may have been evicted are surely there again only when this request has computed them."""
        sent, last = pending.sent, len(evicted) - len(pending.generated)
        for i, value in enumerate(evicted):
            block = self._blocks[value]
            if block.sure_ns <= sent.sent_ns:
                block.sure_ns = sent.computed_ns if i < last else sent.released_ns

    def _store(self, residency: Residency, pending: _Pending, floor: int, ceiling: int) -> None:
        session, size = pending.session, self.rule.block_size
        if pending.repeats:
            residency.may_be_repeated(session.unnamed)
        named = pending.hashes + pending.generated
        session.unnamed = residency.store(pending.held, named, floor // size, ceiling // size)

    def _hold(self, hashes: list[bytes], sent: Sent, computed_ns: int) -> None:
        blocks, key, sent_ns = self._blocks, sent.key, sent.sent_ns
        # where two requests held a block, one of which is done, there is nothing to add to it or to those before it
        done = _leading(hashes, len(hashes), lambda value: value in blocks and blocks[value].closed(sent_ns))
        for value in hashes[done:]:
            block = blocks.get(value)
            if block is None:
                blocks[value] = _Block(key, sent_ns, FAR_NS, computed_ns)
                continue
            if block.other_ns == FAR_NS and block.holder != key:
                block.other_ns = sent_ns
            if computed_ns < block.sure_ns:
                block.sure_ns = computed_ns

    def _generated(self, sent: Sent, hashes: list[bytes]) -> list[bytes]:
        """Blocks that end in generated tokens of known ids."""
        if sent.output_ids is None or len(sent.output_ids) < 2:
            return []
        tail = sent.ids[len(hashes) * self.rule.block_size :] + sent.output_ids[:-1]
        return list(chain_hashes(tail, self.rule.block_size, sent.salt, previous=hashes[-1] if hashes else None))

    def _with_generated(self, sent: Sent, hashes: list[bytes], matched: int) -> int:
        """Tokens that match at most, when a prompt goes on where a request's output did."""
        start = matched * self.rule.block_size
        best = start
        for tail in self._tails.get(_tail_key(sent.salt, hashes, matched), ()):
            end = start + len(tail.ids) // sent.ids.itemsize
            if sent.ids[start:end].tobytes() == tail.ids:
                best = max(best, end + tail.extra_tokens)
        return best

    def _open_tail(self, session: _Session, resent_bytes: int) -> bool:
        last = session.last
        if last is None or resent_bytes <= 0 or last.output_tokens < 2 or last.output_ids is not None:
            return False
        whole = len(session.hashes)
        tail = _Tail(last.ids[whole * self.rule.block_size :].tobytes(), min(last.output_tokens - 1, resent_bytes))
        self._tails.setdefault(_tail_key(last.salt, session.hashes, whole), []).append(tail)
        return True

    def _chain(self, session: _Session, sent: Sent) -> list[bytes]:
        """Chained hashes of the prompt's whole blocks; what the session's previous prompt had is not hashed again."""
        kept = _common_blocks(session.ids, sent.ids, self.rule.block_size) if session.salt == sent.salt else 0
        hashes = session.hashes[:kept]
        previous = hashes[-1] if kept else None
        hashes.extend(chain_hashes(sent.ids, self.rule.block_size, sent.salt, start=kept, previous=previous))
        session.ids, session.hashes, session.salt, session.last = sent.ids, hashes, sent.salt, sent
        return hashes


def _leading(hashes: list[bytes], count: int, holds: Callable[[bytes], bool]) -> int:
    """How many of the first `count` hold, by bisection: what holds for a block holds for those before it, as whoever
    has it has them too."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(hashes[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def _tail_key(salt: str, hashes: list[bytes], blocks: int) -> bytes:
    return hashes[blocks - 1] if blocks else b"salt:" + salt.encode()


def chain_hashes(
    ids: array[int], block_size: int, salt: str, *, start: int = 0, previous: bytes | None = None
) -> Iterator[bytes]:
    """128-bit hashes of whole blocks from block `start` on, each standing for the whole prefix up to its end."""
    data = ids.tobytes()
    width = block_size * ids.itemsize
    value = previous if previous is not None else salt.encode()
    for offset in range(start * width, len(data) - width + 1, width):
        value = hashlib.blake2b(value + data[offset : offset + width], digest_size=16).digest()
        yield value


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many leading hashes two chains share, by bisection: chained hashes agree up to where they part."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_blocks(a: array[int], b: array[int], block_size: int) -> int:
    """How many whole leading blocks two prompts share, by bisection on equality of bytes."""
    low, high = 0, min(len(a), len(b)) // block_size
    left, right, width = a.tobytes(), b.tobytes(), block_size * a.itemsize
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * width : middle * width] == right[low * width : middle * width]:
            low = middle
        else:
            high = middle - 1
    return low
