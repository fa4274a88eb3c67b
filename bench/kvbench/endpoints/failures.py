"""Every way a request can fail, by one stable name: Record.error_class.

The names are what scripts, summaries and gates count by; they do not change. `retry` says whether sending the same
request again can end differently.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec


class Failure(NamedTuple):
    sentence: str
    retry: bool


FAILURES: dict[str, Failure] = {
    "refused": Failure("the connection was refused, or the host cannot be reached", True),
    "dns": Failure("the host name could not be resolved", True),
    "tls": Failure("the TLS handshake or the certificate check failed", False),
    "connect_timeout": Failure("no connection within timeouts.connect_s", True),
    "idle_timeout": Failure("no byte from the server for timeouts.idle_s", True),
    "total_timeout": Failure("not finished within timeouts.total_s", False),
    "local": Failure("this machine has no file descriptor or port left for a connection", True),
    "reset": Failure("the server reset the connection", True),
    "truncated": Failure("the connection was closed before the answer was complete, or had begun", True),
    "protocol_error": Failure("the answer is not valid HTTP, SSE or JSON", False),
    "oversize": Failure("the answer, or one event of it, is larger than the cap", False),
    "bad_content_type": Failure("the answer is no event stream and no JSON", False),
    "redirect": Failure("the server redirects; redirects are not followed, so that no key goes elsewhere", False),
    "auth": Failure("the API key is missing, wrong or not allowed to do this (401, 403)", False),
    "payment": Failure("the account has no balance left (402)", False),
    "not_found": Failure("no such path or model (404)", False),
    "context_overflow": Failure("prompt and output do not fit the model's context", False),
    "bad_request": Failure("the server refuses this request (other 4xx)", False),
    "rate_limited": Failure("too many requests (429)", True),
    "overloaded": Failure("the server has no capacity now (408, 503, 529)", True),
    "server_error": Failure("the server failed (other 5xx)", True),
    "stream_error": Failure("the server reported an error inside its answer", True),
    "insufficient_resources": Failure(
        "the server broke the answer off for want of capacity (finish_reason insufficient_system_resource)", True
    ),
    "aborted": Failure("the server broke the answer off (finish_reason abort, aborted)", True),
    "queue_timeout": Failure("the server closed the connection: the request had waited too long to begin", True),
    "skipped": Failure("not sent: an earlier turn that it depends on failed", False),
    "cancelled": Failure("given up by kvbench (interrupted, or out of time)", False),
}

_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum[ _]context|max_model_len"
    r"|(prompt|input|request)[^.]{0,40}(is )?too long|too many (input |prompt )?tokens"
    # vLLM cuts max_tokens to what the context leaves, and then finds min_tokens above it.
    r"|min_tokens must be less than or equal to max_tokens",
    re.IGNORECASE,
)


def of_status(status: int, message: str) -> str | None:
    """Failure class of an HTTP answer with this status and error text; None for 2xx."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return "redirect"
    if status in (401, 403):
        return "auth"
    if status == 402:
        return "payment"
    if status in (400, 404, 413, 422) and _OVERFLOW.search(message):
        return "context_overflow"
    if status == 404:
        return "not_found"
    if status == 429:
        return "rate_limited"
    if status in (408, 503, 529):
        return "overloaded"
    if status >= 500:
        return "server_error"
    return "bad_request" if status >= 400 else "protocol_error"


def error_text(body: bytes | str) -> str:
    """What a person would want of an error answer: the message (with its code), else the body itself, on one line."""
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    try:
        parsed: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        parsed = None
    found = error_of(parsed)
    return " ".join((found if found is not None else text).split())


def error_of(value: Any) -> str | None:
    """The message of an error object, in the shapes that servers use; None where `value` holds no error.

    {"error": {"message", "code", "type"}} (OpenAI, vLLM, llama.cpp), {"error": "text"}, {"object": "error", "message"}
    (older vLLM), {"detail": ...} (FastAPI), {"message": "..."}.
    """
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error:
        if isinstance(error, dict):
            message = error.get("message") or error.get("detail") or error.get("type") or error.get("code")
            code = error.get("code")
            text = str(message) if message else msgspec.json.encode(error).decode()
            return f"{text} ({code})" if isinstance(code, str) and code and code not in text else text
        return str(error)
    if value.get("object") == "error" and value.get("message"):
        return str(value["message"])
    if "choices" in value:
        return None
    for field in ("detail", "message"):
        if value.get(field):
            inner = value[field]
            return inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()
    return None


def retry_after_s(header: str | None, date: str | None = None) -> float | None:
    """Seconds that a Retry-After header asks to wait, >= 0: a number of seconds or an HTTP date (RFC 9110, 10.2.3).

    A date is taken against the answer's own Date header, where there is one, so that a wrong clock on either side does
    not matter. None: no header, or nothing that can be understood. Nothing is capped here.
    """
    if header is None:
        return None
    header = header.strip()
    try:
        seconds = float(header)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    when, now = _http_date(header), _http_date(date)
    if when is None:
        return None
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def _http_date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        parsed = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def is_retryable(error_class: str) -> bool:
    """Whether sending the same request again can end differently."""
    failure = FAILURES.get(error_class)
    return failure is not None and failure.retry
