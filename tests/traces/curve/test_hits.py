"""Request by request, against an OrderedDict LRU that knows nothing of runs."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.traces.curve.hits import HitCounts, Order, Runs, find
from kvbench.traces.curve.paths import PathTree
from kvbench.traces.curve.runs import cut

BLOCK = 4


class Asked(NamedTuple):
    at_s: int
    ids: list[int]
    tokens: int


def lru(requests: list[Asked], capacity: int, order: Order, ttl_s: int | None) -> list[int]:
    """Leading blocks that each request finds. A block is its whole prefix; what is older than the TTL is thrown out."""
    cache: OrderedDict[tuple[int, ...], int] = OrderedDict()
    found = []
    for request in requests:
        paths = [tuple(request.ids[: i + 1]) for i in range(len(request.ids))]
        if ttl_s is not None:
            for path in [path for path, touched_s in cache.items() if request.at_s - touched_s > ttl_s]:
                del cache[path]
        hits = 0
        while hits < len(paths) and paths[hits] in cache:
            hits += 1
        found.append(hits)
        for path in reversed(paths) if order == "leaf-first" else paths:
            cache[path] = request.at_s
            cache.move_to_end(path)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return found


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[Asked], list[tuple[int, int, list[int]]]]:
    """Requests, and each as (session, kept blocks, new ids). Ids are few, so that sessions share them and an id comes
    after more than one prefix."""
    sessions: dict[int, list[int]] = {}
    requests: list[Asked] = []
    deltas: list[tuple[int, int, list[int]]] = []
    now = 0
    for _ in range(draw(st.integers(1, 25))):
        session = draw(st.integers(0, 3))
        chain = sessions.get(session, [])
        kind = draw(st.sampled_from(["grows", "grows", "goes back", "anew", "as another"]))
        new = draw(st.lists(st.integers(0, 3), max_size=5))
        kept = len(chain) if kind == "grows" else draw(st.integers(0, len(chain))) if kind == "goes back" else 0
        if kind == "as another" and requests:
            like = draw(st.sampled_from(requests)).ids
            new = like[: draw(st.integers(0, len(like)))] + new[:2]
        chain = chain[:kept] + new
        sessions[session] = chain
        lacks = draw(st.integers(0, BLOCK - 1)) if chain else 0
        now += draw(st.sampled_from([0, 1, 4]))
        requests.append(Asked(now, chain, len(chain) * BLOCK - lacks))
        deltas.append((session, kept, new))
    return requests, deltas


def runs_of(deltas: list[tuple[int, int, list[int]]]) -> tuple[Runs, PathTree]:
    tree = PathTree()
    ends: dict[int, tuple[int, int]] = {}
    nodes, depths = [], []
    for session, kept, new in deltas:
        ends[session] = tree.extend(ends.get(session, (0, 0))[0], kept, new)
        nodes.append(ends[session][0])
        depths.append(ends[session][1])
    return cut(tree, np.array(nodes, np.int32), np.array(depths, np.int64)), tree


@settings(max_examples=150, deadline=None)
@given(traffic(), st.sampled_from(["leaf-first", "root-first"]), st.sampled_from([None, 0, 3]), st.integers(1, 30))
def test_every_request_finds_what_an_lru_has(
    made: tuple[list[Asked], list[tuple[int, int, list[int]]]], order: Order, ttl_s: int | None, capacity: int
) -> None:
    requests, deltas = made
    runs, tree = runs_of(deltas)
    at_s = np.array([request.at_s for request in requests])
    tokens = np.array([request.tokens for request in requests])
    fresh = None if ttl_s is None else at_s[runs.request] - at_s[runs.previous] <= ttl_s
    found = find(runs, order)
    expected = lru(requests, capacity, order, ttl_s)
    for i, request in enumerate(requests):
        only = np.arange(len(requests)) == i
        counts = HitCounts(runs, found, order, block_size=BLOCK, input_tokens=tokens, counted=only, fresh=fresh)
        assert counts.hit_blocks(np.array([capacity])).tolist() == [expected[i]]
        assert counts.hit_tokens(np.array([capacity])).tolist() == [min(expected[i] * BLOCK, request.tokens)]
    assert len(tree.pool) == len({tuple(r.ids[:k]) for r in requests for k in range(1, len(r.ids) + 1)})


@settings(max_examples=50, deadline=None)
@given(traffic(), st.sampled_from(["leaf-first", "root-first"]), st.sampled_from([0.1, 0.5, 0.9]))
def test_capacity_for_a_hit_rate_is_the_least(
    made: tuple[list[Asked], list[tuple[int, int, list[int]]]], order: Order, rate: float
) -> None:
    requests, deltas = made
    runs, _ = runs_of(deltas)
    tokens = np.array([request.tokens for request in requests])
    counts = HitCounts(runs, find(runs, order), order, block_size=BLOCK, input_tokens=tokens)
    by_block = {c: sum(lru(requests, c, order, None)) for c in range(1, 140)} | {0: 0}
    assert counts.hit_blocks_unbounded == by_block[139]
    assert counts.sufficient_blocks == min(c for c in by_block if by_block[c] == by_block[139])
    total = sum(len(request.ids) for request in requests)
    enough = [c for c in by_block if total and by_block[c] >= rate * total]
    assert counts.capacity_for(rate, "block") == (min(enough) if enough else None)


def test_ids_beyond_64_bits_are_told_apart() -> None:
    top = (1 << 64) - 1
    runs, tree = runs_of([(0, 0, [top, top - 1]), (1, 0, [top, top - 2]), (2, 0, [1 << 90 | 7])])
    assert runs.blocks.tolist() == [1]
    assert len(tree.pool) == 4


def test_a_long_session_is_linear_in_runs() -> None:
    """One session of 3,000 turns that drops its last block each time: every turn finds one run, and leaves a branch."""
    turns = 3_000
    runs, _ = runs_of([(0, 2 * turn, [10 * turn, 10 * turn + 1, 10 * turn + 2]) for turn in range(turns)])
    assert len(runs.request) == turns - 1
    assert runs.previous.tolist() == list(range(turns - 1))
