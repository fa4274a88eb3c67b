"""The hit model under eviction against a real vLLM whose pool is far too small for the work: 16,352 tokens."""

from __future__ import annotations

import random
import time
from array import array
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from servers.sizes import tight
from servers.vllm import VllmServer

from kvbench.model import Expectation
from kvbench.traces.prefix import BlockRule, HitModel, Sent

pytestmark = [pytest.mark.real, tight]


def replay(client: httpx.Client, seed: int, requests: int, at_once: int) -> list[tuple[Sent, int]]:
    """Prompts that go on from earlier ones and their outputs, at the end or before it; with what each one hit."""
    rng = random.Random(seed)
    known: list[list[int]] = []
    done: list[tuple[Sent, int]] = []

    def one(number: int) -> None:
        stem = rng.choice(known[-40:]) if known and rng.random() < 0.75 else []
        stem = stem[: rng.choice([len(stem), len(stem), rng.randint(0, len(stem))])]
        ids = [*stem, *(rng.randrange(10, 250) for _ in range(rng.choice([1, 32, 64, 100, 333, 800, 1500])))][:6000]
        if rng.random() < 0.3:
            ids = ids[: max(32, len(ids) // 32 * 32)]
        output_tokens = rng.choice([1, 2, 17, 32, 33, 60])
        body = {
            "model": "tiny",
            "prompt": ids,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": f"eviction-{seed}",
        }
        sent_ns = time.monotonic_ns()
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        end_ns = time.monotonic_ns()
        out = array("I", answer["choices"][0]["token_ids"])
        hit = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        salt = f"eviction-{seed}"
        done.append((Sent(str(number), "", salt, array("I", ids), sent_ns, end_ns, end_ns, len(out), out), hit))
        known.append([*ids, *out])

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(requests)))
    return sorted(done, key=lambda pair: pair[0].sent_ns)


def expect(done: list[tuple[Sent, int]], capacity_tokens: int) -> dict[str, Expectation]:
    got: dict[str, Expectation] = {}
    model = HitModel(BlockRule(32, capacity_tokens), got.__setitem__)
    for sent, _ in done:
        model.add(sent)
    model.finish()
    return got


def test_one_after_another_every_hit_is_the_one_expected_value(client: httpx.Client, vllm: VllmServer) -> None:
    client.post("/reset_prefix_cache").raise_for_status()
    done = replay(client, seed=1, requests=70, at_once=1)
    got = expect(done, vllm.settings.capacity_tokens)
    assert [(e.floor, e.ceiling) for e in got.values()] == [(hit, hit) for _, hit in done]
    without_eviction = expect(done, 10**9)
    assert sum(e.floor or 0 for e in without_eviction.values()) > sum(hit for _, hit in done)


def test_four_at_a_time_every_hit_is_inside(client: httpx.Client, vllm: VllmServer) -> None:
    client.post("/reset_prefix_cache").raise_for_status()
    done = replay(client, seed=2, requests=70, at_once=4)
    got = expect(done, vllm.settings.capacity_tokens)
    for sent, hit in done:
        expected = got[sent.key]
        assert expected.floor is not None
        assert expected.ceiling is not None
        assert expected.floor <= hit <= expected.ceiling, (len(sent.ids), hit, expected)
