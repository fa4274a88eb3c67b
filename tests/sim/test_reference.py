"""Hits over real HTTP equal an independent block LRU on published traces, request by request and in sum.

The reference's rule: a block is the trace's, the tail is evicted first, a prompt may be hit up to its last block, an
output is not kept. One request at a time, in the order of the trace's times.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvbench.sim.process import SimProcess

from .conftest import QUICK

DATA = Path(os.environ.get("KVBENCH_TEST_DATA", ""))
pytestmark = pytest.mark.skipif("KVBENCH_TEST_DATA" not in os.environ, reason="KVBENCH_TEST_DATA is not set")

RULE = {
    **QUICK,
    "max_batched_tokens": 1_000_000,
    "max_model_len": 260_000,
    "recompute_last_token": False,
    "cache_outputs": False,
}
Request = tuple[Hashable, ...]


def client_of(block: int, **settings: Any) -> SimProcess:
    return SimProcess.start("tiny", settings={**RULE, "block_size": block, **settings})


class Blocks:
    """The JSON of a prompt of whole blocks: a block's first token is its number, the others are all the same."""

    def __init__(self, block: int, output_tokens: int = 3) -> None:
        self._rest = b",1" * (block - 1)
        self._tail = b'],"max_tokens":%d,"ignore_eos":true}' % output_tokens
        self._text: dict[Hashable, bytes] = {}

    def body(self, ids: Request) -> bytes:
        parts = [self._text.setdefault(key, b"%d%b" % (len(self._text), self._rest)) for key in ids]
        return b'{"prompt":[' + b",".join(parts) + self._tail


def hits(client: httpx.Client, block: int, requests: Sequence[Request], blocks: Blocks) -> list[int]:
    """Blocks hit by each request; the cache is empty before the first."""
    assert client.post("/reset_prefix_cache").json() == {"reset": True}
    found = []
    for ids in requests:
        answer = client.post("/v1/completions", content=blocks.body(ids))
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == len(ids) * block
        count, rest = divmod(usage["prompt_tokens_details"]["cached_tokens"], block)
        assert rest == 0
        found.append(count)
    return found


def leaf_first_lru(requests: Sequence[Request], capacity: int) -> list[int]:
    """The reference's rule, for sums that it does not list; held to those it does list below."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    found = []
    for ids in requests:
        found.append(next((n for n, key in enumerate(ids) if key not in cache), len(ids)))
        for key in reversed(ids):
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return found


def mooncake() -> list[Request]:
    rows = [json.loads(line) for line in (DATA / "mooncake/conversation_first400.jsonl").read_text().splitlines()]
    return [tuple(row["hash_ids"]) for row in sorted(rows, key=lambda row: float(row["timestamp"]))]


def weka(name: str) -> list[tuple[float, Request]]:
    timed = []
    for entry in json.loads((DATA / "weka" / name).read_text())["requests"]:
        if entry.get("type") == "subagent":
            timed += [(entry["t"] + request["t"], tuple(request["hash_ids"])) for request in entry["requests"]]
        else:
            timed.append((entry["t"], tuple(entry["hash_ids"])))
    return sorted(timed, key=lambda row: row[0])


def client(sim: SimProcess) -> httpx.Client:
    return httpx.Client(base_url=sim.url, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def conversation() -> list[Request]:
    return mooncake()


@pytest.mark.parametrize("capacity", [100, 500, 1000, 2000, 5000, None])
def test_mooncake(conversation: list[Request], capacity: int | None) -> None:
    rows = json.loads((DATA / "reference/mooncake_conversation_first400.json").read_text())["rows"]
    [expected] = [row["hit_blocks"] for row in rows if row["cap"] == capacity]
    size = 100_000 if capacity is None else capacity
    with client_of(512, num_blocks=100_001, cache_blocks=size) as sim, client(sim) as http:
        found = hits(http, 512, conversation, Blocks(512))
    assert sum(found) == expected
    assert found == leaf_first_lru(conversation, size)


@pytest.mark.parametrize(("capacity", "expected"), [(2000, 409), (5000, 670)])
def test_mooncake_by_the_size_of_the_pool(conversation: list[Request], capacity: int, expected: int) -> None:
    """The other way to a capacity: a pool of so many blocks and the null block. One token of output needs none."""
    with client_of(512, num_blocks=capacity + 1) as sim, client(sim) as http:
        assert sum(hits(http, 512, conversation, Blocks(512, output_tokens=1))) == expected


def weka_rows() -> Iterator[tuple[str, dict[str, int]]]:
    for row in json.loads((DATA / "reference/weka_dev_lru.json").read_text()):
        yield row["trace"], {key: value["hit_blocks"] for key, value in row.items() if isinstance(value, dict)}


@pytest.mark.parametrize("capacity", [2048, 4096])
def test_weka(capacity: int) -> None:
    blocks = Blocks(64)
    with client_of(64, num_blocks=8193, cache_blocks=capacity) as sim, client(sim) as http:
        for name, expected in weka_rows():
            if name.endswith(".json"):
                requests = [ids for _, ids in weka(name)]
                assert sum(hits(http, 64, requests, blocks)) == expected[str(capacity)], name


def test_weka_on_one_server() -> None:
    """All ten at once, every trace's ids apart from the others'."""
    rows = dict(weka_rows())
    names = sorted(name for name in rows if name.endswith(".json"))
    merged = []
    for number, name in enumerate(names):
        merged += [(at, number, tuple((number, key) for key in ids)) for at, ids in weka(name)]
    merged.sort(key=lambda row: row[:2])
    with client_of(64, num_blocks=20_001, cache_blocks=8192) as sim, client(sim) as http:
        found = hits(http, 64, [ids for _, _, ids in merged], Blocks(64))
    assert sum(found) == rows["ALL-start-0-namespaced"]["8192"]
