"""Hits of the simulated server, over the wire."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.sim.test_server import cached, complete

from .conftest import tiny


@pytest.mark.parametrize(("length", "hits"), [(32, 0), (33, 32), (64, 32), (65, 64), (1000, 992)])
def test_hit_table(client: httpx.Client, length: int, hits: int) -> None:
    assert cached(client, list(range(length))) == 0
    assert cached(client, list(range(length))) == hits


def test_generated_tokens_but_the_last_one_are_cached(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x" * 4 * 93}]  # 93 tokens and seven marks: 100
    body = {"messages": messages, "max_tokens": 60, "ignore_eos": True}
    first = client.post("/v1/chat/completions", json=body).json()
    assert first["usage"]["prompt_tokens"] == 100
    assert first["usage"]["completion_tokens"] == 60
    # 100 + 60, an end mark, a user message of 3 + 12 + 1, and 3 marks that open the next answer: 180.
    follow_up = [*messages, first["choices"][0]["message"], {"role": "user", "content": "y" * 4 * 12}]
    second = client.post("/v1/chat/completions", json={**body, "messages": follow_up, "max_tokens": 1}).json()
    assert second["usage"]["prompt_tokens"] == 180
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 128


def test_a_salt_isolates(client: httpx.Client) -> None:
    ids = list(range(100))
    assert cached(client, ids) == 0
    assert cached(client, ids, cache_salt="run-1") == 0
    assert cached(client, ids, cache_salt="run-1") == 96
    assert cached(client, ids, cache_salt="run-2") == 0
    assert cached(client, ids) == 96


def test_past_the_knee_hits_and_filler_add_up_to_the_capacity(client: httpx.Client) -> None:
    for number, filler in enumerate((14_336, 12_800)):
        salt = f"knee-{number}"
        cached(client, list(range(4096)), cache_salt=salt)
        for start in range(0, filler, 2048):
            part = min(2048, filler - start)
            cached(client, list(range(10_000 + start, 10_000 + start + part)), cache_salt=salt)
        assert cached(client, list(range(4096)), cache_salt=salt) + filler == 16_352


def test_a_cyclic_working_set_falls_off_a_cliff(client: httpx.Client) -> None:
    for prompts, expected in ((16, 992), (17, 0)):
        client.post("/reset_prefix_cache")
        for _ in range(2):
            hits = [cached(client, list(range(n * 2000, n * 2000 + 1024))) for n in range(prompts)]
        assert hits == [expected] * prompts


def test_of_simultaneous_identical_prompts_one_misses_and_the_others_hit_in_full(client: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        hits = list(pool.map(lambda _: cached(client, list(range(500)), output=20), range(4)))
    assert sorted(hits) == [0, 480, 480, 480]


def test_reset_is_refused_while_a_request_runs(client: httpx.Client) -> None:
    body = {"prompt": list(range(40)), "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        chunks = answer.iter_raw()
        next(chunks)
        assert client.post("/reset_prefix_cache").json() == {"reset": False}


def test_a_prompt_may_be_hit_to_its_last_token() -> None:
    ids = list(range(64))
    for recompute, expected in ((True, [0, 32, 32]), (False, [0, 64, 64])):
        with tiny(recompute_last_token=recompute) as client:
            answers = [complete(client, ids, 3) for _ in range(3)]
            found = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
            assert found == expected
            assert len({answer["choices"][0]["text"] for answer in answers}) == 1
            assert [len(answer["choices"][0]["text"]) for answer in answers] == [12, 12, 12]


def test_outputs_may_be_left_out_of_the_cache() -> None:
    ids = list(range(100))
    for keep, expected in ((True, 160), (False, 96)):
        with tiny(cache_outputs=keep) as client:
            answer = complete(client, ids, 70, return_token_ids=True)
            # 169 tokens were computed: five blocks, three of which hold nothing but prompt.
            assert cached(client, ids + answer["choices"][0]["token_ids"]) == expected


def test_a_cache_may_be_smaller_than_the_pool() -> None:
    for size, expected in (("null", 96), (6, 96), (5, 64)):
        with tiny(cache_blocks=size) as client:
            cached(client, list(range(100)), 20)  # three blocks, and one with nothing that could be hit
            cached(client, list(range(1000, 1100)), 20)
            assert cached(client, list(range(100))) == expected


def test_units_may_be_what_a_vllm_hits() -> None:
    with tiny(prefix="units", unit_granularity_tokens=16) as client:
        common = list(range(100))
        assert [cached(client, [*common, *range(n, n + 50)]) for n in (1000, 2000, 3000)] == [0, 0, 96]
        assert client.post("/reset_prefix_cache").json() == {"reset": True}
        assert cached(client, common) == 0


def test_a_server_may_keep_its_metrics_to_itself() -> None:
    for told, status in ((True, 200), (False, 404)):
        with tiny(tells_metrics=told) as client:
            assert client.get("/metrics").status_code == status
            assert client.get("/v1/models").status_code == 200
