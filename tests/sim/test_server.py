from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from kvbench.sim.process import SimProcess

from .conftest import QUICK

HELLO = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hello there, model."}]


def complete(client: httpx.Client, ids: list[int], output: int = 1, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": ids, "max_tokens": output, "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def cached(client: httpx.Client, ids: list[int], output: int = 1, **body: Any) -> int:
    count: int = complete(client, ids, output, **body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def metric(client: httpx.Client, name: str, label: str = "") -> float:
    text = client.get("/metrics").text
    [value] = re.findall(rf"^vllm:{name}\{{[^}}]*{re.escape(label)}[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return float(value)


def truth(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {row["request_id"]: row for row in map(json.loads, client.get("/sim/truth").text.splitlines())}


def events(raw: bytes) -> list[str]:
    return [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]


def talk(url: str, data: bytes, until: bytes) -> bytes:
    """Raw bytes over a socket of our own, so that no client library is part of the proof."""
    where = urlsplit(url)
    received = b""
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall(data)
        while until not in received:
            part = connection.recv(65536)
            if not part:
                break
            received += part
    return received


def post(path: str, body: object, headers: str = "") -> bytes:
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: sim\r\n{headers}content-length: {len(text)}\r\n\r\n".encode() + text


# ---- shape of what is said


def test_chat_stream_byte_for_byte(tiny_url: str) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "model": "tiny",
    }
    raw = talk(tiny_url, post("/v1/chat/completions", body, "x-request-id: r-17\r\n"), b"\r\n0\r\n\r\n")
    head, _, chunked = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream" in head
    chunks = []
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        chunked = rest[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    # The role event and the first token come in one chunk. A busy machine may add the next tokens to it.
    assert len(chunks) <= 3
    assert len(events(chunks[0])) >= 2
    *objects, done = events(b"".join(chunks))
    assert done == "[DONE]"
    role, *tokens, usage = map(json.loads, objects)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [len(token["choices"][0]["delta"]["content"]) for token in tokens] == [4, 4, 4]
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None, None, "length"]
    assert usage["choices"] == []
    # 3 + ceil(14 / 4) + 1, 3 + ceil(19 / 4) + 1, and 3 marks that open the answer
    assert usage["usage"] == {
        "prompt_tokens": 20,
        "total_tokens": 23,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0},
    }
    assert {item["id"] for item in (role, *tokens, usage)} == {"chatcmpl-r-17"}
    assert {item["object"] for item in (role, *tokens, usage)} == {"chat.completion.chunk"}
    assert {item["model"] for item in (role, *tokens, usage)} == {"tiny"}


def test_stream_and_whole_answer_say_the_same(client: httpx.Client) -> None:
    for path, prompt in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Once upon"})):
        body = {**prompt, "max_tokens": 40, "ignore_eos": True}
        whole = client.post(path, json=body).json()
        *objects, done = events(client.post(path, json={**body, "stream": True}).content)
        assert done == "[DONE]"
        choices = [json.loads(item)["choices"][0] for item in objects]
        text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
        choice = whole["choices"][0]
        assert text == (choice["message"]["content"] if "message" in choice else choice["text"])
        assert len(text) == 160
        assert whole["usage"]["completion_tokens"] == 40
        assert not any("usage" in json.loads(item) for item in objects)  # it was not asked for


def test_a_free_model_stops_by_itself(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HELLO}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["message"]["content"]) == 4 * (answer["usage"]["completion_tokens"] - 1)
    least = client.post("/v1/chat/completions", json={"messages": HELLO, "min_tokens": 500}).json()
    assert least["usage"]["completion_tokens"] == 501


def test_tokenize_gives_the_ids_that_are_used(client: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": "Find it, please. " * 40}]
    counted = client.post("/tokenize", json={"model": "tiny", "messages": messages, "tools": tools}).json()
    assert counted["count"] == len(counted["tokens"])
    assert counted["max_model_len"] == 8192
    body = {"messages": messages, "tools": tools, "max_tokens": 1}
    usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens"] == counted["count"]
    # The same ids sent as a prompt hit every block that a hit can have.
    again = complete(client, counted["tokens"])["usage"]
    assert again["prompt_tokens"] == counted["count"]
    assert again["prompt_tokens_details"]["cached_tokens"] == (counted["count"] - 1) // 32 * 32
    bare = client.post("/tokenize", json={"messages": messages, "tools": tools, "add_generation_prompt": False}).json()
    assert counted["tokens"][:-3] == bare["tokens"]
    assert client.post("/tokenize", json={"prompt": "abcd"}).json()["tokens"] == [0x64636261]


def test_models_version_health(client: httpx.Client) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("tiny", "kvbench-sim", 8192)
    assert re.fullmatch(r"kvbench-sim \d+\.\d+\.\d+", client.get("/version").json()["version"])
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "text"),
    [
        (
            "chat/completions",
            {"messages": HELLO, "model": "gpt"},
            404,
            "NotFoundError",
            "model",
            "`gpt` does not exist",
        ),
        ("completions", {"prompt": "x", "model": "gpt"}, 404, "NotFoundError", "model", "`gpt` does not exist"),
        ("chat/completions", {"messages": []}, 400, "BadRequestError", "messages", "must not be empty"),
        ("chat/completions", {}, 400, "BadRequestError", None, "messages"),
        ("completions", {"prompt": ""}, 400, "BadRequestError", "prompt", "must not be empty"),
        ("completions", {"prompt": [-1]}, 400, "BadRequestError", "prompt", "integers from 0"),
        ("completions", {"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens", "at least 1"),
        ("completions", {"prompt": "x", "n": 2}, 400, "BadRequestError", "n", "must be 1"),
        ("completions", {"prompt": "x", "cache_salt": ""}, 400, "BadRequestError", "cache_salt", "non-empty"),
        ("completions", {"prompt": "x", "min_tokens": -1}, 400, "BadRequestError", "min_tokens", "got -1"),
        ("chat/completions", {"messages": HELLO, "tools": []}, 400, "BadRequestError", "tools", "empty list"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "BadRequestError", "messages", "needs a role"),
        ("completions", {"prompt": "x", "min_tokens": 99}, 400, "BadRequestError", "min_tokens", "max_tokens=16"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_json_with_their_status(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, kind: str, param: str, text: str, stream: bool
) -> None:
    answer = client.post(f"/v1/{path}", json={**body, "stream": stream})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert text in error["message"]


def test_context_overflow_is_what_vllm_says(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": list(range(8192)), "max_tokens": 7, "stream": True})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "This model's maximum context length is 8192 tokens. However, you requested 7 output tokens and "
        "your prompt contains at least 8192 input tokens, for a total of at least 8199 tokens. Please reduce the "
        "length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=8192)",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }


def test_output_that_does_not_fit_is_cut_but_not_below_min_tokens(client: httpx.Client) -> None:
    answer = complete(client, list(range(8000)), 500)
    assert answer["usage"]["completion_tokens"] == 192
    assert answer["choices"][0]["finish_reason"] == "length"
    body = {"prompt": list(range(8000)), "max_tokens": 500, "min_tokens": 500}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["message"] == "min_tokens must be less than or equal to max_tokens=192, got 500."


def test_a_chat_reports_what_it_wrote_to_the_cache(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 4 * 93}], "max_tokens": 1}  # 100 tokens
    details = [
        client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens_details"] for _ in range(2)
    ]
    assert details == [
        {"cached_tokens": 0, "created_cache_tokens": 96},
        {"cached_tokens": 96, "created_cache_tokens": 0},
    ]


def test_units_report_what_they_wrote_to_the_cache() -> None:
    units = {**QUICK, "prefix": "units", "unit_granularity_tokens": 48, "recompute_last_token": False}
    body = {
        "messages": [{"role": "user", "content": "x" * 4 * 41}],
        "max_tokens": 1,
    }  # 48 tokens: one and a half blocks
    with SimProcess.start("tiny", settings=units) as sim, httpx.Client(base_url=sim.url, trust_env=False) as client:
        details = [
            client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens_details"] for _ in range(2)
        ]
    assert details == [
        {"cached_tokens": 0, "created_cache_tokens": 48},
        {"cached_tokens": 48, "created_cache_tokens": 0},
    ]


def test_token_ids_are_returned_where_they_are_asked_for(client: httpx.Client) -> None:
    prompt = client.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    body = {"messages": HELLO, "return_token_ids": True}  # ends with the end mark
    whole = client.post("/v1/chat/completions", json=body).json()
    ids = whole["choices"][0]["token_ids"]
    assert whole["prompt_token_ids"] == prompt
    assert len(ids) == whole["usage"]["completion_tokens"]
    text = whole["choices"][0]["message"]["content"]
    assert ids[:-1] == client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    for path, asked in (("chat/completions", body), ("completions", {**body, "prompt": prompt, "max_tokens": 900})):
        *objects, _ = events(client.post(f"/v1/{path}", json={**asked, "stream": True}).content)
        chunks = [json.loads(item) for item in objects]
        assert [number for chunk in chunks for number in chunk["choices"][0].get("token_ids", ())] == ids
        # Of a chat they belong to the answer, of a completion to its choice.
        owners = [chunk if path == "chat/completions" else chunk["choices"][0] for chunk in chunks]
        assert [owner["prompt_token_ids"] for owner in owners if "prompt_token_ids" in owner] == [prompt]
    assert "token_ids" not in client.post("/v1/chat/completions", json={"messages": HELLO}).text


def test_bad_json_and_wrong_places(client: httpx.Client) -> None:
    assert client.post("/v1/completions", content=b'{"prompt": ').status_code == 400
    assert client.post("/v1/completions", content=b"\xff" * 10).status_code == 400
    assert client.post("/v1/completions", content=b'{"prompt":' + b"[" * 100_000).status_code == 400
    assert client.post("/v2/completions", json={}).status_code == 404
    assert client.get("/v1/completions").status_code == 405


# ---- what the endpoint knows of itself


def test_metrics_count_what_happened(client: httpx.Client) -> None:
    names = {
        "queries": ("prefix_cache_queries_total", ""),
        "hits": ("prefix_cache_hits_total", ""),
        "computed": ("prompt_tokens_by_source_total", 'source="local_compute"'),
        "cached": ("prompt_tokens_by_source_total", 'source="local_cache_hit"'),
        "transferred": ("prompt_tokens_by_source_total", 'source="external_kv_transfer"'),
        "generated": ("generation_tokens_total", ""),
        "length": ("request_success_total", 'finished_reason="length"'),
        "ttft": ("time_to_first_token_seconds_count", ""),
        "itl": ("inter_token_latency_seconds_count", ""),
        "e2e": ("e2e_request_latency_seconds_count", ""),
        "queue": ("request_queue_time_seconds_count", ""),
        "prefill": ("request_prefill_time_seconds_count", ""),
        "decode": ("request_decode_time_seconds_bucket", 'le="+Inf"'),
    }
    before = {key: metric(client, *where) for key, where in names.items()}
    complete(client, list(range(100)), 5)
    complete(client, list(range(100)), 5)
    change = {key: metric(client, *where) - before[key] for key, where in names.items()}
    assert change == {
        **{"queries": 200, "hits": 96, "computed": 104, "cached": 96, "transferred": 0, "generated": 10},
        **{"length": 2, "ttft": 2, "itl": 8, "e2e": 2, "queue": 2, "prefill": 2, "decode": 2},
    }
    text = client.get("/metrics").text
    [info] = re.findall(r"^vllm:cache_config_info\{(.*)\} 1.0$", text, re.MULTILINE)
    assert 'block_size="32"' in info
    assert 'num_gpu_blocks="512"' in info
    assert metric(client, "num_preemptions_total") >= 0


def test_preemption_is_counted_and_loses_nothing() -> None:
    small = {**QUICK, "decode_base_s": 0.003, "num_blocks": 11, "max_model_len": 320}
    with SimProcess.start("tiny", settings=small) as sim, httpx.Client(base_url=sim.url, trust_env=False) as client:

        def one(number: int) -> dict[str, Any]:
            return complete(client, list(range(number * 1000, number * 1000 + 127)), 150)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(one, range(4)))
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [150] * 4
        assert [len(answer["choices"][0]["text"]) for answer in answers] == [600] * 4
        assert metric(client, "num_preemptions_total") == sum(row["preemptions"] for row in truth(client).values())
        assert metric(client, "num_preemptions_total") > 0


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[tuple[httpx.Client, Path]]:
    settings = {"frontend_s": 0.004, "prefill_base_s": 0.006, "prefill_s_per_token": 1e-5, "attention_s_per_token2": 0}
    log = tmp_path / "truth.jsonl"
    with (
        SimProcess.start("tiny", settings=settings, truth_log=log, api_key="sesame") as sim,
        httpx.Client(base_url=sim.url, trust_env=False) as client,
    ):
        yield client, log


def test_truth_log_and_key(logged: tuple[httpx.Client, Path]) -> None:
    client, log = logged
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers={"authorization": "Bearer open"}).json() == {"error": "Unauthorized"}
    assert client.get("/version").status_code == 200
    client.headers["authorization"] = "Bearer sesame"
    before_ns = time.monotonic_ns()
    for name in ("cold", "warm"):
        body = {"prompt": list(range(1000)), "max_tokens": 3, "stream": True, "ignore_eos": True}
        assert client.post("/v1/completions", json=body, headers={"x-request-id": name}).status_code == 200
    after_ns = time.monotonic_ns()
    # A line is written after the answer's last byte, but before the next request is looked at.
    rows = list(truth(client).values())
    assert [json.loads(line) for line in log.read_text().splitlines()] == rows
    assert [row["request_id"] for row in rows] == ["cold", "warm"]
    for row, hits in zip(rows, (0, 992), strict=True):
        # frontend 4 ms, base 6 ms, 10 us for each uncached token: exact, whatever this machine was doing.
        assert row["planned_first_token_ns"] - row["arrival_ns"] == 10_000_000 + (1000 - hits) * 10_000
        assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (1000, hits, 3)
        assert (row["queue_wait_ns"], row["evicted_blocks"], row["preemptions"]) == (0, 0, 0)
        assert (row["finish_reason"], row["stream"]) == ("length", True)
        moments = [
            row[key] for key in ("arrival_ns", "planned_first_token_ns", "first_token_write_ns", "last_write_ns")
        ]
        assert [before_ns, *moments, after_ns] == sorted([before_ns, *moments, after_ns])
    assert "sesame" not in log.read_text()
