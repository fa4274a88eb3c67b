"""What the server's own metrics say of a run, held against what the client saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvbench.endpoints.metrics import ServerMetrics
from kvbench.model import Record, ServerFigures, Warning
from kvbench.runs.own_error import NS_PER_S
from kvbench.runs.quantiles import quantile
from kvbench.runs.reader import Run

TTFT_TOLERANCE_S = 0.005
TTFT_TOLERANCE = 0.10
CACHED_TOLERANCE_TOKENS = 64
CACHED_TOLERANCE = 0.01
TRAFFIC_TOLERANCE = 0.01


def server_figures(run: Run) -> tuple[ServerFigures | None, list[Warning]]:
    """The change from the first scrape to the last (events of kind metrics), and where client and server disagree.

    Figures None: no scrape before the run or none after it. All records count, the warm-up too, as the server counts
    them.
    """
    events = [event for event in run.events if event.get("kind") == "metrics" and "metrics" in event]
    if not events or events[0].get("phase") != "before" or events[-1].get("phase") != "after":
        return None, []
    scrapes, warnings = _scrapes(events)
    if not scrapes:
        return None, warnings
    change = scrapes[-1].delta(scrapes[0])
    if change.restarted:
        warnings.append(
            Warning(
                code="server_restarted",
                message="the server's counters fell during the run: it was restarted",
                advice="its cache was lost on the way; run again",
            )
        )
    ttft = change.histograms.get("ttft_s")
    itl = change.histograms.get("itl_s")
    queue = change.histograms.get("queue_s")
    figures = ServerFigures(
        requests=None if ttft is None else round(ttft.count),
        ttft_mean_s=None if ttft is None else ttft.mean,
        ttft_p50_s=None if ttft is None else ttft.quantile(0.5),
        itl_mean_s=None if itl is None else itl.mean,
        queue_mean_s=None if queue is None else queue.mean,
        prefix_hit_tokens=_whole(change.prefix_hit_tokens),
        prefix_query_tokens=_whole(change.prefix_query_tokens),
        preemptions=_whole(change.preemptions),
        running_max=_whole(_largest([scrape.running for scrape in scrapes])),
        waiting_max=_whole(_largest([scrape.waiting for scrape in scrapes])),
        kv_usage_max=_largest([scrape.kv_usage for scrape in scrapes]),
    )
    return figures, warnings + disagreements(run.records, figures)


def disagreements(records: Sequence[Record], server: ServerFigures) -> list[Warning]:
    """Where both measured the same thing and differ: mean TTFT by more than max(5 ms, 10%), cached tokens by more than
    max(64 tokens, 1%). Nothing is compared when the server saw other requests than this run's.
    """
    warnings: list[Warning] = []
    if server.preemptions:
        warnings.append(
            Warning(
                code="preemptions",
                message=f"the server preempted running requests {server.preemptions} times for want of cache blocks",
                advice="preempted prompts are computed twice: lower --max-in-flight, or give the server a larger pool",
            )
        )
    ttfts = sorted(
        (r.clock.first_token - r.clock.sent) / NS_PER_S
        for r in records
        if r.clock.first_token is not None and r.clock.sent is not None
    )
    if server.requests is None or not ttfts:
        return warnings
    sent = sum(r.clock.sent is not None for r in records)
    # a request that was given up may have had its first token at the server, and not here
    cancelled = sum(r.error_class == "cancelled" for r in records)
    slack = max(1.0, TRAFFIC_TOLERANCE * len(ttfts))
    if server.requests < len(ttfts) - slack or server.requests > max(sent, len(ttfts)) + cancelled + slack:
        warnings.append(
            Warning(
                code="server_traffic",
                message=f"the server gave {server.requests} requests a first token, this run saw {len(ttfts)}",
                advice="other clients, or other replicas, share the endpoint: measure it alone, "
                "and name every replica's metrics_urls in the endpoint TOML",
            )
        )
        return warnings
    mean = sum(ttfts) / len(ttfts)
    if server.ttft_mean_s is not None and abs(mean - server.ttft_mean_s) > max(
        TTFT_TOLERANCE_S, TTFT_TOLERANCE * server.ttft_mean_s
    ):
        p50 = quantile(ttfts, 0.5) or 0.0
        server_p50 = "" if server.ttft_p50_s is None else f" (p50 about {server.ttft_p50_s:.3f} s)"
        warnings.append(
            Warning(
                code="ttft_disagrees",
                message=f"mean TTFT: client {mean:.3f} s (p50 {p50:.3f} s), "
                f"server {server.ttft_mean_s:.3f} s{server_p50}"
                "; they should agree to max(5 ms, 10%)",
                advice="the time is lost between the two: network, proxy, or a client or API server short of a core "
                "(pin engine and client to cores of their own)",
            )
        )
    told = [r.usage.cached_tokens for r in records if r.usage.cached_tokens is not None]
    if server.prefix_hit_tokens is not None and len(told) == sum(r.ok for r in records):
        cached = sum(told)
        if abs(cached - server.prefix_hit_tokens) > max(CACHED_TOLERANCE_TOKENS, CACHED_TOLERANCE * cached):
            warnings.append(
                Warning(
                    code="cached_disagrees",
                    message=f"cached tokens: {cached:,} by the responses' usage, {server.prefix_hit_tokens:,} by the "
                    "server's metrics; they should agree to max(64 tokens, 1%)",
                    advice="failed and preempted requests hit the cache without reporting it; "
                    "if there were none, do not bill by this endpoint's usage",
                )
            )
    return warnings


def _scrapes(events: Sequence[dict[str, Any]]) -> tuple[list[ServerMetrics], list[Warning]]:
    try:
        return [ServerMetrics.from_dict(event["metrics"]) for event in events], []
    except msgspec.ValidationError as error:
        return [], [
            Warning(
                code="metrics_unreadable",
                message=f"a scrape of the server's metrics cannot be read back: {error}",
                advice="use the kvbench that made the run",
            )
        ]


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
