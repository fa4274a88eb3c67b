"""The types that cross rooms, and nothing else. The unit is in the name; None means not reported, never 0.

All times ending in `_ns` inside a Record are monotonic nanoseconds since the run's start; all times ending in `_s`
inside a Turn are trace time (before --time-scale).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

TRACE_VERSION = 1
RUN_SCHEMA_VERSION = 1
"""History: 1 (0.1.0) first."""

Message = dict[str, Any]
"""One chat message in OpenAI's shape: role, content (text, or a list of parts), tool_calls, tool_call_id, ..."""

Api = Literal["chat", "completions"]
Phase = Literal["warmup", "measure"]


# ---------------------------------------------------------------------------------------------------------- traces


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a native trace. `extra` keeps unknown fields."""

    version: int = TRACE_VERSION
    name: str = ""
    block_size: int | None = None
    source: str | None = None
    extra: dict[str, Any] = {}


class SharedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt (messages and tool schemas) that turns name by `prefix`; defined once in a trace."""

    name: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    extra: dict[str, Any] = {}


class TurnRef(msgspec.Struct, frozen=True):
    session_id: str
    turn: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the trace's source measured for a turn.

    at_s: when the source dates the turn's start, in seconds after its tree's start_s; the clock that decides a replay
    is delay_s, not this.
    """

    at_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    cached_tokens: int | None = None
    usage: dict[str, Any] | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session, as the trace has it.

    start_s: session start in trace time (roots' turn 0 only). delay_s: tool pause, from the end of what this turn
    waits for to its start. `messages` replaces the context, `append` adds to it; content-free turns have
    `hash_ids` (a block each; appended to the first `keep_blocks` ids of the previous turn).
    """

    session_id: str
    turn: int
    line: int
    parent: TurnRef | None = None
    after: tuple[str, ...] = ()
    start_s: float | None = None
    delay_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    messages: tuple[Message, ...] | None = None
    append: tuple[Message, ...] | None = None
    hash_ids: tuple[int, ...] | None = None
    keep_blocks: int | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    prefix: str | None = None
    model: str | None = None
    recorded: Recorded | None = None
    extra: dict[str, Any] = {}


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one session in order."""

    session_id: str
    turns: tuple[Turn, ...]

    @property
    def parent(self) -> TurnRef | None:
        return self.turns[0].parent


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A root session with all its descendants: the unit that arrives, is read when due, and is dropped when done."""

    root_id: str
    start_s: float
    sessions: tuple[Session, ...]


# -------------------------------------------------------------------------------------------------------- requests


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
    """Token counts as the endpoint reported them, in one shape: input_tokens includes cached ones.

    None = not reported. `problem` says why a report was not believed (negative, cached > prompt); the counts it
    touches are then None and the raw object is kept in Record.usage_raw.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
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
    response_model: str | None = None
    response_id: str | None = None
    wanted_output_tokens: int | None = None
    wanted_input_tokens: int | None = None
    output_text: str | None = None
    reasoning_text: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    output_token_ids: list[int] | None = None
    """Where they were asked for (live history of hash ids)."""
    expectation: Expectation | None = None

    @property
    def ok(self) -> bool:
        return self.error_class is None


# ------------------------------------------------------------------------------------------------------------ runs


class Warning(msgspec.Struct, frozen=True, kw_only=True):
    """A doubt, as data: one list feeds terminal, report and gate. `advice` says what to do about it."""

    code: str
    message: str
    advice: str | None = None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run's own error allows its figures to be used, and if not, why."""

    verdict: Literal["ok", "degraded"] = "ok"
    reasons: tuple[str, ...] = ()


class OwnError(msgspec.Struct, frozen=True, kw_only=True):
    """How far the client itself can have distorted the figures; None = not measured."""

    stamp: Literal["kernel", "loop", "mixed", "none"] = "none"
    stamp_bound_p99_s: float | None = None
    read_lag_p99_s: float | None = None
    send_lag_p50_s: float | None = None
    send_lag_p99_s: float | None = None
    loop_lag_p99_s: float | None = None
    loop_lag_max_s: float | None = None
    streams: int = 0
    streams_without_stamps: int = 0
    clock_step_s: float | None = None
    """Largest change of realtime against monotonic seen in the run: it shifts kernel stamps."""
    suspended_s: float | None = None
    """How long the machine slept during the run."""
    gc_collections: int | None = None
    gc_pause_max_s: float | None = None
    gc_mode: str | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What an account's balance says a run cost, in one currency. All amounts are in `currency`.

    A balance has two decimals and how it is rounded is not known, so each end is off by up to 0.01: what was spent
    lies between at_least and at_most. Both are None where the balance was not read at both ends, or went up.
    """

    currency: str
    before: Decimal | None = None
    after: Decimal | None = None
    at_least: Decimal | None = None
    at_most: Decimal | None = None


class RunInfo(msgspec.Struct, kw_only=True, frozen=True):
    """run.json. `endpoint` holds no secret; times are UTC ISO 8601; `settings` are the resolved options."""

    schema_version: int = RUN_SCHEMA_VERSION
    kvbench_version: str
    run_id: str
    name: str
    status: Literal["started", "done", "interrupted", "failed"]
    started_at: str
    ended_at: str | None = None
    wall_s: float | None = None
    command: tuple[str, ...] = ()
    endpoint: dict[str, Any] = {}
    server: dict[str, Any] = {}
    trace: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seed: int = 0
    environment: dict[str, Any] = {}
    own_error: OwnError | None = None
    trust: Trust | None = None
    warnings: tuple[Warning, ...] = ()
    failure: str | None = None
    balance: tuple[Spent, ...] | None = None
    """One a currency; None = not asked for, or it could not be read."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """p50/p95/p99 by linear interpolation over n values; None = no value (or +inf, for adjusted figures)."""

    n: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None
    failures_as_inf: int | None = None
    """Adjusted figures only: how many failures were counted as +inf."""


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """ok + failed + skipped = turns; retried = the other attempts."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    retried: int = 0

    @property
    def turns(self) -> int:
        return self.ok + self.failed + self.skipped


class ExpectedHits(msgspec.Struct, frozen=True, kw_only=True):
    """Expected hits over the turns that have both an expectation and a report."""

    rule: str
    turns: int
    floor: float | None
    """Token-weighted hit rate if every turn hit its floor; `ceiling` likewise."""
    ceiling: float | None
    below: int
    above: int
    exact: int
    """Turns whose interval is a point and whose report equals it."""


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's own metrics say of the run: the change from the first scrape to the last, all its clients."""

    requests: int | None = None
    ttft_mean_s: float | None = None
    ttft_p50_s: float | None = None
    """No finer than the histogram's buckets."""
    itl_mean_s: float | None = None
    queue_mean_s: float | None = None
    prefix_hit_tokens: int | None = None
    prefix_query_tokens: int | None = None
    preemptions: int | None = None
    running_max: int | None = None
    """Over the scrapes; `waiting_max` and `kv_usage_max` (0..1) likewise."""
    waiting_max: int | None = None
    kv_usage_max: float | None = None


class PromptLengths(msgspec.Struct, frozen=True, kw_only=True):
    """How exactly prompts made from hash ids have the trace's lengths, as the endpoint counts them.

    Over final ok turns that report their input; wanted and got are sums of tokens.
    """

    turns: int
    exact_turns: int
    wanted: int
    got: int
    max_difference: int
    """Largest |got - wanted| of a turn, tokens."""
    sent_as: str | None = None
    """token ids, or text."""
    tokenizer: str | None = None
    template_tokens: int | None = None
    """What the chat template adds, inside the count."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run; the measure phase only. Rates are per second of the measured window."""

    run_id: str
    name: str
    status: str
    model: str | None
    server: str | None
    rule: str
    sessions: int
    turns: int
    window_s: float | None
    trace_s: float | None
    time_scale: float
    requests: RequestCounts
    errors: dict[str, int]
    in_flight_p95: float | None
    ttft_s: Quantiles
    ttft_adjusted_s: Quantiles
    ttft_scheduled_s: Quantiles
    ttft_by_hit_s: dict[str, Quantiles]
    """Keys none, part, full: no cached token, some, all that the rule allows (an expectation says which)."""
    ttfo_s: Quantiles
    tpot_s: Quantiles
    icl_s: Quantiles
    e2e_s: Quantiles
    queue_delay_s: Quantiles
    job_latency_s: Quantiles
    input_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    wanted_output_tokens: int | None
    hit_rate: float | None
    """Token-weighted, over final ok requests that report it: cached / input."""
    hit_rate_turns: int
    eligible_hit_rate: float | None
    expected: ExpectedHits | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    own_error: OwnError | None
    trust: Trust
    warnings: tuple[Warning, ...]
    warmup_turns: int = 0
    server_metrics: ServerFigures | None = None
    balance: tuple[Spent, ...] | None = None
    prompt_lengths: PromptLengths | None = None
    """None: no prompt was made from hash ids."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check, with the exit code that goes with it."""

    verdict: Literal["pass", "fail", "inconclusive", "refused"]
    reasons: tuple[str, ...] = ()
