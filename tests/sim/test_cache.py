from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.sim.cache import BlockHasher, BlockPool
from kvbench.sim.tokenizer import encode_ids

DATA = os.environ.get("KVBENCH_TEST_DATA")


def serve(pool: BlockPool, chain: list[int]) -> int:
    """One request from admission to its end; hits in blocks, the last block hit like any other."""
    chain = chain[: pool.capacity]
    hits = pool.find(chain)
    blocks = pool.take(hits, len(chain) - len(hits))
    assert blocks is not None
    for block, block_hash in zip(blocks, chain, strict=True):
        pool.publish(block, block_hash)
    pool.release(blocks)
    return len(hits)


def brute_force(requests: list[list[int]], capacity: int) -> list[int]:
    """Hits of each request: evict, one at a time, the block used longest ago among those nobody's chain goes through.

    Independent of the pool: an explicit clock, a scan over everything, and the tree's leaves found anew each time.
    """
    used: dict[int, tuple[int, int]] = {}
    parent: dict[int, int | None] = {}
    hits = []
    for now, chain in enumerate(requests):
        found = 0
        while found < len(chain) and chain[found] in used:
            found += 1
        hits.append(found)
        for depth, block in enumerate(chain):
            used[block] = (now, -depth)
            parent[block] = chain[depth - 1] if depth else None
        while len(used) > capacity:
            inner = {parent[block] for block in used}
            del used[min((block for block in used if block not in inner), key=lambda block: used[block])]
    return hits


@st.composite
def chains(draw: st.DrawFn) -> list[list[int]]:
    """Requests as paths from the root of a random tree, so that ids are chained as hashes of prefixes are."""
    parents = draw(st.lists(st.integers(0, 30), min_size=1, max_size=30))
    paths: list[list[int]] = [[]]
    for block, parent in enumerate(parents):
        paths.append([*paths[parent % len(paths)], block])
    return [paths[pick % len(paths)] for pick in draw(st.lists(st.integers(0, 1000), min_size=1, max_size=40))]


@given(chains(), st.integers(1, 20))
def test_hits_equal_a_brute_force_leaf_lru(requests: list[list[int]], capacity: int) -> None:
    pool = BlockPool(capacity + 1)
    assert [serve(pool, chain) for chain in requests] == brute_force(requests, capacity)


@given(chains(), st.integers(1, 20))
def test_a_limit_apart_from_the_pool_is_the_same_lru(requests: list[list[int]], limit: int) -> None:
    pool = BlockPool(1000, idle_limit=limit)
    assert [serve(pool, chain) for chain in requests] == brute_force(requests, limit)
    assert pool.free == 999


def brute_force_copies(requests: list[list[int]], capacity: int, eviction: str) -> list[int]:
    """Hits where a request's head may go before its tail: what is computed again is then a second copy of it.

    Independent of the pool: a list of all copies, each with when it was written and released, scanned for the minimum.
    """
    copies: list[dict[str, int]] = []
    hits, writings = [], 0
    for now, chain in enumerate(requests):
        chain = chain[:capacity]
        mine: list[dict[str, int]] = []
        for content in chain:
            found = [copy for copy in copies if copy["content"] == content]
            if not found:
                break
            mine.append(min(found, key=lambda copy: copy["written"]))
        hits.append(len(mine))
        idle = [copy for copy in copies if all(copy is not other for other in mine)]
        for content in chain[len(mine) :]:
            if len(copies) == capacity:
                gone = min(idle, key=lambda copy: copy["written" if eviction == "fifo" else "released"])
                idle = [copy for copy in idle if copy is not gone]
                copies = [copy for copy in copies if copy is not gone]
            writings += 1
            new = {"content": content, "written": writings}
            mine.append(new)
            copies.append(new)
        for place, copy in enumerate(mine):
            copy["released"] = now * 1000 + place
    return hits


@given(chains(), st.integers(1, 20), st.sampled_from(["fifo", "head_first"]))
def test_other_orders_equal_a_brute_force(
    requests: list[list[int]], capacity: int, eviction: Literal["fifo", "head_first"]
) -> None:
    pool = BlockPool(capacity + 1, eviction=eviction)
    assert [serve(pool, chain) for chain in requests] == brute_force_copies(requests, capacity, eviction)


@pytest.mark.parametrize("eviction", ["lru", "fifo", "head_first"])
def test_what_goes_first_by_hand(eviction: Literal["lru", "fifo", "head_first"]) -> None:
    """Eight blocks: 1-4 written, 5-8 written, 1-4 used again, one more needed."""
    pool = BlockPool(9, eviction=eviction)
    for chain in ([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4], [9]):
        serve(pool, chain)
    lost = {"lru": 8, "fifo": 1, "head_first": 5}[eviction]
    assert [n for n in range(1, 9) if pool.lookup(n) is None] == [lost]
    assert len(pool.find([5, 6, 7, 8])) == {"lru": 3, "fifo": 4, "head_first": 0}[eviction]
    assert len(pool.find([1, 2, 3, 4])) == (0 if eviction == "fifo" else 4)


def test_without_refresh_a_life_counts_from_writing() -> None:
    lost: list[tuple[int, int]] = []
    pool = BlockPool(5, ttl_ns=100, refresh_on_hit=False, on_lost=lambda *of: lost.append(of))
    first = pool.take([], 2)
    assert first is not None
    pool.publish(first[0], 1, now_ns=10)
    pool.publish(first[1], 2, now_ns=60)
    pool.release(first, now_ns=70)
    assert len(pool.find([1, 2], now_ns=109)) == 2
    again = pool.take(pool.find([1, 2], now_ns=109), 0)
    assert again is not None
    # It is in use when its time comes: nobody else gets it, and it is free when it is released.
    assert pool.find([1, 2], now_ns=110) == []
    pool.release(again, now_ns=120)
    assert pool.lookup(2) == first[1]
    assert pool.find([2], now_ns=160) == []
    assert lost == [(1, 110), (2, 160)]
    assert pool.free == 4
    assert pool.evictions == 0


def test_content_is_lost_with_its_last_copy_and_dropped_content_goes_nowhere() -> None:
    lost: list[int] = []
    pool = BlockPool(4, on_lost=lambda content, _: lost.append(content))
    for content in (7, 7, 8):
        taken = pool.take([], 1)
        assert taken is not None
        pool.publish(taken[0], content)
        pool.release(taken)
    pool.drop([pool.find([8])[0]])
    assert pool.lookup(8) is None
    taken = pool.take([], 2)  # the dropped one, then the first copy of 7
    assert (lost, pool.evictions) == ([], 1)
    assert pool.take([], 1) is not None
    assert lost == [7]


@pytest.mark.parametrize("eviction", ["lru", "fifo"])
def test_what_is_remembered_of_writings_does_not_grow_with_them(eviction: Literal["lru", "fifo"]) -> None:
    pool = BlockPool(101, ttl_ns=5, eviction=eviction, refresh_on_hit=eviction == "fifo")
    lasting = BlockPool(11, ttl_ns=10**18, eviction=eviction, refresh_on_hit=False)
    for now in range(5000):
        for each in (pool, lasting):
            assert each.find([now]) == []
            blocks = each.take((), 1, now)
            assert blocks is not None
            each.publish(blocks[0], now, now)
            each.release(blocks, now)
            assert each.find([now], now) == blocks
    for each in (pool, lasting):
        assert len(each._by_writing) + len(each._by_deadline) < 2500
    # What was written last is still there, and goes in its order.
    assert [len(lasting.find([number], 5000)) for number in range(4989, 5000)] == [0, *[1] * 10]


def test_another_tenants_blocks_evict_like_any() -> None:
    pool = BlockPool(5)
    serve(pool, [1, 2, 3, 4])
    pool.write_foreign(99, 0)
    assert len(pool.find([1, 2, 3, 4])) == 3
    held = pool.take([], 4)
    assert held is not None
    pool.write_foreign(98, 0)  # all blocks are pinned: it finds no room
    assert pool.lookup(98) is None
    assert pool.free == 0


def test_blocks_without_content_do_not_count_against_the_limit() -> None:
    pool = BlockPool(100, idle_limit=2)
    blocks = pool.take([], 5)
    assert blocks is not None
    for block, block_hash in zip(blocks[:2], (1, 2), strict=True):
        pool.publish(block, block_hash)
    pool.release(blocks)
    assert pool.find([1, 2]) == blocks[:2]
    assert pool.evictions == 0
    other = pool.take([], 1)
    assert other is not None
    pool.publish(other[0], 9)
    pool.release(other)
    assert pool.find([1, 2]) == blocks[:1]
    assert pool.evictions == 1


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("trace", "reference", "capacities"),
    [
        ("conversation_first400.jsonl", "mooncake_conversation_first400.json", (100, 500, 1000, 2000, 5000, None)),
        ("conversation_trace.jsonl", "mooncake_conversation_leaf-first.json", (1000, 10_000, 50_000)),
    ],
)
def test_hits_equal_the_independent_reference(trace: str, reference: str, capacities: tuple[int | None, ...]) -> None:
    assert DATA is not None
    rows = [json.loads(line) for line in (Path(DATA) / "mooncake" / trace).read_text().splitlines()]
    rows.sort(key=lambda row: row["timestamp"])
    expected = {row["cap"]: row for row in json.loads((Path(DATA) / "reference" / reference).read_text())["rows"]}
    for capacity in capacities:
        pool = BlockPool((capacity or 10_000_000) + 1)
        assert sum(serve(pool, row["hash_ids"]) for row in rows) == expected[capacity]["hit_blocks"], capacity
        assert pool.free == pool.capacity


def test_blocks_of_running_requests_are_pinned() -> None:
    pool = BlockPool(5)  # four usable: one is the null block
    running = pool.take([], 3)
    assert running is not None
    assert pool.take([], 2) is None
    assert pool.free == 1
    for block, block_hash in zip(running, (1, 2, 3), strict=True):
        pool.publish(block, block_hash)
    # A second request shares two of them; they become free only after both have ended.
    shared = pool.take(pool.find([1, 2]), 0)
    assert shared == running[:2]
    pool.release(running)
    assert pool.free == 2
    pool.release(shared)
    assert pool.free == 4


def test_a_refused_admission_changes_nothing() -> None:
    pool = BlockPool(4)
    blocks = pool.take([], 2)
    assert blocks is not None
    for block, block_hash in zip(blocks, (1, 2), strict=True):
        pool.publish(block, block_hash)
    pool.release(blocks)
    # Two hits and two new ones do not fit three blocks, though three are free.
    assert pool.take(pool.find([1, 2]), 2) is None
    assert pool.find([1, 2]) == blocks
    assert pool.free == 3
    assert pool.evictions == 0


def test_the_tail_of_the_oldest_request_goes_first() -> None:
    pool = BlockPool(9)
    serve(pool, [1, 2, 3, 4])
    serve(pool, [5, 6, 7, 8])
    serve(pool, [9])
    assert len(pool.find([1, 2, 3, 4])) == 3
    assert len(pool.find([5, 6, 7, 8])) == 4
    assert pool.evictions == 1


def test_an_equal_block_computed_again_is_a_second_copy() -> None:
    pool = BlockPool(4)
    first, second = pool.take([], 1), pool.take([], 1)
    assert first is not None
    assert second is not None
    pool.publish(first[0], 77)
    pool.publish(second[0], 77)
    pool.release(first)
    pool.release(second)
    # The one never used goes first, then the first copy; the second still answers.
    assert pool.take([], 2) is not None
    assert pool.find([77]) == second


def test_idle_blocks_are_forgotten_after_their_ttl() -> None:
    pool = BlockPool(5, ttl_ns=100)
    blocks = pool.take([], 2)
    assert blocks is not None
    for block, block_hash in zip(blocks, (1, 2), strict=True):
        pool.publish(block, block_hash)
    assert pool.find([1, 2], now_ns=10_000) == blocks  # in use: not idle
    pool.release(blocks, now_ns=10_000)
    assert pool.find([1, 2], now_ns=10_099) == blocks
    assert pool.find([1, 2], now_ns=10_100) == []
    assert pool.free == 4
    assert pool.take([], 4) is not None
    assert pool.evictions == 0


def test_reset_is_refused_while_blocks_are_in_use() -> None:
    pool = BlockPool(4)
    blocks = pool.take([], 1)
    assert blocks is not None
    pool.publish(blocks[0], 1)
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.find([1]) == []
    assert pool.take([], 3) is not None


def test_hashes_cover_salt_and_everything_before() -> None:
    def hashes(ids: list[int], salt: str | None = None) -> list[int]:
        hasher = BlockHasher(2, salt)
        hasher.extend(encode_ids(ids))
        return hasher.hashes

    whole = hashes([1, 2, 3, 4, 5])
    assert len(whole) == 2
    piecewise = BlockHasher(2, None)
    for token in (1, 2, 3, 4, 5):
        piecewise.extend(encode_ids([token]))
    assert piecewise.hashes == whole
    assert hashes([1, 2, 9, 4])[0] == whole[0]
    assert hashes([1, 2, 9, 4])[1] != whole[1]
    assert hashes([9, 2, 3, 4])[1] != whole[1]
    assert set(hashes([1, 2, 3, 4], "s")).isdisjoint(whole)
