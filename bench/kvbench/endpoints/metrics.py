"""vLLM's own counters (/metrics): a snapshot, and what changed between two.

Names as of vLLM 0.32. A series that the server does not have is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from kvbench.endpoints.prometheus import Sample, Samples, parse_prometheus

__all__ = ["CacheConfig", "Histogram", "Samples", "ServerMetrics", "parse_prometheus"]

_COUNTERS = {
    "prefix_hit_tokens": "vllm:prefix_cache_hits_total",
    "prefix_query_tokens": "vllm:prefix_cache_queries_total",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
_GAUGES = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
_HISTOGRAMS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "decode_s": "vllm:request_decode_time_seconds",
}
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_USAGE = "vllm:kv_cache_usage_perc"
_USUAL = {"sliding_window": "None", "mamba_cache_mode": "none", "kv_offloading_size": "None"}
"""Labels of the cache's configuration and what they say on a model whose layers are all alike."""
_CONFIG = "vllm:cache_config_info"
_WANTED = (*_COUNTERS.values(), *_GAUGES.values(), *_HISTOGRAMS.values(), _BY_SOURCE, _USAGE, _CONFIG)


class Histogram(msgspec.Struct, frozen=True):
    """A cumulative histogram in seconds: `counts[i]` observations were <= `bounds[i]`; `count` in all."""

    bounds: list[float]
    """Finite upper bounds, ascending; +Inf is `count`."""
    counts: list[float]
    count: float
    sum: float

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 else None

    def quantile(self, q: float) -> float | None:
        """Linear within the bucket, from 0 in the first one (as Prometheus' histogram_quantile): no finer than the
        buckets are. Above the last finite bound that bound is returned, a lower limit. None without observations."""
        if self.count <= 0 or not self.bounds:
            return None
        rank, below, lower = q * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > below:
                return lower + (bound - lower) * (rank - below) / (count - below)
            below, lower = count, bound
        return self.bounds[-1]

    def minus(self, before: Histogram) -> Histogram | None:
        """What was observed since `before`; None where the buckets differ or the counts fell (a restart)."""
        counts = [after - was for after, was in zip(self.counts, before.counts, strict=False)]
        if self.bounds != before.bounds or self.count < before.count or any(c < 0 for c in counts):
            return None
        return Histogram(self.bounds, counts, self.count - before.count, self.sum - before.sum)

    def plus(self, other: Histogram) -> Histogram | None:
        if self.bounds != other.bounds:
            return None
        counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.count + other.count, self.sum + other.sum)


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache as vllm:cache_config_info states it. `capacity_tokens` = (num_gpu_blocks - 1) * block_size, as one
    block is the null block; with several engines, the sum.

    stated_bytes: what it was given for the cache (kv_cache_memory_bytes), where that was set; of all engines.
    stated_tokens: what an engine says it holds (kv_cache_size_tokens, in newer servers); on a model with several kinds
    of layers that is not num_gpu_blocks * block_size. special: labels that say of some layers that they do not keep all
    blocks, or that blocks are kept elsewhere too.
    """

    block_size: int | None = None
    num_gpu_blocks: int | None = None
    capacity_tokens: int | None = None
    cache_dtype: str | None = None
    prefix_caching: bool | None = None
    stated_tokens: int | None = None
    stated_bytes: int | None = None
    special: tuple[str, ...] = ()
    engines: int = 1


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One or several servers' counters at one time, or (from `delta`) their change.

    Counters count from the server's start. running, waiting: requests now. kv_usage: 0..1, the fullest engine.
    """

    prefix_hit_tokens: float | None = None
    prefix_query_tokens: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prompt_tokens_by_source: dict[str, float] | None = None
    histograms: dict[str, Histogram] = {}
    """By ttft_s, itl_s, e2e_s, queue_s, prefill_s, decode_s."""
    cache: CacheConfig | None = None
    restarted: bool = False
    """Only in a delta: a counter fell, so a server was restarted in between, and no change of a counter is known."""

    @classmethod
    def from_text(cls, text: str) -> ServerMetrics:
        """From the text of /metrics; ValueError where it is none.

        Only the lines wanted are parsed: a scrape happens while a run is measured, and vLLM has 700 lines.
        """
        wanted = "\n".join(line for line in text.split("\n") if line.startswith(_WANTED))
        return cls.from_samples(parse_prometheus(wanted or text))

    @classmethod
    def from_samples(cls, samples: Samples) -> ServerMetrics:
        """Series of several engines or models of one server are summed."""
        by_source: dict[str, float] = {}
        for sample in samples.get(_BY_SOURCE, ()):
            source = sample.labels.get("source", "")
            by_source[source] = by_source.get(source, 0.0) + sample.value
        usage = [s.value for s in samples.get(_USAGE, ()) if math.isfinite(s.value)]
        single: dict[str, Any] = {field: _total(samples.get(name)) for field, name in (_COUNTERS | _GAUGES).items()}
        return cls(
            **single,
            kv_usage=max(usage, default=None),
            prompt_tokens_by_source=by_source or None,
            histograms={f: h for f, name in _HISTOGRAMS.items() if (h := _histogram(samples, name)) is not None},
            cache=_cache_config(samples.get(_CONFIG)),
        )

    @classmethod
    def total(cls, several: Iterable[ServerMetrics]) -> ServerMetrics:
        """The servers behind one endpoint as one. A field that one of them lacks is None: a part is no total."""
        every = list(several)
        if len(every) == 1:
            return every[0]
        fields: dict[str, Any] = {}
        for field in _COUNTERS | _GAUGES:
            values = [getattr(m, field) for m in every]
            fields[field] = None if None in values or not values else sum(values)
        usage = [m.kv_usage for m in every if m.kv_usage is not None]
        sources = [m.prompt_tokens_by_source for m in every]
        by_source: dict[str, float] = {}
        for source in sources:
            for name, value in (source or {}).items():
                by_source[name] = by_source.get(name, 0.0) + value
        histograms: dict[str, Histogram] = {}
        for name in _HISTOGRAMS:
            summed: Histogram | None = every[0].histograms.get(name) if every else None
            for metrics in every[1:]:
                other = metrics.histograms.get(name)
                summed = summed.plus(other) if summed is not None and other is not None else None
            if summed is not None:
                histograms[name] = summed
        return cls(
            **fields,
            kv_usage=max(usage, default=None),
            prompt_tokens_by_source=by_source if by_source and None not in sources else None,
            histograms=histograms,
            cache=_joined_config([m.cache for m in every]),
        )

    def delta(self, before: ServerMetrics) -> ServerMetrics:
        """What changed since `before`: counters and histograms as differences, gauges as they are now."""
        fields: dict[str, Any] = {}
        restarted = False
        for field in _COUNTERS:
            after, was = getattr(self, field), getattr(before, field)
            fields[field] = None if after is None or was is None else after - was
            restarted = restarted or (fields[field] or 0.0) < 0
        by_source: dict[str, float] | None = None
        if self.prompt_tokens_by_source is not None and before.prompt_tokens_by_source is not None:
            was_by = before.prompt_tokens_by_source
            by_source = {name: value - was_by.get(name, 0.0) for name, value in self.prompt_tokens_by_source.items()}
        histograms: dict[str, Histogram] = {}
        for name, after_h in self.histograms.items():
            was_h = before.histograms.get(name)
            changed = None if was_h is None else after_h.minus(was_h)
            if changed is not None:
                histograms[name] = changed
            elif was_h is not None and was_h.count > after_h.count:
                restarted = True
        if restarted:
            fields, by_source, histograms = {}, None, {}
        return ServerMetrics(
            **fields,
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.kv_usage,
            prompt_tokens_by_source=by_source,
            histograms=histograms,
            cache=self.cache,
            restarted=restarted,
        )

    def to_dict(self) -> dict[str, Any]:
        """For events.jsonl."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ServerMetrics:
        """What `to_dict` gave; unknown fields are ignored."""
        return msgspec.convert(plain, cls)


def _total(series: list[Sample] | None) -> float | None:
    """Sum over the series; None where there is none or one is not a number."""
    if not series:
        return None
    total = sum(s.value for s in series)
    return total if math.isfinite(total) else None


def _histogram(samples: Samples, name: str) -> Histogram | None:
    buckets: dict[float, float] = {}
    for sample in samples.get(f"{name}_bucket", ()):
        try:
            bound = float(sample.labels.get("le", "nan"))
        except ValueError:
            continue
        if not math.isnan(bound):
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    count, total = _total(samples.get(f"{name}_count")), _total(samples.get(f"{name}_sum"))
    if count is None or total is None:
        return None
    bounds = sorted(b for b in buckets if math.isfinite(b))
    return Histogram(bounds, [buckets[b] for b in bounds], count, total)


def _cache_config(series: list[Sample] | None) -> CacheConfig | None:
    if not series:
        return None
    engines: list[CacheConfig | None] = []
    for sample in series:
        block, blocks = _int(sample.labels.get("block_size")), _int(sample.labels.get("num_gpu_blocks"))
        caching = sample.labels.get("enable_prefix_caching")
        engines.append(
            CacheConfig(
                block_size=block,
                num_gpu_blocks=blocks,
                capacity_tokens=None if block is None or blocks is None else max(0, blocks - 1) * block,
                cache_dtype=sample.labels.get("cache_dtype"),
                prefix_caching={"True": True, "False": False}.get(caching or ""),
                stated_tokens=_int(sample.labels.get("kv_cache_size_tokens")),
                stated_bytes=_int(sample.labels.get("kv_cache_memory_bytes")),
                special=tuple(
                    f"{name}={sample.labels[name]}"
                    for name, usual in _USUAL.items()
                    if sample.labels.get(name, usual) not in (usual, "None")
                ),
            )
        )
    return _joined_config(engines)


def _joined_config(several: list[CacheConfig | None]) -> CacheConfig | None:
    """Capacities summed; what differs between engines is None."""
    known = [c for c in several if c is not None]
    if not known or len(known) < len(several):
        return None
    capacity = [c.capacity_tokens for c in known]
    blocks = [c.num_gpu_blocks for c in known]
    memory = [c.stated_bytes for c in known]

    def same(field: str) -> Any:
        values = {getattr(c, field) for c in known}
        return values.pop() if len(values) == 1 else None

    return CacheConfig(
        block_size=same("block_size"),
        num_gpu_blocks=None if None in blocks else sum(b for b in blocks if b is not None),
        capacity_tokens=None if None in capacity else sum(c for c in capacity if c is not None),
        cache_dtype=same("cache_dtype"),
        prefix_caching=same("prefix_caching"),
        stated_tokens=same("stated_tokens"),
        stated_bytes=None if None in memory else sum(m for m in memory if m is not None),
        special=tuple(dict.fromkeys(label for c in known for label in c.special)),
        engines=sum(c.engines for c in known),
    )


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
