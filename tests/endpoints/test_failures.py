from __future__ import annotations

import pytest

from kvbench.endpoints.failures import FAILURES, error_text, of_status, retry_after_s

VLLM_OVERFLOW = (
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens in the messages."
)


@pytest.mark.parametrize(
    ("status", "message", "name"),
    [
        (200, "", None),
        (307, "", "redirect"),
        (401, "", "auth"),
        (403, "", "auth"),
        (402, "Insufficient Balance", "payment"),
        (404, "The model `x` does not exist.", "not_found"),
        (400, VLLM_OVERFLOW, "context_overflow"),
        (404, VLLM_OVERFLOW, "context_overflow"),
        (422, "prompt is too long: 200001 tokens > 200000 maximum", "context_overflow"),
        (
            400,
            "the request exceeds the available context size. try increasing the context size",
            "context_overflow",
        ),
        (400, "min_tokens must be less than or equal to max_tokens=122, got 497.", "context_overflow"),
        (400, "max_tokens must be at least 1", "bad_request"),
        (422, "Field required", "bad_request"),
        (429, "", "rate_limited"),
        (503, "", "overloaded"),
        (529, "", "overloaded"),
        (500, VLLM_OVERFLOW, "server_error"),
        (502, "", "server_error"),
    ],
)
def test_of_status(status: int, message: str, name: str | None) -> None:
    assert of_status(status, message) == name
    assert name is None or name in FAILURES


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too\\nlong", "type": "BadRequestError", "code": 400}}', "too long"),
        (b'{"error": {"message": "no", "code": "invalid_api_key"}}', "no (invalid_api_key)"),
        (b'{"error": "plain"}', "plain"),
        (b'{"object": "error", "message": "older vLLM"}', "older vLLM"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>\n <b>Bad</b></html>", "<html> <b>Bad</b></html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_error_text(body: bytes, text: str) -> None:
    assert error_text(body) == text


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("7", None, 7.0),
        (" 0.5 ", None, 0.5),
        ("-3", None, 0.0),
        ("99999999999", None, 99999999999.0),
        ("inf", None, None),
        ("nan", None, None),
        ("soon", None, None),
        ("", None, None),
        (None, None, None),
        # 90 s after the answer's own Date, whatever this machine's clock says
        ("Wed, 21 Oct 2015 07:29:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 90.0),
        # in the past
        ("Wed, 21 Oct 2015 07:28:00 GMT", None, 0.0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None, None),
    ],
)
def test_retry_after(header: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, date) == seconds
