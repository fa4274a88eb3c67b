"""The simulated DeepSeek API over real HTTP. A token is four bytes; a message has four marks, a prompt three more."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from kvbench.sim.process import SimProcess

from .conftest import QUICK

SATURDAY = "2026-11-28T12:00:00Z"  # off-peak, whenever the tests run
SETTINGS = {**QUICK, "unit_build_s": 0, "thinking_tokens": 10, "keep_alive_s": "null", "utc_start": SATURDAY}
OFF = {"type": "disabled"}


@contextlib.contextmanager
def simulated(time_scale: float = 1.0, api_key: str | None = None, **settings: Any) -> Iterator[httpx.Client]:
    with (
        SimProcess.start(
            "deepseek-api", settings={**SETTINGS, **settings}, time_scale=time_scale, api_key=api_key
        ) as sim,
        httpx.Client(base_url=sim.url, trust_env=False, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """The preset with all prefill in no time; each test uses prompts of its own."""
    with simulated() as client:
        yield client


def text(word: str, tokens: int) -> str:
    """A text of so many tokens, the first of which is `word`, four letters."""
    return word + "wxyz" * (tokens - 1)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def ask(client: httpx.Client, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    body = {"model": "deepseek-flash", "messages": list(messages), "max_tokens": 1, "thinking": OFF, **body}
    answer = client.post("/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def hit(client: httpx.Client, *messages: dict[str, Any], **body: Any) -> int:
    usage = ask(client, *messages, **body)["usage"]
    assert usage["prompt_cache_hit_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"]
    count: int = usage["prompt_cache_hit_tokens"]
    return count


def stream(client: httpx.Client, *messages: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    """The chunks; the last event must be [DONE]."""
    body = {"model": "deepseek-flash", "messages": list(messages), "stream": True, **body}
    *events, done = [event for event in client.post("/chat/completions", json=body).text.split("\n\n") if event]
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def raw(client: httpx.Client, body: dict[str, Any], until: bytes) -> bytes:
    """What comes over a socket of our own, until it ends so or is closed."""
    where = urlsplit(str(client.base_url))
    data = json.dumps({"model": "deepseek-flash", "thinking": OFF, **body}).encode()
    head = f"POST /chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    received = b""
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall(head + data)
        while not received.endswith(until) and (part := connection.recv(65536)):
            received += part
    return received


def chunks(raw_answer: bytes) -> list[bytes]:
    head, _, chunked = raw_answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    found = []
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        chunked = rest[int(size, 16) + 2 :]
    return found


def truth(client: httpx.Client) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.get("/sim/truth").text.splitlines()]


@contextlib.contextmanager
def busy(client: httpx.Client) -> Iterator[None]:
    """While another request is being answered."""
    body = {"model": "deepseek-flash", "messages": [user("busy")], "max_tokens": 300, "stream": True}
    url = f"{client.base_url}/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=30) as answer:
        parts = answer.iter_raw()  # letting go of it would close the stream
        next(parts)
        yield


# ---- prefix units


@pytest.mark.parametrize(("granularity", "expected"), [(64, 960), (128, 896)])
def test_the_third_request_hits_what_two_had_in_common(granularity: int, expected: int) -> None:
    with simulated(unit_granularity_tokens=granularity) as client:
        long = {"role": "system", "content": text("long", 1000)}
        # 1,004 tokens of the first message and three marks of the second are common: 1,007.
        found = [hit(client, long, user(text(word, 50))) for word in ("aaaa", "bbbb", "cccc", "dddd")]
        assert found == [0, 0, expected, expected]


def test_a_conversation_hits_the_end_of_input_and_of_output(client: httpx.Client) -> None:
    first = user(text("conv", 500))
    answer = ask(client, first, max_tokens=1000)["choices"][0]["message"]
    assert set(answer) == {"role", "content"}
    # 507 tokens of prompt, then the answer and its end mark; the last token sampled was never computed.
    output = len(answer["content"]) // 4 + 1
    end = (507 + output - 1) // 128 * 128
    assert hit(client, first, answer, user("and now?")) == end
    # Another answer: what is left is the end of the first input, 507 tokens in pieces of 128.
    assert hit(client, first, {"role": "assistant", "content": "another answer"}, user("now?")) == 384


def test_a_unit_must_be_matched_in_full(client: httpx.Client) -> None:
    assert hit(client, user(text("full", 1000))) == 0
    # The prompt is the earlier one's first half: a block cache would hit it, no unit ends in it.
    assert hit(client, user(text("full", 500))) == 0
    assert hit(client, user(text("full", 500))) == 384  # 507 tokens, in pieces of 128


def test_an_aligned_prompt_is_hit_to_its_end_unless_the_last_token_is_recomputed(client: httpx.Client) -> None:
    assert [hit(client, user(text("even", 249))) for _ in range(2)] == [0, 256]
    with simulated(recompute_last_token=True) as other:
        assert [hit(other, user(text("even", 249))) for _ in range(2)] == [0, 0]


def test_units_at_intervals() -> None:
    first = user(text("long", 1100))  # its unit ends at 1,024
    for interval, expected in (("null", 0), (256, 768)):
        with simulated(unit_interval_tokens=interval) as client:
            hit(client, first)
            # 900 tokens in common, 768 of them up to an interval's end.
            changed = user(text("long", 897) + text("else", 100))
            assert hit(client, changed) == expected


def test_outputs_are_no_units_where_they_are_not_cached() -> None:
    with simulated(cache_outputs=False) as client:
        first = user(text("conv", 125))
        answer = ask(client, first, max_tokens=1000)["choices"][0]["message"]
        assert hit(client, first, answer, user("and now?")) == 128


def test_users_have_caches_of_their_own(client: httpx.Client) -> None:
    mine = user(text("mine", 300))
    found = [hit(client, mine, user_id=name) for name in ("a", "b", "a", "b")]
    assert found == [0, 0, 256, 256]
    assert hit(client, mine) == 0
    assert hit(client, mine, cache_salt="x") == 256  # DeepSeek knows no such field


@pytest.mark.parametrize(("time_scale", "expected"), [(1.0, 0), (1e-6, 256), (0.0, 256)])
def test_units_take_their_time_to_build_in_trace_time(time_scale: float, expected: int) -> None:
    with simulated(time_scale, unit_build_s=3600, idle_ttl_s="null") as client:
        hit(client, user(text("late", 300)))
        time.sleep(0.05)  # 3,600 s are 3.6 ms of it
        assert hit(client, user(text("late", 300))) == expected


@pytest.mark.parametrize(("time_scale", "expected"), [(1.0, 256), (1e-6, 0), (0.0, 256)])
def test_units_live_in_trace_time(time_scale: float, expected: int) -> None:
    with simulated(time_scale, idle_ttl_s=3600) as client:
        hit(client, user(text("gone", 300)))
        time.sleep(0.05)
        assert hit(client, user(text("gone", 300))) == expected


def test_units_may_be_lost() -> None:
    with simulated(lapse_probability=1) as client:
        assert [hit(client, user(text("lost", 300))) for _ in range(3)] == [0, 0, 0]


# ---- what is said


def test_usage_rides_on_the_finish_chunk(client: httpx.Client) -> None:
    expected = {
        "prompt_tokens": 8,
        "completion_tokens": 4,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": 8,
    }
    for options, others in ({"include_usage": True}, [None]), (None, [...]):
        got = stream(client, user("hi"), max_tokens=4, thinking=OFF, stream_options=options)
        role, *tokens, finish = got
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [set(token["choices"][0]["delta"]) for token in tokens] == [{"content"}] * 4
        assert [len(token["choices"][0]["delta"]["content"]) for token in tokens] == [4] * 4
        [choice] = finish["choices"]
        assert (choice["delta"], choice["finish_reason"]) == ({"content": ""}, "length")
        assert finish["usage"] == expected
        assert [chunk.get("usage", ...) for chunk in (role, *tokens)] == others * 5
        assert {chunk["object"] for chunk in got} == {"chat.completion.chunk"}
        assert {chunk["choices"][0]["finish_reason"] for chunk in (role, *tokens)} == {None}


def test_usage_has_a_chunk_of_its_own_in_the_earlier_shape() -> None:
    with simulated(usage_on="extra") as client:
        *others, finish, last = stream(client, user("hi"), max_tokens=4, stream_options={"include_usage": True})
        assert last["choices"] == []
        assert last["usage"]["prompt_tokens"] == 8
        assert finish["choices"][0]["finish_reason"] == "length"
        assert [chunk["usage"] for chunk in (*others, finish)] == [None] * 6
        assert not any("usage" in chunk for chunk in stream(client, user("hi"), max_tokens=4))


def test_thinking_is_on_and_comes_before_the_answer(client: httpx.Client) -> None:
    role, *tokens, finish = stream(client, user("why?"))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": None, "reasoning_content": ""}
    deltas = [token["choices"][0]["delta"] for token in tokens]
    assert [len(delta["reasoning_content"]) for delta in deltas[:10]] == [4] * 10
    assert {delta["content"] for delta in deltas[:10]} == {None}
    assert {delta["reasoning_content"] for delta in deltas[10:]} == {None}
    assert {len(delta["content"]) for delta in deltas[10:]} == {4}
    assert finish["choices"][0]["delta"] == {"content": "", "reasoning_content": None}
    assert finish["choices"][0]["finish_reason"] == "stop"
    usage = finish["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 10}
    assert usage["completion_tokens"] == len(tokens) + 1  # the end mark is a token without text
    whole = ask(client, user("why?"), thinking=None, max_tokens=None)
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "".join(delta["reasoning_content"] for delta in deltas[:10])
    assert message["content"] == "".join(delta["content"] for delta in deltas[10:])
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}


def test_thinking_may_use_up_the_tokens(client: httpx.Client) -> None:
    answer = ask(client, user("why?"), thinking={"type": "enabled"}, max_tokens=6)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}
    assert answer["choices"][0]["message"]["content"] == ""
    assert len(answer["choices"][0]["message"]["reasoning_content"]) == 24
    assert answer["choices"][0]["finish_reason"] == "length"


def test_reasoning_is_kept_with_tools_and_dropped_without(client: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}]
    thinking = {"type": "enabled"}
    first = user(text("tool", 120))
    sent = ask(client, first, tools=tools, thinking=thinking, max_tokens=300)
    message, before = sent["choices"][0]["message"], sent["usage"]["prompt_tokens"]
    output = (len(message["reasoning_content"]) + len(message["content"])) // 4 + 1
    assert sent["usage"]["completion_tokens"] == output
    # An end mark, if there was none, is all that the next turn adds to input and output before the user speaks again.
    again = ask(client, first, message, user("more"), tools=tools, thinking=thinking)["usage"]
    assert again["prompt_tokens"] == before + output + 5 + 3
    assert again["prompt_cache_hit_tokens"] == (before + output - 1) // 128 * 128
    without = ask(client, first, message, user("more"), thinking=thinking)["usage"]["prompt_tokens"]
    bare = {"role": "assistant", "content": message["content"]}
    assert ask(client, first, bare, user("more"))["usage"]["prompt_tokens"] == without
    refused = {"model": "deepseek-flash", "messages": [first, bare, user("more")], "tools": tools}
    answer = client.post("/chat/completions", json=refused)
    assert answer.status_code == 400
    assert "`reasoning_content` in the thinking mode must be passed back" in answer.json()["error"]["message"]
    assert client.post("/chat/completions", json={**refused, "thinking": OFF}).status_code == 200


def test_the_model_stops_by_itself_whatever_vllm_would_be_told(client: httpx.Client) -> None:
    one = ask(client, user("stop"), max_tokens=None)
    assert one["choices"][0]["finish_reason"] == "stop"
    assert ask(client, user("stop"), max_tokens=900, ignore_eos=True, min_tokens=900)["usage"] == one["usage"]


def test_names_and_places(client: httpx.Client) -> None:
    for base in ("", "/v1"):
        assert client.get(f"{base}/models").json() == {
            "object": "list",
            "data": [{"id": "deepseek-flash", "object": "model", "owned_by": "deepseek"}],
        }
        for model in ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp"):
            body = {"model": model, "messages": [user("hi")], "max_tokens": 1}
            assert client.post(f"{base}/chat/completions", json=body).json()["model"] == "deepseek-flash"
    for path in ("/version", "/metrics", "/tokenize", "/v1/completions", "/health"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "deepseek-chat"}, 400, "Model Not Exist"),
        ({"messages": None}, 400, "Failed to deserialize the JSON body into the target type"),
        ({"thinking": {"type": "often"}}, 400, "Failed to deserialize the JSON body"),
        ({"messages": [{"content": "x"}]}, 400, "needs a role"),
        ({"messages": [user("x" * 400)], "max_tokens": 1950}, 400, "maximum context length is 2000 tokens"),
        ({"messages": []}, 422, "Empty input messages"),
        ({"max_tokens": 0}, 422, "valid range of max_tokens is [1, 2000]"),
        ({"temperature": 3}, 422, "valid range of temperature is [0, 2]"),
        ({"top_p": 0}, 422, "valid range of top_p"),
        ({"reasoning_effort": "some"}, 422, "`low`, `high`, `max`"),
        ({"stream": False, "stream_options": {"include_usage": True}}, 422, "stream = true"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_errors(small: httpx.Client, body: dict[str, Any], status: int, message: str, streaming: bool) -> None:
    whole = {"model": "deepseek-flash", "messages": [user("x")], "stream": streaming, **body}
    answer = small.post("/chat/completions", json=whole)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert message in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_request_error"}


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    with simulated(max_model_len=2000, api_key="sesame") as client:
        client.headers["authorization"] = "Bearer sesame"
        yield client


def test_a_key_is_needed_everywhere(small: httpx.Client) -> None:
    for path in ("/models", "/v1/models", "/user/balance"):
        for header in ("", "Bearer open"):
            answer = small.get(path, headers={"authorization": header})
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert "Authentication Fails" in answer.json()["error"]["message"]
    assert small.get("/models").status_code == 200
    assert small.post("/chat/completions", content=b'{"model": ').status_code == 400


# ---- /sim/tokenize


def tokens_of(client: httpx.Client, **body: Any) -> list[int]:
    answer = client.post("/sim/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert got.keys() == {"count", "max_model_len", "tokens", "token_strs"}
    assert (got["count"], got["max_model_len"]) == (len(got["tokens"]), 1_000_000)
    ids: list[int] = got["tokens"]
    return ids


def test_it_tells_the_ids_that_a_request_with_the_same_body_uses(client: httpx.Client) -> None:
    # A mark is 0xFFFFFF00 + n: start 0, separator 1, end 2, roles from 16 (system, developer, user, assistant, tool).
    start, separator, end, user_role, assistant = (0xFFFFFF00 + n for n in (0, 1, 2, 18, 19))
    word = int.from_bytes(b"ids ", "little")
    body: dict[str, Any] = {"model": "deepseek-flash", "messages": [user("ids " * 2)], "thinking": OFF}
    message = [start, user_role, separator, word, word, end]
    assert tokens_of(client, **body) == [*message, start, assistant, separator]
    assert tokens_of(client, prompt="ids ") == [word]

    said = {"role": "assistant", "content": "ids ", "reasoning_content": "ids ids "}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    for extra in ({}, {"tools": tools}):
        for thinking in (OFF, {"type": "enabled"}):
            full = {**body, **extra, "messages": [user("ids "), said, user("ids ")], "thinking": thinking}
            used = client.post("/chat/completions", json={**full, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
            assert len(tokens_of(client, **full, stream=True)) == used
    # The reasoning is a part of the prompt only where there are tools and thinking is on.
    assert len(tokens_of(client, **full)) - len(tokens_of(client, **{**full, "thinking": OFF})) == 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prompt": "x", "model": "other"}, 400, "Model Not Exist"),
        ({}, 422, "prompt and messages"),
        ({"messages": 5}, 400, "deserialize"),
    ],
)
def test_what_has_no_tokens(client: httpx.Client, body: dict[str, Any], status: int, text: str) -> None:
    answer = client.post("/sim/tokenize", json=body)
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]
