"""What a run's own requests held in the KV cache whenever the server said how full it was.

Of use is a moment at which every request of the run that was there was generating: how much of a prompt is in the cache
before its first token is not known. A request then holds its prompt and what it has generated; a prefix that several of
them share is held once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.model import Record
from kvbench.runs.blocks import read_blocks
from kvbench.runs.reader import Run

MARGIN_NS = 30_000_000
"""The gauge is of the engine's last step, and what the client saw comes a little later."""
TOOK_NS = 200_000_000
"""Where a run did not note how long asking for the metrics took."""

Ints = NDArray[np.int64]


class Gauge(NamedTuple):
    """One scrape: read at some moment from asked_ns to read_ns. usage: share of the pool that requests hold, 0..1."""

    asked_ns: int
    read_ns: int
    usage: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None


class Held(NamedTuple):
    """What was held at one scrape. requests: generating; tokens: in the cache, shared ones once; squares: sum over
    requests of their tokens squared, to see a bend; who: the requests' numbers."""

    usage: float
    requests: int
    tokens: float
    squares: float
    who: tuple[int, ...]


class Observed(NamedTuple):
    """held: scrapes of use in order of time. left_out: of the others, how many for which reason."""

    held: list[Held]
    left_out: Counter[str]
    scrapes: int


FOREIGN = "the server ran another number of requests than this run had sent"
PREEMPTED = "requests waited or were preempted"
BUSY = "a prompt was being read, or a request began or ended"
UNKNOWN = "a request failed, or its tokens were not reported"


def gauges(run: Run) -> list[Gauge]:
    """All scrapes that have the gauge, of events `metrics` and `gauges`, in order of time."""
    found = []
    for event in run.events:
        values: Any = event.get("metrics") if event.get("kind") == "metrics" else event
        at = event.get("at_ns")
        if event.get("kind") not in ("metrics", "gauges") or not isinstance(values, dict) or at is None:
            continue
        took = int(event.get("took_ns", TOOK_NS))
        numbers = [values.get(name) for name in ("kv_usage", "running", "waiting", "preemptions")]
        if numbers[0] is not None:
            found.append(Gauge(int(at) - took, int(at), *numbers))
    return sorted(found, key=lambda g: g.asked_ns)


def observed(run: Run, *, shared: bool) -> Observed:
    """shared: prompts may begin alike, so their blocks (blocks.jsonl) say what is held once."""
    records = [r for r in run.records if r.clock.sent is not None or r.clock.upload_start is not None]
    sent = np.array([_began(r) for r in records], np.int64)
    first = np.array([_never if r.clock.first_token is None else r.clock.first_token for r in records], np.int64)
    ended = np.array([_never if r.clock.end is None else r.clock.end for r in records], np.int64)
    scrapes = gauges(run)
    left_out: Counter[str] = Counter()
    kept: list[tuple[Gauge, tuple[int, ...]]] = []
    for number, gauge in enumerate(scrapes):
        low, high = gauge.asked_ns - MARGIN_NS, gauge.read_ns + MARGIN_NS
        there = (sent <= high) & (ended >= low)
        steady = (first <= low) & (ended >= high)
        who = tuple(np.flatnonzero(there & steady).tolist())
        if _disturbed(scrapes, number):
            left_out[PREEMPTED] += 1
        elif (there & ~steady).any():
            left_out[BUSY] += 1
        elif any(not _known(records[i], shared) for i in who):
            left_out[UNKNOWN] += 1
        elif gauge.running is not None and gauge.running != len(who):
            left_out[FOREIGN] += 1
        else:
            kept.append((gauge, who))
    chains = _chains(run, records, {i for _, who in kept for i in who}) if shared else None
    held = [_held(gauge, who, records, chains) for gauge, who in kept]
    return Observed([h for h in held if h is not None], left_out, len(scrapes))


_never = np.iinfo(np.int64).max // 2


def _began(record: Record) -> int:
    clock = record.clock
    return next(t for t in (clock.upload_start, clock.sent) if t is not None)


def _known(record: Record, shared: bool) -> bool:
    usage = record.usage
    return record.ok and usage.input_tokens is not None and not (shared and usage.cached_tokens is None)


def _disturbed(scrapes: list[Gauge], number: int) -> bool:
    """Requests wait, or one lost its blocks since the scrape before or until the next."""
    near = [g.preemptions for g in scrapes[max(0, number - 1) : number + 2] if g.preemptions is not None]
    return bool(scrapes[number].waiting) or (len(near) > 1 and max(near) > min(near))


class _Chains(NamedTuple):
    """Whole blocks of prompts by the number of their record, and how long a block is."""

    of: dict[int, array[int]]
    block_size: int


def _chains(run: Run, records: list[Record], wanted: set[int]) -> _Chains:
    numbers = {(records[i].request_id, records[i].attempt): i for i in wanted}
    latest: dict[str, array[int]] = {}
    of: dict[int, array[int]] = {}
    size = 0
    for row in read_blocks(run.path):
        size = row.block_size
        before = latest.get(row.session_id, array("q"))
        chain = before[: row.kept] + array("q", row.new)
        latest[row.session_id] = chain
        number = numbers.get((row.request_id, row.attempt))
        if number is not None:
            of[number] = chain[: row.own]
    return _Chains(of, size)


def _held(gauge: Gauge, who: tuple[int, ...], records: list[Record], chains: _Chains | None) -> Held | None:
    """None where a request's blocks are not known."""
    assert gauge.usage is not None
    at = (gauge.asked_ns + gauge.read_ns) // 2
    lengths = [_tokens(records[i], at) for i in who]
    tokens = sum(lengths)
    if chains is not None and who:
        if any(i not in chains.of for i in who):
            return None
        tokens -= _held_by_others(who, records, chains)
    return Held(gauge.usage, len(who), tokens, sum(n * n for n in lengths), who)


def _tokens(record: Record, at_ns: int) -> float:
    """Of its prompt, and of its output in proportion to the chunks that had come: a chunk may carry several."""
    chunks = record.clock.chunks
    seen = bisect_right(chunks, at_ns)
    out = record.usage.output_tokens
    generated = seen if out is None or not chunks else out * seen / len(chunks)
    return (record.usage.input_tokens or 0) + generated


def _held_by_others(who: tuple[int, ...], records: list[Record], chains: _Chains) -> int:
    """Tokens that are counted more than once: blocks that a request found in the cache are one copy for all that found
    them, and for the one that computed them if it still runs."""
    found: set[int] = set()
    own: set[int] = set()
    total = 0
    for i in who:
        hit = (records[i].usage.cached_tokens or 0) // chains.block_size
        chain = chains.of[i]
        found.update(chain[:hit])
        own.update(chain[hit:])
        total += min(hit, len(chain))
    return (total - len(found - own)) * chains.block_size
