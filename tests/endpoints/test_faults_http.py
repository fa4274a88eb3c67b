"""Faults before and around a stream: connections, statuses, answers that are no stream."""

from __future__ import annotations

import socket
import time

import pytest
from tests.endpoints.test_faults import GOOD, USAGE, StartServer, failed

from .conftest import Peer
from .helpers import answer, send, serving, stream


async def test_closed_before_an_answer_is_not_silently_sent_again(raw_server: StartServer) -> None:
    server = raw_server(lambda peer: peer.request() and None)
    record = await send(server.url)
    failed(record, "truncated")
    assert server.connections == 1


async def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    record = await send(f"http://127.0.0.1:{port}")
    failed(record, "refused")
    assert record.http_status is None
    assert record.clock.stamp == "none"
    assert record.clock.sent is None


async def test_dns() -> None:
    failed(await send("http://no-such-host.invalid"), "dns")


async def test_tls_against_a_server_without_it(raw_server: StartServer) -> None:
    def handler(peer: Peer) -> None:
        peer.sock.recv(65536)
        peer.send(answer(b"plain"))

    failed(await send(raw_server(handler).url.replace("http:", "https:")), "tls")


async def test_connect_timeout() -> None:
    # A listener whose backlog is full neither accepts nor refuses.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        record = await send(f"http://127.0.0.1:{port}", timeouts={"connect_s": 0.3})
        for filler in fillers:
            filler.close()
    failed(record, "connect_timeout")


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("Wed, 21 Oct 2015 07:29:30 GMT", 90.0), ("1e9", 1e9), ("soon", None)]
)
async def test_rate_limited_says_how_long(raw_server: StartServer, header: str, seconds: float | None) -> None:
    extra = f"retry-after: {header}\r\ndate: Wed, 21 Oct 2015 07:28:00 GMT\r\n"
    record = await send(raw_server(serving(answer({"error": {"message": "slow"}}, "429 Too Many", extra=extra))).url)
    assert "slow" in failed(record, "rate_limited")
    assert record.retry_after_s == seconds
    assert (record.clock.scheduled, record.clock.due, record.clock.limit_wait_ns) == (5, 7, 2)


@pytest.mark.parametrize(
    ("status", "body", "error_class"),
    [
        ("401 Unauthorized", b'{"error": {"message": "bad key"}}', "auth"),
        ("403 Forbidden", b"", "auth"),
        ("402 Payment Required", b'{"error": {"message": "Insufficient Balance"}}', "payment"),
        ("404 Not Found", b'{"error": {"message": "The model `x` does not exist."}}', "not_found"),
        (
            "400 Bad Request",
            b'{"error": {"message": "This model\'s maximum context length is 8192 tokens."}}',
            "context_overflow",
        ),
        ("400 Bad Request", b'{"error": {"message": "temperature must be"}}', "bad_request"),
        ("500 Internal Server Error", b"<html>oops</html>", "server_error"),
        ("503 Service Unavailable", b"", "overloaded"),
    ],
)
async def test_http_errors(raw_server: StartServer, status: str, body: bytes, error_class: str) -> None:
    record = await send(raw_server(serving(answer(body, status, "text/html"))).url)
    message = failed(record, error_class)
    assert status[:3] in message
    assert record.http_status == int(status[:3])
    assert record.clock.first_token is None
    assert record.clock.last_token is None


async def test_a_long_error_page_is_cut(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(answer(b"x" * 100_000, "500 Oops"))).url)
    assert len(failed(record, "server_error")) <= 500


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent"])
async def test_redirects_are_not_followed(raw_server: StartServer, status: str) -> None:
    other = raw_server(serving(stream(*GOOD)))
    server = raw_server(serving(answer(b"", status, extra=f"location: {other.url}/v1\r\n")))
    record = await send(server.url)
    assert other.url in failed(record, "redirect")
    assert other.connections == 0


async def test_proxy_variables_are_ignored(raw_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await send(raw_server(serving(stream(*GOOD))).url)).error_class is None


async def test_a_slow_upload_is_kept_apart_from_ttft(raw_server: StartServer) -> None:
    def handler(peer: Peer) -> None:
        time.sleep(0.3)
        peer.request()
        peer.send(stream(*GOOD))
        peer.request()

    big = {"messages": [{"role": "user", "content": "x" * 20_000_000}], "stream": True}
    record = await send(raw_server(handler).url, big)
    clock = record.clock
    assert record.error_class is None
    assert clock.upload_start is not None
    assert clock.sent is not None
    assert clock.first_token is not None
    # The kernel's buffers do not hold 20 MB, so the last byte left only after the server began to read.
    assert clock.sent - clock.upload_start >= 100_000_000
    assert clock.first_token >= clock.sent


async def test_a_server_that_does_not_stream_gives_an_answer_without_ttft(raw_server: StartServer) -> None:
    whole = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}
    record = await send(raw_server(serving(answer(whole))).url)
    assert record.error_class is None
    assert (record.output_text, record.usage.cached_tokens) == ("hi", 8)
    assert record.clock.first_token is None
    assert record.clock.last_token == record.clock.end
    assert record.clock.chunks == []


@pytest.mark.parametrize("head", [b"", b"content-type: text/plain\r\n", b"content-type: application/octet-stream\r\n"])
async def test_without_a_telling_content_type_the_body_decides(raw_server: StartServer, head: bytes) -> None:
    untyped = stream(b": hello\n\n", *GOOD).replace(b"content-type: text/event-stream\r\n", head)
    record = await send(raw_server(serving(untyped)).url)
    assert (record.error_class, record.output_text, len(record.clock.chunks)) == (None, "Héllo", 2)
    whole = answer({"choices": [{"message": {"content": "hi"}}]}).replace(b"content-type: application/json\r\n", head)
    assert (await send(raw_server(serving(whole)).url)).output_text == "hi"
    page = answer(b"<html></html>").replace(b"content-type: application/json\r\n", head)
    failed(await send(raw_server(serving(page)).url), "bad_content_type")


async def test_an_error_in_a_json_answer_with_status_200(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(answer({"error": {"message": "no GPU"}}))).url, stream=False)
    assert "no GPU" in failed(record, "stream_error")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"hello": 1}', b"[" * 200_000])
async def test_a_json_answer_that_is_none(raw_server: StartServer, body: bytes) -> None:
    failed(await send(raw_server(serving(answer(body))).url, stream=False), "protocol_error")
