"""What kvbench takes for granted about vLLM, asked of the server itself over plain HTTP.

A fact that changes with a new vLLM fails here by name, before it shows as a wrong figure in a run.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from servers.sizes import tight
from servers.vllm import VllmServer

pytestmark = [pytest.mark.real, tight]

BLOCK = 32
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a file of the workspace",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in ("read_file", "write_file")
]
TURN = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": [{"type": "text", "text": "Fix the "}, {"type": "text", "text": "failing test."}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "read_file", "arguments": '{"path": "tests/test_cache.py"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "def test_cache():\n    assert hits() == 3\n"},
    {"role": "user", "content": "Go on: grüß 世界 🙂"},
]


@pytest.fixture(autouse=True)
def empty_cache(client: httpx.Client) -> None:
    """Each test begins with nothing cached."""
    assert client.post("/reset_prefix_cache").status_code == 200


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Plain text tokens (no special ones) in an order that only `seed` gives."""
    return [100 + (seed * 7919 + position * 31 + position * position) % 1900 for position in range(count)]


def complete(client: httpx.Client, prompt: list[int], output_tokens: int = 1, **body: Any) -> dict[str, Any]:
    answer = client.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True} | body,
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def chat_body(**body: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": TURN, "max_tokens": 12, "ignore_eos": True} | body


def stream_events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[tuple[float, Any]]:
    """(seconds since sending, decoded data) of each event; the last is the string [DONE]."""
    events: list[tuple[float, Any]] = []
    started = time.monotonic()
    with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append((time.monotonic() - started, data if data == "[DONE]" else json.loads(data)))
    return events


def metrics(client: httpx.Client) -> dict[str, float]:
    """Series without their `_created` times; labels stay part of the name."""
    lines = client.get("/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples if "_created" not in name.partition("{")[0]}


def total(samples: dict[str, float], name: str, label: str = "") -> float:
    values = [value for series, value in samples.items() if series.partition("{")[0] == name and label in series]
    assert values, f"no series {name}"
    return sum(values)


# ---------------------------------------------------------------------------------------------------------- hits


@pytest.mark.parametrize(("length", "hit"), [(32, 0), (33, 32), (64, 32), (65, 64), (1000, 992)])
def test_a_repeated_prompt_hits_whole_blocks_and_never_its_last_token(
    client: httpx.Client, length: int, hit: int
) -> None:
    first, second = complete(client, token_ids(length)), complete(client, token_ids(length))

    assert first["usage"]["prompt_tokens"] == length
    assert cached(first) == 0
    assert cached(second) == hit


def test_a_prompt_hits_up_to_the_first_block_that_differs(client: httpx.Client) -> None:
    prompt = token_ids(320)
    complete(client, prompt)

    changed = [*prompt[:200], prompt[200] + 1, *prompt[201:]]

    assert cached(complete(client, changed)) == 192


def test_generated_tokens_are_cached_except_the_last_sampled_one(client: httpx.Client) -> None:
    prompt = token_ids(100)
    answer = complete(client, prompt, 60, return_token_ids=True)
    generated = answer["choices"][0]["token_ids"]
    assert len(generated) == 60

    following = complete(client, prompt + generated + token_ids(20, seed=5))

    assert following["usage"]["prompt_tokens"] == 180
    assert cached(following) == 128  # 160 tokens are five blocks, but only 159 of them had been computed


def test_a_salt_is_a_cache_of_its_own(client: httpx.Client) -> None:
    prompt = token_ids(200)

    hits = [cached(complete(client, prompt, cache_salt=salt)) for salt in ("a", "b", "a")]

    assert hits == [0, 0, 192]
    assert cached(complete(client, prompt)) == 0


def test_resetting_empties_the_cache(client: httpx.Client) -> None:
    prompt = token_ids(200)
    complete(client, prompt)

    assert client.post("/reset_prefix_cache").status_code == 200

    assert cached(complete(client, prompt)) == 0


def test_a_chat_also_reports_what_it_wrote_to_the_cache(client: httpx.Client) -> None:
    usage = client.post("/v1/chat/completions", json=chat_body()).json()["usage"]

    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] == 0
    assert details["created_cache_tokens"] == usage["prompt_tokens"] // BLOCK * BLOCK


def test_identical_prompts_at_once_are_computed_once(client: httpx.Client) -> None:
    """Each later one hits all the rule allows or, if it overtook the first, nothing."""
    prompt = token_ids(2_000)

    with ThreadPoolExecutor(4) as pool:
        hits = sorted(cached(answer) for answer in pool.map(lambda _: complete(client, prompt), range(4)))

    assert hits[0] == 0
    assert hits[-1] == 1_984
    assert set(hits) == {0, 1_984}


# ------------------------------------------------------------------------------------------------ token counting


def test_tokenize_counts_what_the_chat_call_counts(client: httpx.Client) -> None:
    counted = client.post("/tokenize", json={"model": "tiny", "messages": TURN, "tools": TOOLS}).json()

    answer = client.post("/v1/chat/completions", json=chat_body(tools=TOOLS, return_token_ids=True)).json()

    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert counted["tokens"] == answer["prompt_token_ids"]


@pytest.mark.parametrize(
    "change",
    [
        lambda turn, tools: (turn, tools[:1]),
        lambda turn, tools: (turn, []),
        lambda turn, tools: ([*turn[:2], turn[2] | {"content": "Let me look."}, *turn[3:]], tools),
        lambda turn, tools: ([*turn[:2], {"role": "assistant", "content": "Hm."}, *turn[3:]], tools),
        lambda turn, tools: ([*turn[:3], turn[3] | {"tool_call_id": "call_1000"}, *turn[4:]], tools),
    ],
    ids=["fewer tools", "no tools", "text before the call", "no call", "another id"],
)
def test_every_part_of_a_turn_is_in_the_prompt(client: httpx.Client, change: Any) -> None:
    """The template renders tools, calls, ids and answers: a client that loses one of them is found out."""
    messages, tools = change(TURN, TOOLS)

    whole, changed = (
        client.post("/tokenize", json={"model": "tiny", "messages": m, "tools": t}).json()["tokens"]
        for m, t in ((TURN, TOOLS), (messages, tools))
    )

    assert changed != whole


def test_the_next_turns_prompt_begins_with_this_turns_prompt(client: httpx.Client) -> None:
    def tokens(messages: list[Any]) -> list[int]:
        return list(
            client.post("/tokenize", json={"model": "tiny", "messages": messages, "tools": TOOLS}).json()["tokens"]
        )

    this, following = tokens(TURN[:2]), tokens(TURN[:4])

    assert following[: len(this)] == this


def test_output_length_is_exactly_what_was_asked_for(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat_body(tools=TOOLS, max_tokens=37, min_tokens=37)).json()

    assert answer["usage"]["completion_tokens"] == 37
    assert answer["choices"][0]["finish_reason"] == "length"


def test_output_that_does_not_fit_the_context_is_cut_without_a_word(client: httpx.Client) -> None:
    answer = complete(client, token_ids(8_000), 500)

    assert answer["usage"]["completion_tokens"] == 192
    assert answer["choices"][0]["finish_reason"] == "length"


def test_min_tokens_that_do_not_fit_the_context_are_refused(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": token_ids(8_000), "max_tokens": 500, "min_tokens": 500, "stream": True}

    answer = client.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "min_tokens must be less than or equal to max_tokens=192, got 500."


# ------------------------------------------------------------------------------------------------------- streams


def test_chat_stream_is_role_then_text_then_usage_then_done(client: httpx.Client) -> None:
    body = chat_body(stream_options={"include_usage": True})

    *chunks, usage_chunk, done = [event for _, event in stream_events(client, "/v1/chat/completions", body)]

    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(len(chunk["choices"]) == 1 and chunk.get("usage") is None for chunk in chunks)
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert 1 <= sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) <= 12
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert usage_chunk["choices"] == []
    usage = usage_chunk["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_completion_stream_has_no_role_chunk(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": token_ids(40), "max_tokens": 8, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}

    *chunks, usage_chunk, done = [event for _, event in stream_events(client, "/v1/completions", body)]

    assert done == "[DONE]"
    assert all(isinstance(chunk["choices"][0]["text"], str) for chunk in chunks)
    assert len(chunks) <= 8
    assert usage_chunk["choices"] == []
    assert usage_chunk["usage"]["completion_tokens"] == 8


def test_the_role_chunk_waits_for_the_first_token(client: httpx.Client) -> None:
    """It is no sign of life from before prefill; of three cold prompts at least one shows it clear of noise."""

    def role_share_of_ttft(seed: int) -> float:
        text = " ".join(f"{seed}-{number}" for number in range(1000))
        body = chat_body(messages=[{"role": "user", "content": text}])
        events = stream_events(client, "/v1/chat/completions", body)
        token_s = next(s for s, event in events if event["choices"][0]["delta"].get("content"))
        return events[0][0] / token_s

    assert max(role_share_of_ttft(seed) for seed in range(3)) > 0.8


def test_with_tools_text_still_comes_as_it_is_made(client: httpx.Client) -> None:
    body = chat_body(tools=TOOLS, max_tokens=64, stream_options={"include_usage": True})

    chunks = [event for _, event in stream_events(client, "/v1/chat/completions", body)][:-2]

    # Held back it would be one; a server short of CPU puts several tokens into a chunk.
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) > 1


# -------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_overflow_is_a_json_error_even_for_a_stream(
    client: httpx.Client, vllm: VllmServer, stream: bool
) -> None:
    too_long = token_ids(vllm.settings.max_model_len + 1)

    answer = client.post(
        "/v1/completions", json={"model": "tiny", "prompt": too_long, "max_tokens": 1, "stream": stream}
    )

    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert error["message"].startswith("This model's maximum context length is 8192 tokens.")
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "input_tokens", 400)


def test_an_empty_list_of_tools_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat_body(tools=[]))

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"


def test_a_wrong_model_is_a_404_that_names_it(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat_body(model="nonesuch", stream=True))

    assert answer.status_code == 404
    assert "nonesuch" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "NotFoundError"


# ------------------------------------------------------------------------------------- what it says about itself


def test_models_and_version(client: httpx.Client, vllm: VllmServer) -> None:
    (model,) = client.get("/v1/models").json()["data"]

    assert (model["id"], model["max_model_len"]) == ("tiny", vllm.settings.max_model_len)
    assert model["owned_by"] == "vllm"
    assert re.match(r"0\.32\.0", client.get("/version").json()["version"])


def test_metrics_state_the_pool(client: httpx.Client, vllm: VllmServer) -> None:
    (series,) = [name for name in metrics(client) if name.startswith("vllm:cache_config_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', series))

    assert labels["block_size"] == str(vllm.settings.block_size) == str(BLOCK)
    usable_tokens = (int(labels["num_gpu_blocks"]) - 1) * BLOCK
    assert usable_tokens == vllm.settings.capacity_tokens == 16_352


def test_metrics_count_hits_in_tokens_and_time_each_request(client: httpx.Client) -> None:
    before = metrics(client)
    answers = [complete(client, token_ids(500), 4) for _ in range(2)]
    after = metrics(client)

    def change(name: str, label: str = "") -> float:
        return total(after, name, label) - total(before, name, label)

    assert [cached(answer) for answer in answers] == [0, 480]
    assert change("vllm:prefix_cache_queries_total") == 1000
    assert change("vllm:prefix_cache_hits_total") == 480
    assert change("vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 520
    assert change("vllm:prompt_tokens_by_source_total", 'source="local_cache_hit"') == 480
    assert total(after, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"') == 0
    for histogram in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
    ):
        assert change(f"vllm:{histogram}_count") == 2
        assert change(f"vllm:{histogram}_sum") >= 0
    assert change("vllm:inter_token_latency_seconds_count") == 6
    assert total(after, "vllm:num_requests_running") == total(after, "vllm:num_requests_waiting") == 0
    assert total(after, "vllm:num_preemptions_total") >= 0
    assert 0 <= total(after, "vllm:kv_cache_usage_perc") <= 1


# ------------------------------------------------------------------------------------------------------ capacity


def test_past_the_knee_the_oldest_prompt_loses_its_tail_first(client: httpx.Client, vllm: VllmServer) -> None:
    capacity = vllm.settings.capacity_tokens
    first = token_ids(4_096)
    complete(client, first)
    for seed in range(1, 9):
        complete(client, token_ids(1_792, seed))

    hit = cached(complete(client, first))

    assert hit + 8 * 1_792 == capacity


def test_preempted_requests_finish_and_are_counted(client: httpx.Client, vllm: VllmServer) -> None:
    """16 requests that end at 1,200 tokens need 19,200 of 16,352: some are preempted, and none loses a token."""
    before = total(metrics(client), "vllm:num_preemptions_total")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda seed: complete(client, token_ids(900, seed), 300), range(16)))

    assert {answer["usage"]["completion_tokens"] for answer in answers} == {300}
    assert total(metrics(client), "vllm:num_preemptions_total") > before
