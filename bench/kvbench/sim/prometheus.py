"""The simulated endpoint's /metrics, under vLLM's names and labels."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvbench.sim.costs import NS
from kvbench.sim.engine import Engine
from kvbench.sim.job import Job
from kvbench.sim.parameters import Preset

_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)


@dataclass
class Histogram:
    """Counts of seconds; a bucket holds what is at most its bound."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class ServerMetrics:
    """What happened on one engine since the endpoint started; TTFT, inter-token and e2e times are of the writes, not of
    the plan."""

    def __init__(self) -> None:
        self.inter_token = Histogram(_TOKEN_BUCKETS_S)
        self._ttft = Histogram(_TTFT_BUCKETS_S)
        self._e2e = Histogram(_REQUEST_BUCKETS_S)
        self._queue = Histogram(_REQUEST_BUCKETS_S)
        self._prefill = Histogram(_REQUEST_BUCKETS_S)
        self._decode = Histogram(_REQUEST_BUCKETS_S)
        self.finished_by: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.generation_tokens = 0

    def first_token(self, job: Job, now_ns: int) -> None:
        self._ttft.observe((now_ns - job.arrival_ns) / NS)
        below = sum(tokens for where, tokens in job.hits.items() if where in ("host", "ssd"))
        self.prompt_tokens["local_compute"] += job.prompt_tokens - job.cached_tokens
        self.prompt_tokens["local_cache_hit"] += job.cached_tokens - below
        self.prompt_tokens["external_kv_transfer"] += below

    def finished(self, job: Job, now_ns: int) -> None:
        """`now_ns`: when the last token was written."""
        assert job.scheduled_ns is not None
        assert job.first_token_ns is not None
        assert job.last_token_ns is not None
        self.finished_by["stop" if job.output.stops else "length"] += 1
        self._e2e.observe((now_ns - job.arrival_ns) / NS)
        self._queue.observe((job.scheduled_ns - job.ready_ns) / NS)
        self._prefill.observe((job.first_token_ns - job.scheduled_ns) / NS)
        self._decode.observe((job.last_token_ns - job.first_token_ns) / NS)

    def aborted(self) -> None:
        self.finished_by["abort"] += 1

    @property
    def histograms(self) -> dict[str, Histogram]:
        return {
            "time_to_first_token_seconds": self._ttft,
            "inter_token_latency_seconds": self.inter_token,
            "e2e_request_latency_seconds": self._e2e,
            "request_queue_time_seconds": self._queue,
            "request_prefill_time_seconds": self._prefill,
            "request_decode_time_seconds": self._decode,
        }


Samples = list[tuple[str, str, float]]
"""Suffix of the name, further labels, value."""


def render(preset: Preset, engines: Sequence[tuple[ServerMetrics, Engine]]) -> str:
    """Prometheus text exposition of everything, and of the engines as they are now."""
    out: list[str] = []

    def family(name: str, kind: str, text: str, samples: Callable[[ServerMetrics, Engine], Samples]) -> None:
        out.append(f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}")
        for number, (metrics, engine) in enumerate(engines):
            labels = f'engine="{number}",model_name="{_escape(preset.model)}"'
            rows = samples(metrics, engine)
            out.extend(f"vllm:{name}{suffix}{{{labels}{extra}}} {float(value)!r}" for suffix, extra, value in rows)

    def gauge(name: str, text: str, value: Callable[[Engine], float]) -> None:
        family(name, "gauge", text, lambda _, engine: [("", "", value(engine))])

    def counter(name: str, text: str, value: Callable[[ServerMetrics, Engine], float]) -> None:
        family(name, "counter", text, lambda *of: [("_total", "", value(*of))])

    out.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
    out.append("# TYPE vllm:cache_config_info gauge")
    out.extend(_cache_config(preset, number) for number in range(len(engines)))
    gauge("num_requests_running", "Number of requests in model execution batches.", lambda e: len(e.running))
    gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda e: e.waiting_requests)
    gauge(
        "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda e: 1 - e.pool.free / e.pool.capacity
    )
    counter("prefix_cache_queries", "Prefix cache queries, in tokens.", lambda _, e: e.queried_tokens)
    counter("prefix_cache_hits", "Prefix cache hits, in tokens.", lambda _, e: e.hit_tokens)
    if preset.host_bytes or preset.ssd_bytes:
        text = "External prefix cache"
        counter(
            "external_prefix_cache_queries", f"{text} queries, in tokens.", lambda _, e: e.queried_tokens - e.hit_tokens
        )
        counter("external_prefix_cache_hits", f"{text} hits, in tokens.", lambda _, e: e.external_hit_tokens)
    counter("num_preemptions", "Cumulative number of preemptions from the engine.", lambda _, e: e.preemptions)
    counter("prompt_tokens", "Number of prefill tokens processed.", lambda m, _: m.prompt_tokens.total())
    counter("generation_tokens", "Number of generation tokens processed.", lambda m, _: m.generation_tokens)
    family(
        "prompt_tokens_by_source",
        "counter",
        "Number of prompt tokens by source.",
        lambda metrics, _: [
            ("_total", f',source="{source}"', metrics.prompt_tokens[source])
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        ],
    )
    family(
        "request_success",
        "counter",
        "Count of successfully processed requests.",
        lambda metrics, _: [
            ("_total", f',finished_reason="{reason}"', metrics.finished_by[reason])
            for reason in ("stop", "length", "abort")
        ],
    )
    for name in ServerMetrics().histograms:
        text = f"Histogram of {name.replace('_', ' ')}."
        family(name, "histogram", text, partial(_buckets_of, name))
    return "\n".join(out) + "\n"


def _cache_config(preset: Preset, number: int) -> str:
    tokens = preset.capacity_tokens
    if preset.session_blocks:
        # As vLLM counts where layers are of several kinds: how many of the longest requests fit.
        whole = -(-preset.max_model_len // preset.block_size) + preset.session_blocks
        tokens = (preset.num_blocks - 1) * preset.max_model_len // whole
    labels = {
        "block_size": preset.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": number,
        "kv_cache_memory_bytes": round(preset.num_blocks * preset.block_bytes) or "None",
        "kv_cache_size_tokens": tokens,
        "kv_offloading_size": (preset.host_bytes + preset.ssd_bytes) / 2**30 or "None",
        "num_gpu_blocks": preset.num_blocks,
        "sliding_window": preset.window_tokens or "None",
    }
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{text}}} 1.0"


def _buckets_of(name: str, metrics: ServerMetrics, _: Engine) -> Samples:
    histogram, below = metrics.histograms[name], 0
    samples: Samples = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        samples.append(("_bucket", f',le="{bound}"', below))
    return [*samples, ("_count", "", below), ("_sum", "", histogram.total)]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
