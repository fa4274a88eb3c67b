"""What makes a trace's curve doubtful, where its rule does not say it."""

from __future__ import annotations

from kvbench.traces.blocks import BlockedTrace, Times
from kvbench.traces.curve.traffic import Traffic
from kvbench.traces.native import TraceFile


def doubts(trace: TraceFile, times: Times, blocked: BlockedTrace, traffic: Traffic) -> list[str]:
    """What a reader of hit rates has to know beside the rule, in sentences. blocked: read to its end."""
    notes = []
    imported = trace.imported
    dated_by_end = imported.marker.get("end", 0) if imported is not None else 0
    if dated_by_end and times == "recorded":
        notes.append(
            f"the source dates {dated_by_end:,} sub-agents by their end, to judge by their durations, and writes the "
            "times of their requests as if it were their start: here requests go by the times as they are written; "
            "kvbench trace curve --times replay puts sub-agents where they will have run"
        )
    if doubt := blocked.text_doubt():
        notes.append(doubt)
    if blocked.other_parts:
        notes.append(
            f"{blocked.other_parts:,} parts of messages are not text (pictures, files): each is counted as one token"
        )
    if _all_start_at_once(trace) and traffic.start_s[0] < traffic.start_s[-1]:
        notes.append(
            f"all {trace.tree_count:,} session trees start at the same time, each by its own clock: how they "
            "overlap here is not how they did, and the curve hangs on it"
        )
    return notes


def _all_start_at_once(trace: TraceFile) -> bool:
    entries = trace.tree_entries
    return len(entries) > 1 and all(entry.start_s == entries[0].start_s for entry in entries)
