"""What kvbench takes for granted about llama.cpp's server, asked of the server itself over plain HTTP."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from servers.llama import LlamaServer

pytestmark = pytest.mark.real

SEEDS = itertools.count(1)


@pytest.fixture
def http(llama: LlamaServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=llama.url, timeout=60.0, trust_env=False) as http:
        yield http


def unseen_ids(count: int) -> list[int]:
    """Plain text tokens in an order no request had before."""
    seed = next(SEEDS)
    return [100 + (seed * 7919 + position * 31 + position * position) % 1900 for position in range(count)]


def complete(http: httpx.Client, prompt: list[int], **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, "ignore_eos": True} | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_repeated_prompt_hits_token_by_token_but_for_its_last(http: httpx.Client) -> None:
    prompt = unseen_ids(541)
    first, second = complete(http, prompt), complete(http, prompt)

    assert first["usage"]["prompt_tokens"] == 541
    assert cached(second) == 540
    assert second["timings"]["cache_n"] == 540
    assert second["timings"]["prompt_n"] == 1


def test_a_prompt_hits_up_to_the_first_token_that_differs(http: httpx.Client) -> None:
    prompt = unseen_ids(400)
    complete(http, prompt)

    assert cached(complete(http, [*prompt[:333], prompt[333] + 1, *prompt[334:]])) == 333


def test_capacity_goes_by_slots(http: httpx.Client, llama: LlamaServer) -> None:
    def second_round_hits(sessions: int) -> list[int]:
        prompts = [unseen_ids(600) for _ in range(sessions)]
        for prompt in prompts:
            complete(http, prompt)
        return [cached(complete(http, prompt)) for prompt in prompts]

    assert second_round_hits(llama.settings.slots) == [599] * 4
    assert max(second_round_hits(llama.settings.slots + 1)) < 100


def test_chat_stream_begins_with_null_content_and_ends_with_usage(http: httpx.Client) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Fix the failing test."}],
        "max_tokens": 6,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    lines = [line for line in http.post("/v1/chat/completions", json=body).text.splitlines() if line]
    *chunks, usage_chunk = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    assert lines[-1] == "data: [DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage_chunk["choices"] == []
    assert usage_chunk["usage"]["completion_tokens"] == 6


def test_a_context_overflow_is_a_json_error_even_for_a_stream(http: httpx.Client, llama: LlamaServer) -> None:
    answer = http.post("/v1/completions", json={"prompt": unseen_ids(5_000), "max_tokens": 1, "stream": True})

    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (5_000, llama.settings.slot_tokens)


def test_a_wrong_model_is_served_all_the_same(http: httpx.Client) -> None:
    """So a client that means one model has to look at /v1/models."""
    (model,) = http.get("/v1/models").json()["data"]

    assert (model["id"], model["owned_by"]) == ("tiny", "llamacpp")
    assert complete(http, unseen_ids(10), model="nonesuch")["model"] == "tiny"


def test_metrics_count_cached_tokens_apart(http: httpx.Client) -> None:
    def counters() -> dict[str, float]:
        lines = [line for line in http.get("/metrics").text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    prompt = unseen_ids(300)
    complete(http, prompt)
    before = counters()
    complete(http, prompt)
    after = counters()

    assert after["llamacpp:prompt_tokens_cached_total"] - before["llamacpp:prompt_tokens_cached_total"] == 299
    assert after["llamacpp:prompt_tokens_total"] - before["llamacpp:prompt_tokens_total"] == 1
