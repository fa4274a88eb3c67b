"""What the client's tests share: an open endpoint on a raw server, bytes of answers, one request sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile
from kvbench.model import Record, Request

from .conftest import Peer, http_chunk

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
MESSAGES = [{"role": "user", "content": "hi"}]


def event(finish: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    value: dict[str, Any] = {
        "id": "r1",
        "model": "m1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    if usage is not None:
        value["usage"] = usage
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def stream(*parts: bytes) -> bytes:
    """A whole good HTTP answer with these parts, a chunk each."""
    return STREAM_HEAD + b"".join(http_chunk(p) for p in parts) + LAST_CHUNK


def answer(
    body: bytes | dict[str, Any], status: str = "200 OK", content_type: str = "application/json", extra: str = ""
) -> bytes:
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def serving(*answers: bytes) -> Callable[[Peer], None]:
    """Answers the first request of a connection with the first of `answers`, and so on; then waits for the end."""

    def handler(peer: Peer) -> None:
        for data in answers:
            if not peer.request()[0]:
                return
            peer.send(data)
        peer.request()

    return handler


async def send(url: str, body: dict[str, Any] | None = None, *, request_id: str = "q1", **profile: Any) -> Record:
    """One request on an endpoint of its own, which is closed again."""
    timeouts = profile.pop("timeouts", {})
    plain = {"url": url, "timeouts": {"connect_s": 10.0, "idle_s": 10.0, **timeouts}, **profile}
    clock = RunClock.start()
    endpoint = await Endpoint.open(msgspec.convert(plain, EndpointProfile), clock)
    try:
        built = body if body is not None else endpoint.build_body(messages=MESSAGES, output_tokens=4)
        request = Request(
            request_id=request_id,
            session_id="s1",
            turn=3,
            attempt=1,
            phase="warmup",
            root_id="root",
            body=built,
            scheduled_ns=5,
            due_ns=7,
            limit_wait_ns=2,
            wanted_output_tokens=4,
        )
        async with asyncio.timeout(60):
            return await endpoint.send(request)
    finally:
        await endpoint.aclose()
