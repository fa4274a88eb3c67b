"""Every fault a stream or a server can have, made byte by byte, and what it must become.

Each test is a raw server that misbehaves in one way; the record must name the failure and keep what had come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.endpoints.failures import FAILURES
from kvbench.model import Record

from .conftest import Peer, RawServer, http_chunk
from .helpers import DONE, LAST_CHUNK, STREAM_HEAD, answer, event, send, serving, stream

StartServer = Callable[..., RawServer]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
GOOD = [
    event(role="assistant", content=""),
    event(content="Hé"),
    event(content="llo", finish="stop", usage=USAGE),
    DONE,
]


def failed(record: Record, error_class: str) -> str:
    assert record.error_class == error_class
    assert error_class in FAILURES
    assert record.clock.end is not None
    assert record.error_message
    return record.error_message


def sending(*parts: bytes, then: Callable[[Peer], None] | None = None) -> Callable[[Peer], None]:
    """Reads the request, sends a stream's head and these parts as HTTP chunks, then does `then`."""

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD + b"".join(http_chunk(p) for p in parts))
        if then is not None:
            then(peer)

    return handler


def until_closed(peer: Peer) -> None:
    peer.request()


# ------------------------------------------------------------------------------- 1-8: streams that are to be understood


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"".join(GOOD), id="plain"),
        pytest.param(b"".join(GOOD).replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(b"".join(GOOD).replace(b"\n", b"\r"), id="cr"),
        pytest.param(b"\xef\xbb\xbf" + b"".join(GOOD), id="bom"),
        pytest.param(b": keep-alive\n\n" + b": keep-alive\n\n".join(GOOD), id="comments"),
        pytest.param(b"".join(GOOD).replace(b"data: ", b"data:"), id="no space"),
        pytest.param(b"data: : COMMENT\n\ndata:\n\n" + b"".join(GOOD), id="comment as data"),
        pytest.param(b"".join(GOOD).replace(b', "model"', b',\ndata: "model"'), id="several data lines"),
        pytest.param(b"id: 7\nretry: 10\n" + b"".join(GOOD), id="other fields"),
        pytest.param(b"".join(GOOD)[:-1], id="no blank line at the end"),
        pytest.param(b"".join(GOOD)[:-2], id="no line end at the end"),
    ],
)
async def test_framing_in_any_split_gives_the_same_answer(raw_server: StartServer, body: bytes) -> None:
    for size in (1, 7, len(body)):
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        record = await send(raw_server(serving(stream(*pieces))).url)
        assert record.error_class is None, record.error_message
        assert record.output_text == "Héllo"
        assert record.usage.cached_tokens == 8
        assert record.finish_reason == "stop"
        assert len(record.clock.chunks) == 2


async def test_unicode_line_separators_are_content(raw_server: StartServer) -> None:
    text = "a\u2028b\u0085c\u000bd\u2029e"
    record = await send(raw_server(serving(stream(event(content=text, finish="stop"), DONE))).url)
    assert record.output_text == text


async def test_a_large_event_is_parsed(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(stream(event(content="x" * 1_500_000, finish="stop"), DONE))).url)
    assert record.error_class is None
    assert record.output_text == "x" * 1_500_000


async def test_an_event_over_the_cap_is_oversize_and_keeps_what_came(raw_server: StartServer) -> None:
    huge = b"data: " + b"x" * (17 * 1024 * 1024) + b"\n\n"
    record = await send(raw_server(serving(stream(event(content="a"), huge, DONE))).url)
    failed(record, "oversize")
    assert record.output_text == "a"
    assert record.clock.first_token is not None


async def test_only_generated_text_starts_the_ttft_clock(raw_server: StartServer) -> None:
    """A role chunk, empty deltas, comments and a usage chunk come first, each in a write of its own, well apart."""

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        early = [
            event(role="assistant", content=""),
            b": keep-alive\n\n",
            event(content=""),
            event(),
            event(content=None, reasoning=""),
            b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}\n\n',
            b"\n",
        ]
        for part in early:
            peer.chunk(part)
            time.sleep(0.02)
        peer.chunk(event(reasoning="hm"))
        time.sleep(0.02)
        peer.chunk(event(content="a", finish="stop", usage=USAGE))
        peer.send(http_chunk(DONE) + LAST_CHUNK)
        peer.request()

    record = await send(raw_server(handler).url)
    clock = record.clock
    assert record.error_class is None
    assert clock.first_byte is not None
    assert clock.first_token is not None
    assert clock.first_output_token is not None
    # Seven parts, 20 ms apart, lie between the first byte and the first token.
    assert clock.first_token - clock.first_byte >= 7 * 20_000_000
    assert clock.chunks == [clock.first_token, clock.first_output_token]
    assert clock.first_output_token - clock.first_token >= 15_000_000
    assert record.usage.output_tokens == 2


# ---------------------------------------------------------------------------------------- 9-17: streams that are broken


async def test_clean_end_without_done_is_truncated(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(stream(event(content="a"), event(content="b")))).url)
    failed(record, "truncated")
    assert record.output_text == "ab"
    assert len(record.clock.chunks) == 2


async def test_clean_end_after_a_finish_reason_is_good(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(stream(event(content="a", finish="stop", usage=USAGE)))).url)
    assert record.error_class is None
    assert record.usage.input_tokens == 9


async def test_fin_without_the_last_chunk_is_truncated_and_keeps_the_tokens(raw_server: StartServer) -> None:
    record = await send(raw_server(sending(event(content="a"), event(content="b")[:-9])).url)
    failed(record, "truncated")
    assert record.output_text == "a"
    assert record.clock.last_token == record.clock.first_token is not None
    assert record.http_status == 200


async def test_fin_after_done_lost_nothing(raw_server: StartServer) -> None:
    record = await send(raw_server(sending(*GOOD)).url)
    assert record.error_class is None
    assert record.output_text == "Héllo"


async def test_a_stall_after_done_ends_the_answer_at_done(raw_server: StartServer) -> None:
    server = raw_server(sending(b"".join(GOOD), then=until_closed))
    record = await send(server.url, timeouts={"idle_s": 0.5})
    assert record.error_class is None
    # All events came in one write, so they share one arrival; the wait for the rest of the message is not counted.
    assert record.clock.end == record.clock.last_token


async def test_an_answer_without_a_token_has_no_token_times(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(stream(event(content=""), event(finish="stop", usage=USAGE), DONE))).url)
    assert record.error_class is None
    assert (record.clock.first_token, record.clock.last_token, record.clock.chunks) == (None, None, [])
    assert record.output_text is None


async def test_reset_keeps_the_tokens(raw_server: StartServer) -> None:
    def reset(peer: Peer) -> None:
        time.sleep(0.1)
        peer.reset()

    record = await send(raw_server(sending(event(content="a"), then=reset)).url)
    failed(record, "reset")
    assert record.output_text == "a"


@pytest.mark.parametrize(
    "part",
    [
        b'data: {"error": {"message": "engine died", "code": 500}}\n\n',
        b'data: {"error": "engine died"}\n\n',
        b'event: error\ndata: {"message": "engine died"}\n\n',
        b"event: error\ndata: engine died\n\n",
    ],
)
async def test_an_error_inside_the_stream_is_a_failure_though_done_follows(
    raw_server: StartServer, part: bytes
) -> None:
    record = await send(raw_server(serving(stream(event(content="a"), part, DONE))).url)
    assert "engine died" in failed(record, "stream_error")
    assert record.output_text == "a"


async def test_a_web_page_is_bad_content_type(raw_server: StartServer) -> None:
    page = answer(b"<html><title>Sign in</title></html>", content_type="text/html; charset=utf-8")
    message = failed(await send(raw_server(serving(page)).url), "bad_content_type")
    assert "text/html" in message
    assert "Sign in" in message


async def test_a_stall_is_an_idle_timeout_with_the_time_so_far(raw_server: StartServer) -> None:
    server = raw_server(sending(event(content="a"), then=until_closed))
    record = await send(server.url, timeouts={"idle_s": 0.3})
    failed(record, "idle_timeout")
    assert record.output_text == "a"
    assert record.clock.end is not None
    assert record.clock.first_token is not None
    assert record.clock.end - record.clock.first_token >= 290_000_000


async def test_a_stall_before_the_first_byte(raw_server: StartServer) -> None:
    record = await send(raw_server(lambda peer: (peer.request(), peer.request())[0]).url, timeouts={"idle_s": 0.2})
    failed(record, "idle_timeout")
    assert record.clock.sent is not None
    assert record.clock.first_byte is None
    assert record.http_status is None


async def test_a_drip_that_never_ends_is_a_total_timeout(raw_server: StartServer) -> None:
    def drip(peer: Peer) -> None:
        while True:
            time.sleep(0.02)
            peer.chunk(event(content="x"))

    record = await send(raw_server(sending(then=drip)).url, timeouts={"total_s": 0.4})
    failed(record, "total_timeout")
    assert set(record.output_text or "") == {"x"}


@pytest.mark.parametrize("part", [b"data: {not json}\n\n", b"data: [1, 2]\n\n", b"data: \xff\xfe\n\n"])
async def test_an_event_that_is_no_json_object_is_a_protocol_error(raw_server: StartServer, part: bytes) -> None:
    record = await send(raw_server(serving(stream(event(content="a"), part, DONE))).url)
    failed(record, "protocol_error")
    assert record.output_text == "a"


async def test_no_http_at_all_is_a_protocol_error(raw_server: StartServer) -> None:
    record = await send(raw_server(serving(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")).url)
    failed(record, "protocol_error")


@pytest.mark.parametrize(
    ("usage", "flagged"),
    [
        (None, False),
        ({"prompt_tokens": -1, "completion_tokens": 2}, True),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 10}}, True),
    ],
)
async def test_usage_that_is_missing_or_wrong_is_unknown_never_zero(
    raw_server: StartServer, usage: dict[str, int] | None, flagged: bool
) -> None:
    record = await send(raw_server(serving(stream(event(content="a", finish="stop", usage=usage), DONE))).url)
    assert record.error_class is None
    assert record.usage.input_tokens is None
    assert record.usage.cached_tokens is None
    assert (record.usage.problem is not None) is flagged
    assert record.usage_raw == usage


async def test_compression_is_not_asked_for_and_not_inflated(raw_server: StartServer) -> None:
    heads: list[bytes] = []

    def handler(peer: Peer) -> None:
        heads.append(peer.request()[0])
        peer.send(answer(b"\x1f\x8b\x08\x00", extra="content-encoding: gzip\r\n"))
        peer.request()

    record = await send(raw_server(handler).url)
    assert "gzip" in failed(record, "protocol_error")
    assert b"accept-encoding: identity" in heads[0].lower()


# --------------------------------------------------------------------------------------------------------- 46: secrets


async def test_the_key_is_in_one_header_and_nowhere_else(
    raw_server: StartServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that gives back all it got, in an error, a stream and an id."""
    key = "sk-do-not-show-0123456789"
    monkeypatch.setenv("A_KEY", key)
    heads: list[bytes] = []

    def echo(make: Callable[[str], bytes]) -> Callable[[Peer], None]:
        def handler(peer: Peer) -> None:
            head = peer.request()[0]
            heads.append(head)
            peer.send(make(head.decode().replace("\r\n", " ")))
            peer.request()

        return handler

    def split(text: str) -> bytes:
        return stream(*[event(content=c) for c in text], event(reasoning=text, finish=text, usage={"x": text}), DONE)

    makers: list[Callable[[str], bytes]] = [
        lambda text: answer({"error": {"message": "x" * 450 + text}}, "400 Bad"),
        lambda text: answer(text.encode(), "500 Bad", "text/html"),
        lambda text: answer(text.encode(), content_type="text/html"),
        split,
        lambda text: answer(b"", "302 Found", extra=f"location: http://h/?k={text}\r\n"),
        lambda text: b"HTTP/1.1 200 OK\r\n" + text.encode() + b"\r\n\r\n",
    ]
    for make in makers:
        record = await send(raw_server(echo(make)).url, key_env="A_KEY", headers={"x-team-token": "team-secret-987654"})
        shown = repr(record)
        for secret in (key, "team-secret-987654"):
            assert secret not in shown
            assert secret[:12] not in shown
    assert all(f"authorization: Bearer {key}".encode() in head for head in heads)
