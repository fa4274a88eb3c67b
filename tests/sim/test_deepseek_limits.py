"""Waiting, limits and money of the simulated DeepSeek API."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from decimal import Decimal

import httpx
import pytest
from tests.sim.test_deepseek import OFF, ask, busy, chunks, client, raw, simulated, stream, text, truth, user

__all__ = ["client"]


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
