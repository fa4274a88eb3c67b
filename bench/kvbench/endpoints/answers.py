"""From what arrived to a Record: which failure it was, if any, and when the tokens came."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvbench.endpoints.dialects.openai import Answer
from kvbench.endpoints.failures import error_text, of_status, retry_after_s
from kvbench.endpoints.secrets import Redactor
from kvbench.endpoints.sse import SseEvent, sse_events
from kvbench.endpoints.stamped import StampedBody, Timing, TransportFault
from kvbench.model import Clock, Record, Request
from kvbench.usage import normalise

MAX_MESSAGE_CHARS = 500
WAIT_LIMIT_SHARE = 0.98
"""The server's clock began before the client's: that of its first byte, not of its last."""

Failed = tuple[str, str]
"""(error_class, message)"""


class Response:
    """What the transport gave of one attempt; status None = no answer began."""

    __slots__ = ("body", "fault", "headers", "status", "timing")

    def __init__(
        self,
        body: StampedBody,
        timing: Timing | None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        fault: TransportFault | None = None,
    ) -> None:
        self.body = body
        self.timing = timing
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self.fault = fault


class _Tokens:
    """Arrivals of the generated chunks of a stream, ns since the run's start."""

    __slots__ = ("bound_ns", "chunks", "first_output", "over_ns", "read_lag_ns")

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.first_output: int | None = None
        self.bound_ns: int | None = None
        self.read_lag_ns: int | None = None
        self.over_ns: int | None = None
        """Arrival of the last event; None where the answer was no stream."""


def to_record(
    request: Request, response: Response, now_ns: int, redact: Redactor, wait_limit_s: float | None = None
) -> Record:
    """The Record of one attempt. now_ns: when it ended, for where the transport does not know. wait_limit_s: after so
    long the server closes the connection of a request that it has not begun to work on."""
    answer, tokens = Answer(), _Tokens()
    failed = _read(response, answer, tokens)
    if failed is not None and wait_limit_s is not None:
        failed = _waited_too_long(failed, response, tokens, wait_limit_s) or failed
    timing = response.timing
    end_ns = timing.end_ns if timing is not None and timing.end_ns is not None else now_ns
    if failed is None and response.fault is not None and tokens.over_ns is not None:
        end_ns = tokens.over_ns  # only the end of the HTTP message is missing
    last_token = tokens.chunks[-1] if tokens.chunks else None
    if last_token is None and failed is None and tokens.over_ns is None:
        last_token = end_ns  # one JSON object: its tokens have no arrival of their own
    clock = Clock(
        scheduled=request.scheduled_ns,
        due=request.due_ns,
        limit_wait_ns=request.limit_wait_ns,
        connect_ns=None if timing is None else timing.connect_ns,
        upload_start=None if timing is None else timing.upload_start_ns,
        sent=None if timing is None else timing.sent_ns,
        headers=None if timing is None else timing.headers_ns,
        first_byte=None if timing is None else timing.first_byte_ns,
        first_token=tokens.chunks[0] if tokens.chunks else None,
        first_output_token=tokens.first_output,
        last_token=last_token,
        end=end_ns,
        chunks=tokens.chunks,
        stamp="none" if timing is None else timing.stamp,
        stamps_missing=0 if timing is None else timing.stamps_missing,
        first_token_bound_ns=tokens.bound_ns,
        read_lag_ns=tokens.read_lag_ns,
        retried_stale=timing is not None and timing.retried_stale,
    )
    headers = response.headers
    return Record(
        request_id=request.request_id,
        session_id=request.session_id,
        turn=request.turn,
        attempt=request.attempt,
        phase=request.phase,
        root_id=request.root_id,
        clock=clock,
        usage=normalise(answer.usage_raw),
        usage_raw=redact.value(answer.usage_raw),
        http_status=response.status,
        finish_reason=redact.value(answer.finish_reason),
        error_class=None if failed is None else failed[0],
        error_message=None if failed is None else shortened(failed[1], redact),
        retry_after_s=None if failed is None else retry_after_s(headers.get("retry-after"), headers.get("date")),
        request_model=request.body.get("model"),
        response_model=redact.value(answer.response_model),
        response_id=redact.value(answer.response_id),
        wanted_output_tokens=request.wanted_output_tokens,
        wanted_input_tokens=request.wanted_input_tokens,
        output_text=redact.value(answer.text),
        reasoning_text=redact.value(answer.reasoning),
        tool_calls=redact.value(answer.tool_calls),
        output_token_ids=answer.token_ids,
        output_logprobs=redact.value(answer.logprobs),
    )


def shortened(message: str, redact: Redactor) -> str:
    """Redacted first, then cut: a cut key would no longer be found."""
    message = redact.text(message)
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


def _read(response: Response, answer: Answer, tokens: _Tokens) -> Failed | None:
    """Decode what arrived; the failure, or None for a good answer. Whatever came before a failure is kept."""
    fault = response.fault
    if response.status is None:
        return (fault.kind, str(fault)) if fault is not None else ("protocol_error", "no answer")
    if not 200 <= response.status < 300:
        return _refused(response)
    kind = _content_kind(response)
    if kind == "events":
        return _read_events(response, answer, tokens)
    if fault is not None:
        return fault.kind, str(fault)
    if kind is None:
        shown = response.headers.get("content-type") or "none"
        return "bad_content_type", f"content-type {shown}: {error_text(response.body.content())}"
    content = response.body.content()
    if not content.strip():
        return "truncated", "the server ended the answer before it had begun: nothing but blank lines came"
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return "protocol_error", f"the answer is not valid JSON ({error})"
    answer.read_whole(value)
    if answer.error is not None:
        return answer.error_class, answer.error
    return None if answer.invalid is None else ("protocol_error", answer.invalid)


def _waited_too_long(failed: Failed, response: Response, tokens: _Tokens, wait_limit_s: float) -> Failed | None:
    """What a connection was closed for that ended, without a token, when the server's patience did."""
    timing = response.timing
    if failed[0] not in ("truncated", "reset") or tokens.chunks or timing is None:
        return None
    if timing.sent_ns is None or timing.end_ns is None:
        return None
    waited_s = (timing.end_ns - timing.sent_ns) / 1e9
    if waited_s < WAIT_LIMIT_SHARE * wait_limit_s:
        return None
    return "queue_timeout", (
        f"the server closed the connection after {waited_s:.0f} s without a token: it does so when it has not begun to "
        f"work on a request within {wait_limit_s:.0f} s"
    )


def _refused(response: Response) -> Failed:
    assert response.status is not None
    text = error_text(response.body.content())
    error_class = of_status(response.status, text) or "protocol_error"
    if error_class == "redirect":
        return error_class, f"HTTP {response.status}: redirects to {response.headers.get('location', 'nowhere')}"
    return error_class, f"HTTP {response.status}: {text}" if text else f"HTTP {response.status}"


def _content_kind(response: Response) -> str | None:
    """ "events", "json" or None. Without a telling content-type the body itself decides: some proxies drop it.

    One JSON object in answer to a request for a stream is an answer: the server does not stream. It has no TTFT.
    """
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "text/event-stream":
        return "events"
    if content_type == "application/json" or content_type.endswith("+json"):
        return "json"
    if content_type in ("", "text/plain", "application/octet-stream"):
        start = response.body.content()[:64].lstrip(b"\xef\xbb\xbf\r\n \t")
        if start.startswith((b"data:", b"event:", b":")):
            return "events"
        if start.startswith(b"{"):
            return "json"
    return None


def _read_events(response: Response, answer: Answer, tokens: _Tokens) -> Failed | None:
    fault = response.fault
    events: list[SseEvent] = []
    uncertainty_ns = 0 if response.timing is None else response.timing.uncertainty_ns
    try:
        for event in sse_events(response.body, uncertainty_ns):
            if not event.complete and not _whole(event.data):
                continue  # cut in the middle: a truncated stream, not an invalid event
            answer.read_event(len(events), event.data, is_error=event.name == b"error")
            events.append(event)
    except TransportFault as oversize:
        fault = oversize
    tokens.over_ns = events[-1].stamp_ns if events else None
    tokens.chunks = [events[i].stamp_ns for i in answer.chunks]
    if answer.chunks:
        first = events[answer.chunks[0]]
        tokens.bound_ns = first.bound_ns
        tokens.read_lag_ns = max(0, first.read_ns - first.stamp_ns)
    if answer.first_output_token is not None:
        tokens.first_output = events[answer.first_output_token].stamp_ns
    if answer.error is not None:
        return answer.error_class, answer.error
    if answer.invalid is not None:
        return "protocol_error", answer.invalid
    if fault is not None and not (answer.done and fault.kind != "oversize"):
        return fault.kind, str(fault)
    if not answer.complete:
        return "truncated", "the stream ended without [DONE] or a finish_reason"
    return None


def _whole(data: bytes) -> bool:
    if data.strip() == b"[DONE]":
        return True
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True
