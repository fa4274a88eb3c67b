"""Expected prefix-cache hits on token ids, as an interval [floor, ceiling] per request.

The rule (first form) is vLLM's: a prompt of p tokens reports floor(min(match, p - 1) / block) * block cached tokens,
where match is the longest prefix whose blocks an earlier request computed under the same salt; the last token is
always computed. A block is *surely* there once a request that holds it had its first token before this one was sent,
and *possibly* there once a request that holds it was sent before this one's first token. Where the two counts agree
the expectation is a point; they differ only while an overlapping request shares a prefix that was not cached yet.

Generated tokens are cached too, all but the last sampled one. Where the server gave their ids they are blocks like any
other, surely there once the request has ended. Else their ids are not known (re-tokenised output may have other ids),
so they only raise the ceiling, by as many tokens as the re-sent text can share with them.

Eviction is assumed to be none while everything ever stored fits the known capacity. Beyond it the floor is what an
LRU of that size, less the most that running requests pinned, still holds; the ceiling stays.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvbench.model import Expectation

FAR_NS = 1 << 62


@dataclass(frozen=True)
class BlockRule:
    """Hits come in whole blocks of `block_size` tokens; capacity_tokens None = not known."""

    block_size: int
    capacity_tokens: int | None = None

    @property
    def name(self) -> str:
        return f"block {self.block_size}"

    def usable_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        return min(match_tokens, prompt_tokens - 1) // self.block_size * self.block_size


@dataclass(frozen=True)
class Sent:
    """A request as the expectation sees it. `ids` are the prompt's token ids (array of uint32).

    first_token_ns: when its whole prompt was surely computed; None = never (it failed before that).
    output_tokens: generated tokens, all but the last of which it may leave in the cache. output_ids: their ids, where
    the server gave them.
    """

    key: str
    session_id: str
    salt: str
    ids: array[int]
    sent_ns: int
    first_token_ns: int | None
    end_ns: int | None
    output_tokens: int = 0
    output_ids: array[int] | None = None


@dataclass
class _Tail:
    """The open end of a request's prompt: ids after its last whole block, then tokens it generated."""

    ids: bytes
    extra_tokens: int


@dataclass
class _Block:
    """Who can have brought a block into the cache: the first request that held it, and the first other one."""

    holder: str
    possible_ns: int
    other_ns: int = FAR_NS
    sure_ns: int = FAR_NS


@dataclass
class _Pending:
    sent: Sent
    hashes: list[bytes]
    lru_blocks: int | None


@dataclass
class _Session:
    ids: array[int] = field(default_factory=lambda: array("I"))
    hashes: list[bytes] = field(default_factory=list)
    salt: str = ""
    last: Sent | None = None


class HitModel:
    """Feeds on requests in order of sending and gives each one's expectation to `emit(key, Expectation)`.

    An expectation is emitted as soon as every request that could still matter (sent before its first token) is
    known, so memory holds the blocks ever seen and the requests in flight, not the run.
    """

    def __init__(self, rule: BlockRule, emit: Callable[[str, Expectation], None]) -> None:
        self.rule = rule
        self._emit = emit
        self._blocks: dict[bytes, _Block] = {}
        self._tails: dict[bytes, list[_Tail]] = {}
        self._sessions: dict[str, _Session] = {}
        self._pending: list[_Pending] = []
        self._lru: OrderedDict[bytes, None] = OrderedDict()
        self._evicted = False
        self._running: list[tuple[int, int]] = []  # (end_ns, blocks) of requests that pin theirs
        self._last_sent_ns = -1

    def add(self, sent: Sent, resent_bytes: int = 0) -> None:
        """Register a request. `resent_bytes` bounds how many tokens of the session's previous output this prompt
        can repeat right after the previous prompt: the bytes the re-sent text has in common with that output."""
        if sent.sent_ns < self._last_sent_ns:
            raise ValueError("requests must come in order of sending")
        self._last_sent_ns = sent.sent_ns
        self._settle(sent.sent_ns)
        session = self._sessions.setdefault(sent.session_id, _Session())
        self._open_tail(session, resent_bytes)
        hashes = self._chain(session, sent)
        computed_ns = sent.first_token_ns if sent.first_token_ns is not None else FAR_NS
        generated = self._generated(sent, hashes)
        for value in hashes:
            self._hold(value, sent, computed_ns)
        for value in generated:
            self._hold(value, sent, sent.end_ns if sent.end_ns is not None else FAR_NS)
        total_blocks = -(-(len(sent.ids) + sent.output_tokens) // self.rule.block_size)
        self._pending.append(_Pending(sent, hashes, self._touch_lru(sent, hashes, generated, total_blocks)))

    def finish(self) -> None:
        """Emit what is still pending: no further request will come."""
        self._settle(FAR_NS)

    # ------------------------------------------------------------------------------------------------ internals

    def _hold(self, value: bytes, sent: Sent, computed_ns: int) -> None:
        block = self._blocks.get(value)
        if block is None:
            block = self._blocks[value] = _Block(sent.key, sent.sent_ns)
        elif block.other_ns == FAR_NS and block.holder != sent.key:
            block.other_ns = sent.sent_ns
        block.sure_ns = min(block.sure_ns, computed_ns)

    def _generated(self, sent: Sent, hashes: list[bytes]) -> list[bytes]:
        """Blocks that end in generated tokens of known ids."""
        if sent.output_ids is None or len(sent.output_ids) < 2:
            return []
        whole = len(hashes)
        size = self.rule.block_size
        tail = sent.ids[whole * size :] + sent.output_ids[:-1]
        return list(chain_hashes(tail, size, sent.salt, previous=hashes[-1] if hashes else None))

    def _settle(self, now_ns: int) -> None:
        keep = []
        for pending in self._pending:
            if _decided_ns(pending.sent) <= now_ns:
                self._emit(pending.sent.key, self._expect(pending))
            else:
                keep.append(pending)
        self._pending = keep

    def _expect(self, pending: _Pending) -> Expectation:
        sent, rule = pending.sent, self.rule
        looked_up_ns = _decided_ns(sent)
        sure = possible = 0
        for value in pending.hashes:
            block = self._blocks[value]
            if sure == possible and block.sure_ns <= sent.sent_ns:
                sure += 1
            elif (block.other_ns if block.holder == sent.key else block.possible_ns) >= looked_up_ns:
                break
            possible += 1
        reason = "an overlapping request shares a prefix that was not cached yet" if possible > sure else None
        ceiling_tokens = self._with_generated(sent, pending.hashes, possible)
        if ceiling_tokens > possible * rule.block_size:
            reason = reason or "the prompt may repeat generated tokens"
        if pending.lru_blocks is not None and pending.lru_blocks < sure:
            sure = pending.lru_blocks
            reason = "more was stored than the cache holds: floor by LRU"
        floor = rule.usable_tokens(sure * rule.block_size, len(sent.ids))
        ceiling = rule.usable_tokens(ceiling_tokens, len(sent.ids))
        return Expectation(
            rule=rule.name,
            input_tokens=len(sent.ids),
            floor=floor,
            ceiling=ceiling,
            reason=reason if floor < ceiling else None,
        )

    def _with_generated(self, sent: Sent, hashes: list[bytes], matched: int) -> int:
        """Tokens that match at most, when a prompt goes on where a request's output did."""
        start = matched * self.rule.block_size
        best = start
        for tail in self._tails.get(_tail_key(sent.salt, hashes, matched), ()):
            end = start + len(tail.ids) // sent.ids.itemsize
            if sent.ids[start:end].tobytes() == tail.ids:
                best = max(best, end + tail.extra_tokens)
        return best

    def _open_tail(self, session: _Session, resent_bytes: int) -> None:
        last = session.last
        if last is None or resent_bytes <= 0 or last.output_tokens < 2:
            return
        whole = len(session.hashes)
        tail = _Tail(last.ids[whole * self.rule.block_size :].tobytes(), min(last.output_tokens - 1, resent_bytes))
        self._tails.setdefault(_tail_key(last.salt, session.hashes, whole), []).append(tail)

    def _chain(self, session: _Session, sent: Sent) -> list[bytes]:
        """Chained hashes of the prompt's whole blocks; what the session's previous prompt had is not hashed again."""
        kept = _common_blocks(session.ids, sent.ids, self.rule.block_size) if session.salt == sent.salt else 0
        hashes = session.hashes[:kept]
        previous = hashes[-1] if kept else None
        hashes.extend(chain_hashes(sent.ids, self.rule.block_size, sent.salt, start=kept, previous=previous))
        session.ids, session.hashes, session.salt, session.last = sent.ids, hashes, sent.salt, sent
        return hashes

    def _touch_lru(self, sent: Sent, hashes: list[bytes], generated: list[bytes], total_blocks: int) -> int | None:
        """Leading blocks an LRU of the known capacity still holds; None while nothing was ever evicted.

        Touched last to first, generated blocks before the prompt's, so that a tail goes before its head. What
        running requests pin is taken off the capacity once more: their order of release is not known.
        """
        if self.rule.capacity_tokens is None:
            return None
        held = 0
        for value in hashes:
            if value not in self._lru:
                break
            held += 1
        before = self._evicted
        for i in range(total_blocks - len(hashes) - len(generated)):
            self._lru[f"{sent.key}/{i}".encode()] = None
        for value in reversed([*hashes, *generated]):
            self._lru[value] = None
            self._lru.move_to_end(value)
        self._running = [(end, blocks) for end, blocks in self._running if end > sent.sent_ns]
        pinned = sum(blocks for _, blocks in self._running)
        self._running.append((sent.end_ns if sent.end_ns is not None else FAR_NS, total_blocks))
        room = max(0, self.rule.capacity_tokens // self.rule.block_size - pinned)
        while len(self._lru) > room:
            self._lru.popitem(last=False)
            self._evicted = True
        return held if before else None


def _decided_ns(sent: Sent) -> int:
    """From when on no further request can change what this one found: its first token, or else its end."""
    if sent.first_token_ns is not None:
        return sent.first_token_ns
    return sent.end_ns if sent.end_ns is not None else FAR_NS


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


def _common_blocks(a: array[int], b: array[int], block_size: int) -> int:
    """How many whole leading blocks two prompts share, by bisection on equality of bytes."""
    low, high = 0, min(len(a), len(b)) // block_size
    left, right, width = memoryview(a).cast("B"), memoryview(b).cast("B"), block_size * a.itemsize
    while low < high:
        middle = (low + high + 1) // 2
        if left[: middle * width] == right[: middle * width]:
            low = middle
        else:
            high = middle - 1
    return low
