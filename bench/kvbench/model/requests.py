"""What is sent, and what became of it. All times ending in `_ns` are monotonic nanoseconds since the run's start."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Api = Literal["chat", "completions"]
Phase = Literal["warmup", "measure"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, ready to be sent. `body` is the JSON object for the endpoint.

    scheduled_ns: when the trace (or the rate) intended the turn. due_ns: when this attempt may leave (the same for
    attempt 0, later for a retry). limit_wait_ns: how long it then waited for limits that were asked for.
    """

    request_id: str
    session_id: str
    turn: int
    body: dict[str, Any]
    api: Api = "chat"
    attempt: int = 0
    phase: Phase = "measure"
    root_id: str = ""
    scheduled_ns: int = 0
    due_ns: int = 0
    limit_wait_ns: int = 0
    wanted_output_tokens: int | None = None
    wanted_input_tokens: int | None = None
    """Length that the prompt was made to have; None where it is what its text comes to."""


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened, monotonic ns from the run's start; None = did not happen.

    upload_start: first byte of the request handed to the kernel; sent: its last byte. connect_ns: how long opening
    a new connection took (None: a kept-alive one was used). first_token: first generated chunk (non-empty
    reasoning, content or tool-call text); first_output_token: first that is not reasoning. chunks: arrival of each
    generated chunk. stamp: what dated the arrivals. first_token_bound_ns: the largest error the stamp of
    first_token can have (0.. ns late); read_lag_ns: how long its bytes waited in the kernel. retried_stale: the server
    had closed the kept-alive connection before any byte of an answer, so it was sent again, once, on a fresh one.
    """

    scheduled: int
    due: int
    limit_wait_ns: int = 0
    connect_ns: int | None = None
    upload_start: int | None = None
    sent: int | None = None
    headers: int | None = None
    first_byte: int | None = None
    first_token: int | None = None
    first_output_token: int | None = None
    last_token: int | None = None
    end: int | None = None
    chunks: list[int] = []
    stamp: Literal["kernel", "loop", "none"] = "none"
    stamps_missing: int = 0
    first_token_bound_ns: int | None = None
    read_lag_ns: int | None = None
    retried_stale: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as the endpoint reported them, in one shape: input_tokens includes cached and written ones.

    None = not reported. `problem` says why a report was not believed (negative, cached > prompt); the counts it
    touches are then None and the raw object is kept in Record.usage_raw. cache_write_1h_tokens: the part of
    cache_write_tokens that stays for an hour; image_tokens: a part of the input. server_tools: calls by the report's
    own name of the tool, those above 0.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    image_tokens: int | None = None
    server_tools: dict[str, int] = {}
    service_tier: str | None = None
    problem: str | None = None


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens a turn must report under a named rule, as [floor, ceiling]; a point where they are equal."""

    rule: str
    input_tokens: int | None = None
    floor: int | None = None
    ceiling: int | None = None
    reason: str | None = None
    """Why floor < ceiling, or why there is no expectation."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt did. A failure is a Record too. Derived figures are never stored here.

    error_class None = ok. final: the last attempt of its turn.
    """

    request_id: str
    session_id: str
    turn: int
    attempt: int = 0
    phase: Phase = "measure"
    root_id: str = ""
    final: bool = True
    clock: Clock
    usage: Usage = Usage()
    usage_raw: dict[str, Any] | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    retry_after_s: float | None = None
    request_model: str | None = None
    """What was asked for, and is billed; response_model: what the answer says it is from."""
    response_model: str | None = None
    response_id: str | None = None
    wanted_output_tokens: int | None = None
    wanted_input_tokens: int | None = None
    output_text: str | None = None
    reasoning_text: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    output_token_ids: list[int] | None = None
    """Where they were asked for (live history of hash ids)."""
    output_logprobs: list[tuple[str, float]] | None = None
    """Each generated token as text with the natural logarithm of its probability, where they were asked for (the
    consistency probe) and the endpoint gives them."""
    expectation: Expectation | None = None

    @property
    def ok(self) -> bool:
        return self.error_class is None
