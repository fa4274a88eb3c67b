"""What a trace holds, in numbers: `kvbench trace info`."""

from __future__ import annotations

from kvbench.traces.stats.describe import TraceStats, trace_stats
from kvbench.traces.stats.overtime import Level
from kvbench.traces.stats.spread import Spread

__all__ = ["Level", "Spread", "TraceStats", "trace_stats"]
