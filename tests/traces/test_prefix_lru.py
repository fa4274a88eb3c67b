"""The exact LRU against independent reference figures on public traces, and the hit model held to it."""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Expectation
from kvbench.traces.prefix import BlockRule, HitModel, LruPool, Sent

DATA = os.environ.get("KVBENCH_TEST_DATA")
public = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
WEKA = ("0014", "0026", "0057", "0091", "0274", "0277", "0291", "0326", "0422", "0553")


def reference(name: str) -> Any:
    return json.loads((Path(DATA or "") / "reference" / name).read_text())


def mooncake() -> list[list[int]]:
    lines = (Path(DATA or "") / "mooncake" / "conversation_first400.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["hash_ids"] for row in sorted(rows, key=lambda row: row["timestamp"])]


def weka(name: str) -> list[list[int]]:
    """Requests by time, then place in the file; a sub-agent's count from its own start."""
    trace = json.loads((Path(DATA or "") / "weka" / f"trace_{name}.json").read_text())
    timed = []
    for request in trace["requests"]:
        if request.get("type") == "subagent":
            timed += [(request["t"] + inner["t"], inner["hash_ids"]) for inner in request["requests"]]
        else:
            timed.append((request["t"], request["hash_ids"]))
    return [ids for _, ids in sorted(timed, key=lambda pair: pair[0])]


def served(pool: LruPool, capacity: int | None, blocks: Sequence[Hashable]) -> int:
    """A request that comes after all others ended: how many leading blocks it finds; then it leaves all of its."""
    found = pool.leading(blocks)
    pool.touch(blocks, found)
    if capacity is not None:
        pool.shrink(capacity)
    return found


def capacity_of(text: str) -> int | None:
    return None if text == "inf" else int(text)


@public
def test_mooncake_hits_equal_the_reference_at_every_capacity() -> None:
    requests = mooncake()
    rows = reference("mooncake_conversation_first400.json")["rows"]
    assert len(rows) == 6
    for row in rows:
        pool = LruPool()
        assert sum(served(pool, row["cap"], ids) for ids in requests) == row["hit_blocks"]
        assert len(pool) == row["resident"]


@public
@pytest.mark.parametrize("name", WEKA)
def test_weka_hits_equal_the_reference_at_every_capacity(name: str) -> None:
    requests = weka(name)
    (row,) = [row for row in reference("weka_dev_lru.json") if row["trace"] == f"trace_{name}.json"]
    capacities = [key for key, value in row.items() if isinstance(value, dict)]
    assert capacities == ["256", "512", "1024", "2048", "4096", "8192", "inf"]
    for key in capacities:
        pool = LruPool()
        assert sum(served(pool, capacity_of(key), ids) for ids in requests) == row[key]["hit_blocks"]


def hits_one_after_another(requests: list[list[int]], capacity: int) -> tuple[list[int], list[int]]:
    """Floors and ceilings in blocks. An id becomes a block of two tokens, and each prompt ends in a token of its own,
    so that the last token's rule costs nothing; its part-filled block is why the pool has a block more."""
    got: list[Expectation] = []
    model = HitModel(BlockRule(2, 2 * (capacity + 1)), lambda _, expectation: got.append(expectation))
    for i, ids in enumerate(requests):
        tokens = array("I", [token for block in ids for token in (block, 0)])
        tokens.append(1_000_000 + i)
        model.add(Sent(str(i), str(i), "", tokens, i * 10, i * 10 + 5, i * 10 + 6))
    model.finish()
    return [e.floor // 2 for e in got if e.floor is not None], [e.ceiling // 2 for e in got if e.ceiling is not None]


@public
@pytest.mark.parametrize("capacity", [500, 1000, 2000, 5000])
def test_mooncake_turns_one_after_another_have_one_expected_value_the_reference(capacity: int) -> None:
    floors, ceilings = hits_one_after_another(mooncake(), capacity)
    (row,) = [r for r in reference("mooncake_conversation_first400.json")["rows"] if r["cap"] == capacity]
    assert (sum(floors), sum(ceilings)) == (row["hit_blocks"], row["hit_blocks"])
    assert floors == ceilings


@public
@pytest.mark.parametrize(("name", "capacity"), [("0026", 512), ("0057", 256), ("0014", 2048), ("0014", 1024)])
def test_weka_turns_one_after_another_have_one_expected_value_the_reference(name: str, capacity: int) -> None:
    floors, ceilings = hits_one_after_another(weka(name), capacity)
    (row,) = [r for r in reference("weka_dev_lru.json") if r["trace"] == f"trace_{name}.json"]
    assert (sum(floors), sum(ceilings)) == (row[str(capacity)]["hit_blocks"],) * 2


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=30), st.integers(1, 8))
def test_the_pool_is_a_cache_of_leaves(paths: list[list[int]], capacity: int) -> None:
    """Stated apart: a clock, a scan for the leaf used longest ago, one eviction at a time."""
    pool, last = LruPool(), dict[tuple[int, ...], tuple[int, int]]()
    for clock, path in enumerate(paths):
        blocks = [tuple(path[: i + 1]) for i in range(len(path))]
        expected = next((i for i, block in enumerate(blocks) if block not in last), len(blocks))
        assert served(pool, capacity, blocks) == expected
        for i, block in enumerate(blocks):
            last[block] = (clock, -i)
        while len(last) > capacity:
            leaves = [b for b in last if not any(len(o) > len(b) and o[: len(b)] == b for o in last)]
            del last[min(leaves, key=lambda b: last[b])]


@pytest.mark.parametrize("filler", [28, 29, 40, 60])
def test_past_the_knee_hits_and_filler_add_up_to_the_capacity_as_on_a_real_server(filler: int) -> None:
    """A (32 blocks), W blocks of filler, A again: on vLLM 0.32 cached(A) + W is the usable capacity."""
    usable = 60
    a, fill = array("I", range(32 * 8 + 1)), array("I", range(5000, 5000 + filler * 8 - 1))
    got: dict[str, Expectation] = {}
    model = HitModel(BlockRule(8, usable * 8), got.__setitem__)
    for i, (key, ids) in enumerate((("a", a), ("w", fill), ("again", a))):
        model.add(Sent(key, key, "", ids, i * 10, i * 10 + 5, i * 10 + 6, 1))
    model.finish()
    # A's open block is empty again when the filler comes, whose own open one (of 8 tokens 7) is used and emptied too
    cached = min(32, usable - filler) * 8
    assert (got["again"].floor, got["again"].ceiling) == (cached, cached)


def test_an_aligned_prompt_leaves_a_second_copy_of_its_last_block_and_evicts_one_more() -> None:
    # pool of 4: "a" fills 2; "a" again computes its last block anew (3 used); "b" takes 1 empty and then, oldest
    # first, the first copy of a's last block; its second copy is still there for a longer prompt
    a = list(range(8))
    requests = [("a", a), ("a2", a), ("b", list(range(50, 58))), ("c", [*a, 9])]
    got: dict[str, Expectation] = {}
    model = HitModel(BlockRule(4, 16), got.__setitem__)
    for i, (key, ids) in enumerate(requests):
        model.add(Sent(key, key, "", array("I", ids), i * 10, i * 10 + 5, i * 10 + 6, 1))
    model.finish()
    assert [(e.floor, e.ceiling) for e in got.values()] == [(0, 0), (4, 4), (0, 0), (8, 8)]


# ------------------------------------------------------------------------------------- overlap, against a real order


@dataclass
class Server:
    """vLLM's pool, stated apart from the model: numbered blocks in a queue, the front of which is taken next."""

    blocks: int
    size: int
    queue: list[int] = field(default_factory=list)
    content: dict[int, tuple[int, ...]] = field(default_factory=dict)
    users: dict[int, int] = field(default_factory=dict)
    born: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = list(range(self.blocks))

    def start(self, prompt: list[int], total: int) -> tuple[int, list[int]] | None:
        """Tokens hit and blocks taken; None = no room."""
        taken: list[int] = []
        for end in range(self.size, len(prompt), self.size):
            copies = [b for b in self.born if self.content.get(b) == tuple(prompt[:end])]
            if not copies:
                break
            taken.append(copies[0])
        fresh = -(-total // self.size) - len(taken)
        if fresh > len([b for b in self.queue if b not in taken]):
            return None
        hit = len(taken) * self.size
        for block in taken:
            if block in self.queue:
                self.queue.remove(block)
        new = [self.queue.pop(0) for _ in range(fresh)]
        for block in new:
            self.content.pop(block, None)
            if block in self.born:
                self.born.remove(block)
        for block in taken + new:
            self.users[block] = self.users.get(block, 0) + 1
        return hit, taken + new

    def compute(self, blocks: list[int], tokens: list[int]) -> None:
        for i, block in enumerate(blocks[: len(tokens) // self.size]):
            if block not in self.content:
                self.content[block] = tuple(tokens[: (i + 1) * self.size])
                self.born.append(block)

    def end(self, blocks: list[int]) -> None:
        empty: list[int] = []
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                (self.queue if block in self.content else empty).append(block)
        self.queue[:0] = empty


def simulate(seed: int, requests: int, overlap: float, known_outputs: bool) -> list[tuple[int, Expectation]]:
    """Random requests through the server in an order of its own; what each hit, beside what was expected of it."""
    rng = random.Random(seed)
    size, blocks = 4, rng.randint(12, 40)
    server = Server(blocks, size)
    now, keys = 0, 0
    waiting: list[dict[str, Any]] = []
    running: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    prompts: list[list[int]] = [[]]
    while len(done) < requests:
        now += 1
        step = rng.random()
        if keys < requests and ((not waiting and not running) or step < overlap):
            stem = rng.choice(prompts[-8:])
            stem = stem[: rng.randint(0, min(len(stem), 28))] if rng.random() < 0.6 else stem[:28]
            prompt = [
                *stem,
                *(rng.randint(0, 1) if rng.random() < 0.5 else 100 + keys for _ in range(rng.randint(1, 8))),
            ]
            out = [1000 + rng.randint(0, 1) for _ in range(rng.randint(1, 7))]
            waiting.append({"key": str(keys), "prompt": prompt, "out": out, "sent": now})
            keys += 1
        elif waiting and step < 0.7:
            request = waiting[rng.randrange(len(waiting))]
            tokens = request["prompt"] + request["out"][:-1]
            started = server.start(request["prompt"], len(tokens))
            if started is not None:
                waiting.remove(request)
                request["hit"], request["blocks"] = started
                server.compute(request["blocks"], request["prompt"])
                now += 1
                request["first"] = now
                running.append(request)
        elif running:
            request = running.pop(rng.randrange(len(running)))
            server.compute(request["blocks"], request["prompt"] + request["out"][:-1])
            server.end(request["blocks"])
            now += 1
            request["end"] = now
            done.append(request)
            prompts.append(request["prompt"] + (request["out"] if known_outputs else []))
    got: dict[str, Expectation] = {}
    model = HitModel(BlockRule(size, blocks * size), got.__setitem__)
    for request in sorted(done, key=lambda r: r["sent"]):
        model.add(
            Sent(
                key=request["key"],
                session_id=request["key"],
                salt="",
                ids=array("I", request["prompt"]),
                sent_ns=request["sent"],
                first_token_ns=request["first"],
                end_ns=request["end"],
                output_tokens=len(request["out"]),
                output_ids=array("I", request["out"]) if known_outputs else None,
            )
        )
    model.finish()
    return [(r["hit"], got[r["key"]]) for r in sorted(done, key=lambda r: r["sent"])]


known = pytest.mark.parametrize("known_outputs", [False, True], ids=["outputs unknown", "outputs known"])


@known
def test_under_eviction_every_order_of_a_server_stays_inside_the_interval(known_outputs: bool) -> None:
    for seed in range(400):
        overlap = (0.05, 0.2, 0.4, 0.65)[seed % 4]
        for hit, expected in simulate(seed, 60, overlap, known_outputs):
            assert expected.floor is not None
            assert expected.ceiling is not None
            assert expected.floor <= hit <= expected.ceiling, (seed, hit, expected)


@known
def test_under_eviction_turns_one_after_another_have_one_expected_value(known_outputs: bool) -> None:
    evicted = 0
    for seed in range(200):
        pairs = simulate(seed, 60, 0.0, known_outputs)
        assert [(e.floor, e.ceiling) for _, e in pairs] == [(hit, hit) for hit, _ in pairs]
        evicted += sum(hit for hit, _ in pairs)
    assert evicted > 0


def test_one_expected_value_comes_back_after_an_overlap() -> None:
    points = total = 0
    for seed in range(100):
        pairs = simulate(seed, 120, 0.02, True)
        points += sum(e.floor == e.ceiling for _, e in pairs)
        total += len(pairs)
    assert 0.5 < points / total < 1
