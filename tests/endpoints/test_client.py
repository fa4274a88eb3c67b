"""send(): what goes out, what comes back, and that records hold the identity of their request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile
from kvbench.errors import ConfigError
from kvbench.model import Request

from .conftest import Peer, RawServer, http_chunk
from .helpers import DONE, LAST_CHUNK, MESSAGES, STREAM_HEAD, answer, event, send, serving, stream

StartServer = Callable[..., RawServer]
CA = trustme.CA()
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
GOOD = stream(
    event(role="assistant", content=""), event(content="a"), event(content="b", finish="stop", usage=USAGE), DONE
)


def remembering(seen: list[tuple[str, bytes]], *answers: bytes) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        for data in answers:
            head, body = peer.request()
            if not head:
                return
            seen.append((head.decode(), body))
            peer.send(data)
        peer.request()

    return handler


async def test_a_record_holds_its_request_and_times_in_order(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(GOOD)).url)
    assert record.ok
    assert (record.request_id, record.session_id, record.turn, record.attempt) == ("q1", "s1", 3, 1)
    assert (record.phase, record.root_id, record.wanted_output_tokens) == ("warmup", "root", 4)
    assert (record.response_id, record.response_model, record.http_status) == ("r1", "m1", 200)
    assert (record.output_text, record.finish_reason) == ("ab", "stop")
    assert record.usage_raw == USAGE
    assert (record.usage.input_tokens, record.usage.cached_tokens, record.usage.output_tokens) == (9, 8, 2)
    clock = record.clock
    assert (clock.scheduled, clock.due, clock.limit_wait_ns) == (5, 7, 2)
    assert clock.connect_ns is not None
    times = [clock.upload_start, clock.sent, clock.first_byte, clock.headers, clock.first_token, clock.last_token]
    times.append(clock.end)
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert clock.first_token_bound_ns is not None
    assert clock.first_token_bound_ns >= 0
    assert clock.read_lag_ns is not None
    assert clock.read_lag_ns >= 0
    assert clock.stamp in ("kernel", "loop")


async def test_what_goes_out(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    server = raw_server(remembering(seen, GOOD))
    record = await send(
        server.url, request_id="run/s\u00e9\n1/0", headers={"x-team": "bench"}, extra_body={"temperature": 0.5}
    )
    assert record.request_id == "run/s\u00e9\n1/0"
    head, body = seen[0]
    lines = head.split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
    assert headers["x-request-id"] == "run/s%C3%A9%0A1/0"
    assert headers["x-team"] == "bench"
    assert headers["content-type"] == "application/json"
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("kvbench/")
    assert "authorization" not in headers
    assert json.loads(body) == {
        "messages": MESSAGES,
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }


async def test_surrogates_and_huge_integers_in_a_body_are_still_json(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "\ud800"}], "seed": 1 << 80}
    assert (await send(raw_server(remembering(seen, GOOD)).url, body)).ok
    assert json.loads(seen[0][1]) == body


async def test_without_streaming_there_is_no_ttft_but_an_end(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    whole = {
        "id": "x",
        "model": "m",
        "choices": [{"message": {"content": "hi", "tool_calls": []}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    record = await send(raw_server(remembering(seen, answer(whole))).url, stream=False)
    assert json.loads(seen[0][1])["stream"] is False
    assert record.ok
    assert (record.output_text, record.usage.cached_tokens, record.tool_calls) == ("hi", 8, None)
    assert record.clock.first_token is None
    assert record.clock.first_output_token is None
    assert record.clock.last_token == record.clock.end is not None


async def test_completions(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    text = b'data: {"choices": [{"index": 0, "text": "ab", "finish_reason": "length"}]}\n\n'
    server = raw_server(remembering(seen, stream(text, DONE)))
    endpoint = await Endpoint.open(EndpointProfile(url=server.url), RunClock.start())
    try:
        body = endpoint.build_body(prompt=[1, 2, 3], output_tokens=2)
        record = await endpoint.send(Request(request_id="q", session_id="s", turn=0, body=body, api="completions"))
    finally:
        await endpoint.aclose()
    assert seen[0][0].startswith("POST /v1/completions ")
    assert json.loads(seen[0][1])["prompt"] == [1, 2, 3]
    assert (record.output_text, record.finish_reason) == ("ab", "length")
    assert len(record.clock.chunks) == 1


async def test_connections_are_kept_alive(raw_server: StartServer) -> None:
    server = raw_server(serving(GOOD, GOOD))
    endpoint = await Endpoint.open(EndpointProfile(url=server.url), RunClock.start())
    try:
        body = endpoint.build_body(messages=MESSAGES)
        records = [
            await endpoint.send(Request(request_id=f"q{i}", session_id="s", turn=i, body=body)) for i in range(2)
        ]
    finally:
        await endpoint.aclose()
    assert server.connections == 1
    assert records[0].clock.connect_ns is not None
    assert records[1].clock.connect_ns is None


async def test_cancelling_closes_the_connection(raw_server: StartServer) -> None:
    loop = asyncio.get_running_loop()
    answered, closed = asyncio.Event(), asyncio.Event()

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD + http_chunk(event(content="a")))
        loop.call_soon_threadsafe(answered.set)
        if peer.request() == (b"", b""):
            loop.call_soon_threadsafe(closed.set)

    server = raw_server(handler)
    endpoint = await Endpoint.open(EndpointProfile(url=server.url), RunClock.start())
    body = endpoint.build_body(messages=MESSAGES)
    task = asyncio.create_task(endpoint.send(Request(request_id="q", session_id="s", turn=0, body=body)))
    async with asyncio.timeout(10):
        await answered.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed.wait()
    await endpoint.aclose()


async def test_cookies_are_not_carried_from_session_to_session(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    cookie = GOOD.replace(b"\r\n", b"\r\nset-cookie: sticky=1; Path=/\r\n", 1)
    server = raw_server(remembering(seen, cookie, GOOD))
    endpoint = await Endpoint.open(EndpointProfile(url=server.url), RunClock.start())
    try:
        body = endpoint.build_body(messages=MESSAGES)
        for i in range(2):
            assert (await endpoint.send(Request(request_id=f"q{i}", session_id="s", turn=i, body=body))).ok
    finally:
        await endpoint.aclose()
    assert len(seen) == 2
    assert "cookie" not in seen[1][0].lower()


async def test_a_url_that_only_httpx_refuses() -> None:
    with pytest.raises(ConfigError, match="not a valid URL"):
        await Endpoint.open(EndpointProfile(url="http://\u2100.example"), RunClock.start())


# ------------------------------------------------------------------------------------------------------------- proxy


async def test_a_proxy_only_when_asked_for_and_then_with_loop_stamps(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    proxy = raw_server(remembering(seen, GOOD))
    record = await send("http://endpoint.invalid:81", proxy=proxy.url)
    assert record.ok, record.error_message
    assert seen[0][0].startswith("POST http://endpoint.invalid:81/v1/chat/completions HTTP/1.1")
    assert record.clock.stamp == "loop"
    assert (record.output_text, record.usage.cached_tokens) == ("ab", 8)
    clock = record.clock
    times = [clock.upload_start, clock.sent, clock.headers, clock.first_token, clock.last_token, clock.end]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert clock.connect_ns is not None
    assert clock.first_token_bound_ns is not None


async def test_a_proxy_is_said_to_coarsen_the_clock() -> None:
    endpoint = await Endpoint.open(EndpointProfile(url="http://h", proxy="http://127.0.0.1:1"), RunClock.start())
    assert [w.code for w in endpoint.warnings] == ["coarse_clock"]
    await endpoint.aclose()


def silent(peer: Peer) -> None:
    peer.request()
    peer.request()


def closing(peer: Peer) -> None:
    peer.request()


def cut(peer: Peer) -> None:
    peer.request()
    peer.send(STREAM_HEAD + http_chunk(event(content="a")))


@pytest.mark.parametrize(
    ("handler", "error_class"),
    [
        (closing, "truncated"),
        (cut, "truncated"),
        (serving(STREAM_HEAD + http_chunk(event(content="a"))[:-9]), "idle_timeout"),
        (silent, "idle_timeout"),
        (serving(answer(b"", "502 Bad Gateway")), "server_error"),
        (serving(b"nonsense\r\n\r\n"), "protocol_error"),
    ],
)
async def test_faults_through_a_proxy(
    raw_server: StartServer, handler: Callable[[Peer], None], error_class: str
) -> None:
    proxy = raw_server(handler)
    record = await send("http://endpoint.invalid", proxy=proxy.url, timeouts={"idle_s": 0.3})
    assert record.error_class == error_class, record.error_message


async def test_compression_through_a_proxy_is_refused(raw_server: StartServer) -> None:
    proxy = raw_server(serving(answer(b"\x1f\x8b", extra="content-encoding: gzip\r\n")))
    record = await send("http://endpoint.invalid", proxy=proxy.url)
    assert record.error_class == "protocol_error"
    assert "gzip" in (record.error_message or "")


async def test_the_bound_through_a_proxy_is_about_the_loop_not_the_wait(raw_server: StartServer) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        time.sleep(1.0)
        peer.send(http_chunk(event(content="a", finish="stop")) + LAST_CHUNK)
        peer.request()

    clock = (await send("http://endpoint.invalid", proxy=raw_server(handler).url)).clock
    assert clock.sent is not None
    assert clock.first_token is not None
    assert clock.first_token_bound_ns is not None
    # The loop was polled many times in the second of waiting, so the bytes are known not to have come early in it.
    assert 0 < clock.first_token_bound_ns < (clock.first_token - clock.sent) / 2


async def test_a_dead_proxy_is_refused_and_a_drip_through_one_ends(raw_server: StartServer) -> None:
    assert (await send("http://endpoint.invalid", proxy="http://127.0.0.1:1")).error_class == "refused"

    def drip(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        while True:
            peer.chunk(event(content="x"))
            time.sleep(0.02)

    record = await send("http://endpoint.invalid", proxy=raw_server(drip).url, timeouts={"total_s": 0.4})
    assert record.error_class == "total_timeout"
    assert set(record.output_text or "") == {"x"}


# --------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    CA.cert_pem.write_to_path(path)
    return str(path)


async def test_tls_is_verified_and_takes_a_ca_file(
    raw_server: StartServer, server_tls: ssl.SSLContext, ca_file: str
) -> None:
    server = raw_server(serving(GOOD), wrap=lambda sock: server_tls.wrap_socket(sock, server_side=True))
    url = f"https://localhost:{server.port}"
    unknown = await send(url)
    assert unknown.error_class == "tls"
    assert "certificate" in (unknown.error_message or "")
    record = await send(url, ca_file=ca_file)
    assert record.ok, record.error_message
    assert record.output_text == "ab"


async def test_tls_through_a_proxy(raw_server: StartServer, server_tls: ssl.SSLContext, ca_file: str) -> None:
    asked: list[bytes] = []

    def tunnel(peer: Peer) -> None:
        asked.append(peer.request()[0].split(b"\r\n")[0])
        peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with contextlib.suppress(OSError), server_tls.wrap_socket(peer.sock, server_side=True) as wrapped:
            serving(GOOD)(Peer(wrapped))

    proxy = raw_server(tunnel)
    record = await send("https://localhost:444", ca_file=ca_file, proxy=proxy.url)
    assert record.ok, record.error_message
    assert record.output_text == "ab"
    assert record.clock.stamp == "loop"
    assert (await send("https://localhost:444", proxy=proxy.url)).error_class == "tls"
    assert asked == [b"CONNECT localhost:444 HTTP/1.1"] * 2


# ----------------------------------------------------------------------------------------------------- recorded streams

DATA = os.environ.get("KVBENCH_TEST_DATA")


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("name", "usage", "text", "reasoning_chunks"),
    [
        ("crlf_nospace_keepalive", (3, None, 2, None), "ab", 0),
        ("test_deepseek_model_thinking_stream.0", (6, 0, 212, 198), None, 198),
        ("test_openrouter_streaming_reasoning.0", (43, 0, 36, 13), None, None),
    ],
)
async def test_recorded_event_streams(
    raw_server: StartServer,
    name: str,
    usage: tuple[int | None, ...],
    text: str | None,
    reasoning_chunks: int | None,
) -> None:
    content = (Path(DATA or "") / "sse" / f"{name}.sse").read_bytes()
    pieces = [content[i : i + 1000] for i in range(0, len(content), 1000)]
    record = await send(raw_server(serving(STREAM_HEAD + b"".join(map(http_chunk, pieces)) + LAST_CHUNK)).url)
    assert record.ok, record.error_message
    counts = record.usage
    assert (counts.input_tokens, counts.cached_tokens, counts.output_tokens, counts.reasoning_tokens) == usage
    assert text is None or record.output_text == text
    assert record.finish_reason == "stop"
    if reasoning_chunks is not None:
        reasoning = content.count(b'"reasoning_content":"') - content.count(b'"reasoning_content":""')
        assert reasoning == reasoning_chunks
