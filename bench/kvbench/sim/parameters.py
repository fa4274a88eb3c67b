"""What a simulated endpoint is made of: every parameter with its unit, its limits and what it does."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_NAME = "name"
_SWITCH = "true or false"
_SHARE = "1"
_BEFORE_SCALE = "s, before --time-scale"
_LONGEST_LIFE_S = 1e9
_LIFE: dict[str, float] = {"gt": 0, "le": _LONGEST_LIFE_S}
_MOST_BYTES = 10**18
_MOST_BLOCKS = 10**12
_MOST_TOKENS = 10**9


def _is(unit: str, what: str, **limits: Any) -> Meta:
    return Meta(description=what, extra={"unit": unit}, **limits)


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on an engine with a pool of KV blocks. `known` says of the parameters that are documented or were
    measured on the real server where that is; all others are assumed, and `assumed` says what speaks for the value,
    where something does.

    TTFT of a request without load, in seconds, for u uncached and c cached prompt tokens:
        frontend_s + restoring + prefill_base_s + prefill_s_per_token * u + prefill_s_per_cached_token * c
        + attention_s_per_token2 * (u * c + u * u / 2) + prefill_s_per_chunk * ceil(u / max_batched_tokens)
    where restoring is, for each tier below HBM that holds a part of the hit, its latency and the part's bytes over its
    bandwidth; a replayed window counts as uncached. The square is the causal attention of u new tokens over c cached
    ones and over themselves. A decode step of n running requests with k tokens of context between them takes
        decode_base_s + decode_s_per_request * n + decode_s_per_context_token * k
    and its chunks then leave send_s_per_chunk apart, beside the next step.
    """

    name: str
    description: str
    known: dict[str, str] = {}
    assumed: dict[str, str] = {}

    # ---- what answers
    dialect: Annotated[Literal["vllm", "deepseek"], _is(_NAME, "Whose API is spoken.")] = "vllm"
    model: Annotated[str, _is(_NAME, "The name it is served under.", min_length=1)] = "sim-small"
    max_model_len: Annotated[int, _is("tokens", "Longest prompt and output together.", ge=2, le=_MOST_TOKENS)] = 131_072
    seed: Annotated[int, _is("seed", "Of everything that is left to chance.", ge=0)] = 0

    # ---- the pool in HBM
    block_size: Annotated[int, _is("tokens", "Of a block.", ge=1, le=4096)] = 32
    num_blocks: Annotated[
        int, _is("blocks, one of them the null block", "Size of the pool.", ge=2, le=_MOST_BLOCKS)
    ] = 62_501
    pool_bytes: (
        Annotated[
            int,
            _is(
                "bytes",
                "Size of the pool in bytes: num_blocks is what fits; null: num_blocks says it.",
                ge=1,
                le=_MOST_BYTES,
            ),
        ]
        | None
    ) = None
    bytes_per_token: Annotated[
        float, _is("bytes/token", "KV bytes of a token, 0: not stated, and nothing is sized in bytes.", ge=0, le=1e9)
    ] = 0.0
    bytes_per_session: Annotated[
        int,
        _is(
            "bytes",
            "Fixed state of a running request, pinned in the pool in whole blocks while it runs.",
            ge=0,
            le=_MOST_BYTES,
        ),
    ] = 0
    cache_blocks: (
        Annotated[
            int,
            _is("blocks", "Cached blocks kept once their requests have ended; null: all that the pool holds.", ge=1),
        ]
        | None
    ) = None
    cache_outputs: Annotated[bool, _is(_SWITCH, "Generated tokens are cached too; false: only what was sent.")] = True
    recompute_last_token: Annotated[
        bool, _is(_SWITCH, "A hit leaves at least a prompt's last token to compute; false: all of it may be hit.")
    ] = True
    eviction: Annotated[
        Literal["lru", "fifo", "head_first"],
        _is(
            _NAME,
            "What goes first. lru: the least recently used, a request's tail before its head; head_first: the same, "
            "head before tail; fifo: what was written first, used since or not.",
        ),
    ] = "lru"
    idle_ttl_s: (
        Annotated[
            float, _is(_BEFORE_SCALE, "A block or prefix unit unused for this long is given up; null: never.", **_LIFE)
        ]
        | None
    ) = None
    refresh_on_hit: Annotated[
        bool, _is(_SWITCH, "A hit begins idle_ttl_s anew; false: it counts from when the block was written.")
    ] = True
    lapse_probability: Annotated[
        float, _is(_SHARE, "Best effort: a hit turns out to be lost, what it would have hit is forgotten.", ge=0, le=1)
    ] = 0.0
    foreign_share: Annotated[
        float,
        _is(_SHARE, "Of all blocks written to the pool, those of other tenants; they take no time.", ge=0, le=0.99),
    ] = 0.0

    # ---- below HBM: what leaves the pool goes down a tier, what is hit there comes up again
    host_bytes: Annotated[
        int, _is("bytes", "Host memory for blocks that leave HBM; 0: there is none.", ge=0, le=_MOST_BYTES)
    ] = 0
    host_bandwidth_bytes_per_s: Annotated[float, _is("bytes/s", "Host memory to HBM.", gt=0, le=1e15)] = 20e9
    host_latency_s: Annotated[float, _is("s", "Before the first byte from host memory.", ge=0, le=3600)] = 0.0005
    host_ttl_s: (
        Annotated[float, _is(_BEFORE_SCALE, "A block leaves host memory after this long; null: never.", **_LIFE)] | None
    ) = None
    ssd_bytes: Annotated[
        int, _is("bytes", "SSD for blocks that leave the tier above; 0: there is none.", ge=0, le=_MOST_BYTES)
    ] = 0
    ssd_bandwidth_bytes_per_s: Annotated[float, _is("bytes/s", "SSD to HBM.", gt=0, le=1e15)] = 5e9
    ssd_latency_s: Annotated[float, _is("s", "Before the first byte from SSD.", ge=0, le=3600)] = 0.005
    ssd_ttl_s: (
        Annotated[float, _is(_BEFORE_SCALE, "A block is gone from SSD after this long; null: never.", **_LIFE)] | None
    ) = None

    # ---- sliding-window layers
    window_tokens: Annotated[int, _is("tokens", "Sliding window of layers whose state a hit needs; 0: none.", ge=0)] = 0
    window_replay: Annotated[
        Literal["always", "after_ttl", "never"],
        _is(
            _NAME,
            "Where a hit's window state comes from. always: its last window_tokens are computed again, and a hit no "
            "longer than that is not taken; after_ttl: that, where no kept state is left; never: from kept state "
            "alone, so that a hit reaches as far as there is some. It is kept at the last full block of each input "
            "and output.",
        ),
    ] = "never"
    window_ttl_s: (
        Annotated[float, _is(_BEFORE_SCALE, "Window state unused for this long is gone; null: never.", **_LIFE)] | None
    ) = None

    # ---- prefix units in place of blocks
    prefix: Annotated[
        Literal["block", "units"],
        _is(
            _NAME,
            "What a hit is. block: blocks of the longest cached prefix; units: one whole persisted prefix unit.",
        ),
    ] = "block"
    unit_granularity_tokens: Annotated[
        int, _is("tokens", "Units end at multiples of this; what is left over is not cached.", ge=1, le=4096)
    ] = 128
    unit_interval_tokens: (
        Annotated[int, _is("tokens", "Units end at multiples of this too; null: at ends of text only.", ge=1)] | None
    ) = None
    unit_build_s: Annotated[
        float,
        _is(_BEFORE_SCALE, "A unit can be hit this long after its tokens were computed.", ge=0, le=_LONGEST_LIFE_S),
    ] = 0.0

    # ---- time
    frontend_s: Annotated[float, _is("s", "From a request's last byte to the scheduler.", ge=0, le=3600)] = 0.008
    prefill_base_s: Annotated[float, _is("s", "Of a prefill, however long.", ge=0, le=3600)] = 0.012
    prefill_s_per_token: Annotated[float, _is("s/token", "Prefill, linear.", ge=0, le=3600)] = 20e-6
    prefill_s_per_cached_token: Annotated[float, _is("s/token", "Prefill, for what was hit.", ge=0, le=3600)] = 0.0
    attention_s_per_token2: Annotated[float, _is("s/token^2", "Prefill, quadratic.", ge=0, le=3600)] = 1e-10
    prefill_s_per_chunk: Annotated[float, _is("s/chunk", "Prefill, for each of its steps.", ge=0, le=3600)] = 0.0
    max_batched_tokens: Annotated[int, _is("tokens/step", "A longer prefill is cut into chunks.", ge=1)] = 2048
    decode_base_s: Annotated[float, _is("s", "Of a step in which anything decodes.", ge=0, le=3600)] = 0.0079
    decode_s_per_request: Annotated[float, _is("s/request", "Of a step, for each that decodes.", ge=0, le=3600)] = (
        0.0001
    )
    decode_s_per_context_token: Annotated[
        float, _is("s/token", "Of a step, for each token of context read.", ge=0, le=3600)
    ] = 0.0
    speculative_tokens: Annotated[int, _is("tokens", "Drafted a step; those accepted share a chunk.", ge=0, le=64)] = 0
    speculative_acceptance: Annotated[
        float, _is(_SHARE, "Chance of a drafted token, if those before it were accepted.", ge=0, le=1)
    ] = 0.7
    send_s_per_chunk: Annotated[
        float, _is("s", "Chunks of a step leave one after the other, first tokens first, this far apart.", ge=0, le=1)
    ] = 30e-6
    noise_sigma: Annotated[
        float, _is(_SHARE, "Times are multiplied by a log-normal factor of median 1 and this sigma.", ge=0, le=2)
    ] = 0.0

    # ---- load
    max_running: Annotated[int, _is("requests", "Batched at a time; the others wait.", ge=1)] = 256
    admission: Annotated[
        Literal["prompt", "whole"],
        _is(
            _NAME,
            "prompt: a request begins once the pool has room for its prompt, and the newest is preempted where room "
            "runs out; whole: once it has room for its output too, and none ever is.",
        ),
    ] = "prompt"
    max_in_flight: Annotated[int, _is("requests", "One more is answered with 429; null: it waits.", ge=1)] | None = None
    replicas: Annotated[int, _is("replicas", "Engines, each with a cache and a time of its own.", ge=1, le=64)] = 1
    routing: Annotated[
        Literal["random", "sticky"],
        _is(_NAME, "Which replica gets a request. random: any; sticky: the one that got most of its prompt before."),
    ] = "random"

    # ---- what is said
    reported_granularity_tokens: Annotated[
        int, _is("tokens", "Cached tokens are reported in whole multiples of this.", ge=1, le=1_000_000)
    ] = 1
    reports_cached_tokens: Annotated[
        bool,
        _is(_SWITCH, "Usage tells cached tokens; false: null, as vLLM says without --enable-prompt-tokens-details."),
    ] = True
    fault_cached_text: Annotated[
        float,
        _is(_SHARE, "Of answers to prompts with a hit, those that differ, from their middle on.", ge=0, le=1),
    ] = 0.0
    fault_cached_logprob: Annotated[
        float, _is("nats", "Log probabilities of answers to prompts with a hit are lower by this.", ge=0, le=100)
    ] = 0.0
    tells_metrics: Annotated[
        bool, _is(_SWITCH, "GET /metrics is answered (dialect vllm); false: with 404, as where it is not exposed.")
    ] = True
    thinking_tokens: Annotated[
        int, _is("tokens", "Reasoning before an answer, unless a request disables it (dialect deepseek).", ge=0)
    ] = 0
    usage_on: Annotated[
        Literal["finish", "extra"],
        _is(
            _NAME,
            "The chunk with a stream's usage. finish: the one with the finish_reason; extra: one of its own with no "
            "choices, where the request asks for it (dialect deepseek).",
        ),
    ] = "finish"
    hide_reasoning: Annotated[
        bool, _is(_SWITCH, "Reasoning is counted in usage, and its text is not sent (dialect deepseek).")
    ] = False
    report_usage: Annotated[bool, _is(_SWITCH, "Answers have usage; false: none ever has.")] = True
    usage_granularity_tokens: Annotated[
        int, _is("tokens", "Usage has prompt tokens rounded up to whole multiples of this.", ge=1, le=1_000_000)
    ] = 1
    template_tokens: Annotated[
        int, _is("tokens", "What the chat template sets before every chat, beside its marks.", ge=0, le=100_000)
    ] = 0
    repeats: Annotated[
        bool, _is(_SWITCH, "A message that begins with `Repeat exactly` is answered with what follows its first colon.")
    ] = False
    keep_alive_s: (
        Annotated[
            float,
            _is("s", "Between signs of life to a request that waits (dialect deepseek); null: none.", gt=0, le=3600),
        ]
        | None
    ) = None
    begin_within_s: (
        Annotated[
            float,
            _is("s", "A request not begun by then is hung up on (dialect deepseek); null: never.", gt=0, le=86400),
        ]
        | None
    ) = None
    insufficient_resource_every: (
        Annotated[
            int,
            _is(
                "requests",
                "Each n-th answer ends half way, insufficient_system_resource (dialect deepseek); null: none.",
                ge=1,
            ),
        ]
        | None
    ) = None

    # ---- money
    currency: Annotated[Literal["USD", "CNY"], _is(_NAME, "Of prices and balance.")] = "USD"
    granted_balance: Annotated[Decimal, _is("of currency", "Spent first.")] = Decimal(0)
    topped_up_balance: Annotated[Decimal, _is("of currency", "Spent last; at 0 in all there are no answers.")] = (
        Decimal(0)
    )
    price_hit_per_mtok: Annotated[Decimal, _is("of currency/10^6 tokens", "Input that was cached.")] = Decimal(0)
    price_miss_per_mtok: Annotated[Decimal, _is("of currency/10^6 tokens", "Input that was not.")] = Decimal(0)
    price_output_per_mtok: Annotated[Decimal, _is("of currency/10^6 tokens", "Output.")] = Decimal(0)

    peak_factor: Annotated[Decimal, _is(_SHARE, "Multiplies prices in peak hours.")] = Decimal(1)
    peak_hours_utc: Annotated[
        str,
        _is(
            "times of day",
            "Half-open, for example 01:00-04:00,06:00-10:00; the time a request came counts; empty: none.",
            pattern=r"^(([01]\d|2[0-3]):[0-5]\d-(([01]\d|2[0-3]):[0-5]\d|24:00)(,|$))*$",
        ),
    ] = ""
    peak_days: Annotated[Literal["weekdays", "all"], _is(_NAME, "Monday to Friday (UTC), or all.")] = "weekdays"
    utc_start: (
        Annotated[
            str,
            _is(
                "UTC",
                "What its clock said when it started, for example 2026-11-02T00:59:30Z; null: the machine's.",
                pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
            ),
        ]
        | None
    ) = None

    # ---- billing faults: the share of requests that have each
    fault_hits_as_misses: Annotated[float, _is(_SHARE, "Cached input is charged as if it were not.", ge=0, le=1)] = 0.0
    fault_peak_price: Annotated[float, _is(_SHARE, "Off-peak, the peak price is charged.", ge=0, le=1)] = 0.0
    fault_charged_twice: Annotated[float, _is(_SHARE, "The charge is made twice.", ge=0, le=1)] = 0.0
    fault_output_overcount: Annotated[float, _is(_SHARE, "Usage says more output, and it is charged.", ge=0, le=1)] = (
        0.0
    )
    fault_input_overcount: Annotated[float, _is(_SHARE, "Usage says more input, and it is charged.", ge=0, le=1)] = 0.0
    fault_stream_overcount: Annotated[
        float, _is(_SHARE, "Usage of a stream says more input, and it is charged.", ge=0, le=1)
    ] = 0.0
    fault_overrun: Annotated[
        float, _is(_SHARE, "An answer that max_tokens should end goes on, and that is charged.", ge=0, le=1)
    ] = 0.0
    overcount_share: Annotated[float, _is(_SHARE, "How much more, of what it was; rounded up.", gt=0, le=10)] = 0.1

    @property
    def capacity_tokens(self) -> int:
        """Usable tokens: one block of the pool is the null block."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def block_bytes(self) -> float:
        """0.0: not stated."""
        return self.bytes_per_token * self.block_size

    @property
    def session_blocks(self) -> int:
        """Blocks that a running request pins beside those of its tokens."""
        return -int(-self.bytes_per_session // self.block_bytes) if self.bytes_per_session else 0
