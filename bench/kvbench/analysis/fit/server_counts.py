"""What the server's own counters say beside a capacity probe: of others, of tiers below HBM, of blocks it claims."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.analysis.fit.latency_rows import EXTERNAL
from kvbench.analysis.fit.memory import server_cache
from kvbench.analysis.fit.steps import Step
from kvbench.model import FitReport
from kvbench.runs.reader import Run

FOREIGN_LIMIT = 0.02


def other_traffic(run: Run, found: Sequence[Step]) -> str | None:
    """What the server's own counters say it was asked beside this probe."""
    queries = [
        value
        for event in run.events
        if event.get("kind") == "metrics"
        and (value := (event.get("metrics") or {}).get("prefix_query_tokens")) is not None
    ]
    sent = sum(s.sent_tokens for s in found)
    if len(queries) < 2 or not sent:
        return None
    others = queries[-1] - queries[0] - sent
    if others <= FOREIGN_LIMIT * sent:
        return None
    return (
        f"the server looked up {queries[-1] - queries[0]:,.0f} prompt tokens while this probe sent {sent:,}: others "
        "used the cache at the same time"
    )


def tokens_from_below(run: Run) -> float | None:
    """Tokens that came from below HBM while the probe ran, by the server's own counters; None: none, or not told."""
    told = [
        value
        for event in run.events
        if event.get("kind") == "metrics"
        and (sources := (event.get("metrics") or {}).get("prompt_tokens_by_source")) is not None
        and (value := sources.get(EXTERNAL)) is not None
    ]
    return told[-1] - told[0] if len(told) > 1 and told[-1] > told[0] else None


def other_claim(run: Run, report: FitReport) -> list[str]:
    """What the server says of its blocks, where they are not within the interval; none of it is an input."""
    found, says = report.named("capacity_tokens"), server_cache(run)
    if found is None or found.low is None or found.high is None:
        return []
    try:
        tokens = (int(says["num_gpu_blocks"]) - 1) * int(says["block_size"])
    except (KeyError, TypeError, ValueError):
        return []
    if found.low <= tokens <= found.high:
        return []
    return [
        f"the server claims blocks for {tokens:,} tokens (not used), which is not within the interval: of what is "
        "missing a running request may take up some besides its tokens, others may, or less is kept than there is room "
        "for"
    ]
