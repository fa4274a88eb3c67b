"""The yardstick: the least an asyncio client can do (Protocol, httptools, uvloop), with nothing of kvbench in it.

Arrivals are dated at the top of data_received; JSON is decoded when the stream has ended, as kvbench does.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools
import msgspec


class StreamProtocol(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.parts: list[bytes] = []
        self.reads: list[tuple[int, int]] = []  # (parts so far, monotonic ns)
        self.on_body = self.parts.append
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        arrived_ns = time.monotonic_ns()
        self.parser.feed_data(data)
        self.reads.append((len(self.parts), arrived_ns))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("closed"))

    def on_message_complete(self) -> None:
        if self.done is not None:
            self.done.set_result(None)


class ProtocolClient:
    """Sends streaming chat requests to 127.0.0.1:port, over as many connections as there are requests in flight."""

    def __init__(self, port: int, tokens: int) -> None:
        self._port = port
        self._idle: list[StreamProtocol] = []
        body = {
            "model": "truth",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
        }
        self._body = msgspec.json.encode(body)

    async def send(self, request_id: str) -> tuple[int, int | None, int]:
        """(sent ns, first token ns, token chunks)"""
        if self._idle:
            protocol = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, protocol = await loop.create_connection(StreamProtocol, "127.0.0.1", self._port)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\nx-request-id: {request_id}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(self._body)}\r\n\r\n"
        )
        assert protocol.transport is not None
        protocol.done = asyncio.get_running_loop().create_future()
        sent_ns = time.monotonic_ns()
        protocol.transport.write(head.encode() + self._body)
        await protocol.done
        first_ns, chunks = decode(protocol.parts, protocol.reads)
        protocol.parts.clear()
        protocol.reads.clear()
        self._idle.append(protocol)
        return sent_ns, first_ns, chunks

    def close(self) -> None:
        for protocol in self._idle:
            assert protocol.transport is not None
            protocol.transport.close()


def decode(parts: list[bytes], reads: list[tuple[int, int]]) -> tuple[int | None, int]:
    """(arrival of the first token, token chunks) of a body whose events end with a blank line."""
    first_ns, chunks, offset, part, read_end = None, 0, 0, 0, 0
    pending = iter(reads)
    for event in b"".join(parts).split(b"\n\n"):
        offset += len(event) + 2
        data = event[6:]
        if not data or data == b"[DONE]":
            continue
        choices = msgspec.json.decode(data)["choices"]
        if choices and choices[0]["delta"].get("content"):
            chunks += 1
            while first_ns is None:
                parts_end, arrived_ns = next(pending)
                read_end += sum(map(len, parts[part:parts_end]))
                part = parts_end
                if read_end >= offset:
                    first_ns = arrived_ns
    return first_ns, chunks
