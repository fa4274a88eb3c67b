"""The figures of one run."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbench.model.runs import OwnError, RulesCheck, Spent, Trust, Warning


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
    ttfat_s: Quantiles = Quantiles()
    """Of jobs: the scheduled start to the first generated chunk of the root session's last turn."""
    jobs_per_h_per_user: float | None = None
    """3600 / mean job latency."""
    interactivity_tokens_per_s: Quantiles = Quantiles()
    """Output tokens / E2E, a request each."""
    interactivity_p90_tokens_per_s: float | None = None
    """1 / p90(E2E / output tokens): what nine of ten requests reach."""
    steady_window_s: float | None = None
    steady_output_tokens_per_s: float | None = None
    """To the start of the last session tree: the tail in which load dies away is left out."""
    slos: dict[str, float] = {}
    """What a request had to stay below to be good; goodput_per_s and good_fraction are None without."""
    goodput_per_s: float | None = None
    good_fraction: float | None = None
    e2e_scheduled_s: Quantiles = Quantiles()
    """Effective latency: from when the turn was scheduled."""
    e2e_adjusted_s: Quantiles = Quantiles()
    """E2E with a failed turn as +inf."""
    active_prefill_tokens_per_s: float | None = None
    """Input tokens, cached ones included, over the time in which a first token was waited for."""
    active_decode_tokens_per_s: float | None = None
    """Output tokens after the first over the time in which answers came."""
    rules: RulesCheck | None = None
    """None = made by no published rules."""
    prompt_lengths: PromptLengths | None = None
    """None: no prompt was made from hash ids."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check, with the exit code that goes with it."""

    verdict: Literal["pass", "fail", "inconclusive", "refused"]
    reasons: tuple[str, ...] = ()
