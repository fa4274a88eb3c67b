"""Requests through a proxy: httpx's own transport behind the interface of `StampedTransport`.

The sockets are httpx's, so arrivals are dated when the event loop hands them on: every stamp is a loop stamp, and its
bound reaches back some polls of the loop, as many as httpx's layers can take to pass bytes up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.exchange import MAX_ANSWER_BYTES
from kvbench.endpoints.stamped import FaultKind, Read, StampedBody, Timing, TransportFault
from kvbench.endpoints.stamps import PollMarks
from kvbench.endpoints.tls import tls_context

_POLLS_TO_PASS_UP = 3
"""The socket's reader wakes the task in the next turn of the loop, and anyio may yield once or twice in between."""


class ProxiedTransport(httpx.AsyncBaseTransport):
    """As `StampedTransport`, extensions and faults included, through the proxy at `proxy_url`."""

    stamping = False

    def __init__(self, clock: RunClock, proxy_url: str, ca_file: Path | str | None = None) -> None:
        self._clock = clock
        self._marks: PollMarks | None = None
        self._inner = httpx.AsyncHTTPTransport(
            verify=tls_context(ca_file),
            trust_env=False,
            proxy=proxy_url,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sink = request.extensions.get("kvbench.sink")
        timing = Timing("loop", 0)
        if self._marks is None:
            self._marks = PollMarks(asyncio.get_running_loop(), self._clock, _POLLS_TO_PASS_UP)
        self._marks.begin()
        try:
            return await self._answer(request, sink, timing, self._marks)
        except BaseException:
            self._marks.end()
            raise

    async def _answer(self, request: httpx.Request, sink: Any, timing: Timing, marks: PollMarks) -> httpx.Response:
        total_s = request.extensions.get("kvbench.total_s")
        deadline = None if total_s is None else asyncio.get_running_loop().time() + total_s
        request.extensions = {**request.extensions, "trace": _Trace(self._clock, timing)}
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._inner.handle_async_request(request)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._fault(error, timing, total_s) from None
        timing.first_byte_ns = timing.headers_ns = self._clock.now_ns()
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            await response.aclose()
            raise self._failed("protocol_error", f"the answer is encoded as {encoding!r}, not identity", timing)
        body = sink if isinstance(sink, StampedBody) else None
        stream = _Stream(self, response, body, timing, deadline, total_s, marks)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=stream,
            extensions={**response.extensions, "kvbench.timing": timing},
            request=request,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _failed(self, kind: FaultKind, message: str, timing: Timing) -> TransportFault:
        fault = TransportFault(kind, message)
        timing.end_ns = self._clock.now_ns()
        fault.timing = timing
        return fault

    def _fault(self, error: Exception, timing: Timing, total_s: float | None) -> TransportFault:
        if isinstance(error, TransportFault):
            return error
        if isinstance(error, TimeoutError):
            return self._failed("total_timeout", f"no complete answer within {total_s} s", timing)
        return self._failed(_kind(error), f"through the proxy: {error or type(error).__name__}", timing)


class _Stream(httpx.AsyncByteStream):
    def __init__(
        self,
        transport: ProxiedTransport,
        response: httpx.Response,
        sink: StampedBody | None,
        timing: Timing,
        deadline: float | None,
        total_s: float | None,
        marks: PollMarks,
    ) -> None:
        self._marks: PollMarks | None = marks
        self._transport, self._response, self._sink = transport, response, sink
        self._timing, self._deadline, self._total_s = timing, deadline, total_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        transport, timing, sink = self._transport, self._timing, self._sink
        source = self._response.stream
        assert isinstance(source, httpx.AsyncByteStream)
        parts = source.__aiter__()
        marks, size = self._marks, 0
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    part = await anext(parts, None)
            except (httpx.HTTPError, TimeoutError) as error:
                raise transport._fault(error, timing, self._total_s) from None
            if part is None:
                break
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise transport._failed("oversize", f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes", timing)
            if sink is None:
                yield part
                continue
            now_ns = transport._clock.now_ns()
            floor_ns = timing.sent_ns or 0
            if marks is not None:
                floor_ns = max(floor_ns, marks.floor_ns)
                if not marks.pending:
                    marks.touch()
            sink.parts.append(part)
            sink.reads.append(Read(len(sink.parts), now_ns, floor_ns, now_ns, False))
        timing.end_ns = transport._clock.now_ns()

    async def aclose(self) -> None:
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.end()
        await self._response.aclose()


class _Trace:
    """Dates httpcore's own events. A CONNECT before the request is overwritten by the request."""

    def __init__(self, clock: RunClock, timing: Timing) -> None:
        self._clock, self._timing = clock, timing
        self._connect_started_ns: int | None = None

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        now_ns = self._clock.now_ns()
        if event.endswith("connect_tcp.started"):
            self._connect_started_ns = now_ns
        elif event.endswith("send_request_headers.started"):
            self._timing.upload_start_ns = now_ns
            if self._connect_started_ns is not None:
                self._timing.connect_ns = now_ns - self._connect_started_ns
        elif event.endswith("send_request_body.complete"):
            self._timing.sent_ns = now_ns


def _kind(error: Exception) -> FaultKind:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "dns"
        if isinstance(cause, ssl.SSLError):
            return "tls"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectTimeout):
        return "connect_timeout"
    if isinstance(error, httpx.TimeoutException):
        return "idle_timeout"
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return "refused"
    if isinstance(error, httpx.RemoteProtocolError):
        return "truncated" if "without sending" in str(error) or "without response" in str(error) else "protocol_error"
    return "reset" if isinstance(error, httpx.NetworkError) else "protocol_error"
