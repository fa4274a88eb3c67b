"""The simulated DeepSeek API over real HTTP. A token is four bytes; a message has four marks, a prompt three more."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
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


# ---- waiting, limits, money


@pytest.mark.parametrize("streaming", [True, False])
def test_signs_of_life_while_a_request_waits(streaming: bool) -> None:
    body = {"messages": [user("hi")], "max_tokens": 3, "stream": streaming}
    with simulated(prefill_base_s=0.35, keep_alive_s=0.1) as client:
        *parts, end = chunks(raw(client, body, b"\r\n0\r\n\r\n"))
    assert end == b""
    sign = b": keep-alive\n\n" if streaming else b"\n"
    # At 0.1, 0.2 and 0.3 s; a busy machine may be late with some.
    assert sign in parts
    assert parts[: parts.count(sign)] == [sign] * parts.count(sign)
    rest = b"".join(parts[parts.count(sign) :])
    assert b"keep-alive" not in rest
    if streaming:
        assert rest.startswith(b"data: ")
    else:
        assert json.loads(b"".join(parts))["usage"]["completion_tokens"] == 3


def test_no_sign_of_life_once_tokens_come() -> None:
    with simulated(decode_base_s=0.15, keep_alive_s=0.04) as client:
        answer = raw(client, {"messages": [user("hi")], "max_tokens": 4, "stream": True}, b"\r\n0\r\n\r\n")
        _, _, after = answer.partition(b"data: ")
        assert after.count(b"data: ") == 6  # four tokens, the finish chunk and [DONE]
        assert b"keep-alive" not in after


def test_no_sign_of_life_of_what_was_answered_in_no_time() -> None:
    prefill = ("frontend_s", "prefill_base_s", "prefill_s_per_token", "attention_s_per_token2")
    at_once = dict.fromkeys((*prefill, "decode_base_s", "decode_s_per_request", "send_s_per_chunk"), 0)
    body = json.dumps({"model": "deepseek-flash", "messages": [user("quick")], "max_tokens": 1}).encode()
    with simulated(**at_once, keep_alive_s=0.2) as client:
        address = (client.base_url.host, client.base_url.port or 0)
        with socket.create_connection(address, timeout=20) as connection:
            head = b"POST /chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)
            answers = connection.recv(65536)
            time.sleep(0.5)
            connection.sendall(b"GET /models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answers += b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"chunked" not in answers


def test_no_sign_of_life_where_none_is_set() -> None:
    with simulated(prefill_base_s=0.35) as client:
        answer = raw(client, {"messages": [user("hi")], "max_tokens": 3, "stream": True}, b"\r\n0\r\n\r\n")
        assert chunks(answer)[0].startswith(b"data: ")
        whole = raw(client, {"messages": [user("hi")], "max_tokens": 3}, b"}}")
        assert b"content-length" in whole


def test_a_request_that_does_not_begin_in_time_is_hung_up_on() -> None:
    settings = {"max_running": 1, "decode_base_s": 0.02, "begin_within_s": 0.2, "thinking_tokens": 200}
    with simulated(**settings, price_miss_per_mtok=10**6, price_output_per_mtok=0) as client:
        with busy(client):
            started = time.monotonic()
            answer = raw(client, {"messages": [user("late")], "stream": True}, b"never")
            assert time.monotonic() - started >= 0.2
        assert answer.endswith(b"\r\n\r\n")  # the head, and not a token
        assert b"data:" not in answer
        # The 8 tokens of the one that had begun are paid for, not those of the other.
        assert client.get("/user/balance").json()["balance_infos"][0]["total_balance"] == "102.00"
        assert {row["finish_reason"] for row in truth(client) if row["scheduled_ns"] is None} == {"abort"}
        assert ask(client, user("next"), max_tokens=30, thinking=OFF)["usage"]["prompt_tokens"] == 8


def test_one_request_too_many_is_refused() -> None:
    with simulated(max_in_flight=1, decode_base_s=0.01, thinking_tokens=200) as client:
        with busy(client):
            body = {"model": "deepseek-flash", "messages": [user("hi")]}
            answer = client.post("/chat/completions", json=body)
            assert answer.status_code == 429
            assert "concurrency limit of 1 " in answer.json()["error"]["message"]
            assert client.get("/models").status_code == 200
        deadline = time.monotonic() + 20
        while client.post("/chat/completions", json={**body, "max_tokens": 1}).status_code == 429:
            assert time.monotonic() < deadline


def test_every_nth_answer_is_cut_short(client: httpx.Client) -> None:
    whole = ask(client, user("cuts"), max_tokens=9)
    assert whole["choices"][0]["finish_reason"] == "length"
    with simulated(insufficient_resource_every=2) as other:
        answers = [ask(other, user("cuts"), max_tokens=9) for _ in range(4)]
        reasons = [answer["choices"][0]["finish_reason"] for answer in answers]
        assert reasons == ["length", "insufficient_system_resource"] * 2
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [9, 5, 9, 5]
        full, cut = (answer["choices"][0]["message"]["content"] for answer in answers[:2])
        assert (len(full), full[:20]) == (36, cut)
        stream(other, user("cuts"), max_tokens=9)
        assert stream(other, user("cuts"), max_tokens=9)[-1]["choices"][0]["finish_reason"] == reasons[1]


def test_the_balance_goes_down_by_the_price() -> None:
    prices = {"price_hit_per_mtok": 100, "price_miss_per_mtok": 1000, "price_output_per_mtok": "2000.5"}
    with simulated(**prices, granted_balance="0.30", topped_up_balance="1.405", currency="CNY") as client:
        assert client.get("/v1/user/balance").json() == {
            "is_available": True,
            "balance_infos": [
                {"currency": "CNY", "total_balance": "1.70", "granted_balance": "0.30", "topped_up_balance": "1.40"}
            ],
        }

        def amounts() -> tuple[str, str, str]:
            [info] = client.get("/user/balance").json()["balance_infos"]
            return info["total_balance"], info["granted_balance"], info["topped_up_balance"]

        ask(client, user(text("paid", 193)), max_tokens=20)
        # 200 misses at 0.001 and 20 tokens of output at 0.0020005: 0.24001, all of it granted.
        assert amounts() == ("1.46", "0.05", "1.40")
        ask(client, user(text("paid", 193)), max_tokens=20)
        # 128 hits at 0.0001, 72 misses and 20 tokens: 0.12481; 0.05999 of it was still granted.
        assert amounts() == ("1.34", "0.00", "1.34")
        left = Decimal("1.705") - Decimal("0.24001") - Decimal("0.12481")
        while left > 0:
            usage = ask(client, user(text("more", 293)), max_tokens=20, user_id=str(left))["usage"]
            left -= (Decimal(1000) * usage["prompt_tokens"] + Decimal("2000.5") * 20) / 10**6
        assert client.get("/user/balance").json()["is_available"] is False
        refused = client.post("/chat/completions", json={"model": "deepseek-flash", "messages": [user("hi")]})
        assert refused.status_code == 402
        assert refused.json()["error"]["message"] == "Insufficient Balance"


def test_what_was_left_unread_is_paid_for_as_far_as_it_came() -> None:
    with simulated(price_miss_per_mtok=10_000, price_output_per_mtok=0, granted_balance=100) as client:
        with busy(client):
            pass
        deadline = time.monotonic() + 20
        while not truth(client):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # 100 granted and 100 topped up, less 8 tokens of input at 0.01.
        assert client.get("/user/balance").json()["balance_infos"][0]["total_balance"] == "199.92"


def test_the_truth_agrees_with_what_was_said(client: httpx.Client) -> None:
    ask(client, user(text("true", 300)))
    said = ask(client, user(text("true", 300)), max_tokens=7)
    row = truth(client)[-1]
    assert row["response_id"] == said["id"]
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (307, 256, 7)


def test_every_parameter_is_known_or_assumed_with_its_source(client: httpx.Client) -> None:
    answer = client.get("/sim/parameters").json()
    rows = {row["name"]: row for row in answer["parameters"]}
    assert answer["preset"] == "deepseek-api"
    assert rows["unit_granularity_tokens"]["value"] == 128
    assert rows["unit_granularity_tokens"]["unit"] == "tokens"
    assert rows["unit_granularity_tokens"]["status"] == "assumed"
    assert "August 2024" in rows["unit_granularity_tokens"]["source"]
    assert rows["prefix"]["status"] == "known"
    assert rows["price_miss_per_mtok"]["value"] == "0.15"
    assert (rows["unit_build_s"]["status"], rows["unit_build_s"]["source"]) == ("set", None)


def test_many_at_once_are_answered_each_to_its_own(client: httpx.Client) -> None:
    answers: dict[int, str] = {}

    def one(number: int) -> None:
        with httpx.Client(base_url=client.base_url, trust_env=False, timeout=30) as own:
            parts = stream(own, user(f"number {number}"), max_tokens=30)
            answers[number] = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, said in answers.items():
        whole = ask(client, user(f"number {number}"), max_tokens=30, thinking=None)
        assert whole["choices"][0]["message"]["content"] == said
    assert len(answers) == 8
    assert re.fullmatch(r"[a-z .\n]*", "".join(answers.values()))


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
