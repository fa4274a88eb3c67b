"""The simulated endpoint's /metrics, under vLLM's names and labels."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from kvbench.sim.engine import NS, Engine, Job
from kvbench.sim.presets import Preset

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
    """What happened since the endpoint started; TTFT, inter-token and e2e times are of the writes, not of the plan."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self.ttft = Histogram(_TTFT_BUCKETS_S)
        self.inter_token = Histogram(_TOKEN_BUCKETS_S)
        self.e2e = Histogram(_REQUEST_BUCKETS_S)
        self.queue = Histogram(_REQUEST_BUCKETS_S)
        self.prefill = Histogram(_REQUEST_BUCKETS_S)
        self.decode = Histogram(_REQUEST_BUCKETS_S)
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0

    def first_token(self, job: Job, now_ns: int) -> None:
        self.ttft.observe((now_ns - job.arrival_ns) / NS)
        self._prompt_tokens += job.prompt_tokens
        self._cached_tokens += job.cached_tokens

    def finished(self, job: Job, last_token_ns: int, now_ns: int) -> None:
        """`last_token_ns`: the engine's own time of it; `now_ns`: when it was written."""
        assert job.scheduled_ns is not None
        assert job.first_token_ns is not None
        self._finished["stop" if job.output.stops else "length"] += 1
        self._generation_tokens += job.sampled
        self.e2e.observe((now_ns - job.arrival_ns) / NS)
        self.queue.observe((job.scheduled_ns - job.ready_ns) / NS)
        self.prefill.observe((job.first_token_ns - job.scheduled_ns) / NS)
        self.decode.observe((last_token_ns - job.first_token_ns) / NS)

    def aborted(self) -> None:
        self._finished["abort"] += 1

    def render(self, engine: Engine) -> str:
        """Prometheus text exposition of everything, and of the engine as it is now."""
        preset, pool = self._preset, engine.pool
        labels = f'engine="0",model_name="{_escape(preset.model)}"'
        out: list[str] = []

        def family(name: str, kind: str, text: str, samples: list[tuple[str, str, float]]) -> None:
            out.append(f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}")
            out.extend(f"vllm:{name}{suffix}{{{labels}{extra}}} {value!r}" for suffix, extra, value in samples)

        def one(name: str, kind: str, text: str, value: float) -> None:
            family(name, kind, text, [("_total" if kind == "counter" else "", "", float(value))])

        out.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
        out.append("# TYPE vllm:cache_config_info gauge")
        out.append(
            f'vllm:cache_config_info{{block_size="{preset.block_size}",cache_dtype="auto",enable_prefix_caching="True",'
            f'engine="0",kv_cache_size_tokens="{preset.capacity_tokens}",num_gpu_blocks="{preset.num_blocks}"}} 1.0'
        )
        one("num_requests_running", "gauge", "Number of requests in model execution batches.", len(engine.running))
        one("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", len(engine.waiting))
        used = 1 - pool.free / pool.capacity
        one("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", used)
        one("prefix_cache_queries", "counter", "Prefix cache queries, in tokens.", engine.queried_tokens)
        one("prefix_cache_hits", "counter", "Prefix cache hits, in tokens.", engine.hit_tokens)
        one("num_preemptions", "counter", "Cumulative number of preemptions from the engine.", engine.preemptions)
        one("prompt_tokens", "counter", "Number of prefill tokens processed.", self._prompt_tokens)
        one("generation_tokens", "counter", "Number of generation tokens processed.", self._generation_tokens)
        by_source = {
            "local_compute": self._prompt_tokens - self._cached_tokens,
            "local_cache_hit": self._cached_tokens,
            "external_kv_transfer": 0,
        }
        family(
            "prompt_tokens_by_source",
            "counter",
            "Number of prompt tokens by source.",
            [("_total", f',source="{source}"', float(count)) for source, count in by_source.items()],
        )
        family(
            "request_success",
            "counter",
            "Count of successfully processed requests.",
            [
                ("_total", f',finished_reason="{reason}"', float(self._finished[reason]))
                for reason in ("stop", "length", "abort")
            ],
        )
        for name, histogram in (
            ("time_to_first_token_seconds", self.ttft),
            ("inter_token_latency_seconds", self.inter_token),
            ("e2e_request_latency_seconds", self.e2e),
            ("request_queue_time_seconds", self.queue),
            ("request_prefill_time_seconds", self.prefill),
            ("request_decode_time_seconds", self.decode),
        ):
            below, samples = 0, []
            for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                below += count
                samples.append(("_bucket", f',le="{bound}"', float(below)))
            samples += [("_count", "", float(below)), ("_sum", "", histogram.total)]
            family(name, "histogram", f"Histogram of {name.replace('_', ' ')}.", samples)
        return "\n".join(out) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
