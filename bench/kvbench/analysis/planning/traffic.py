"""What a plan needs to know of a trace: every request's hits at any capacity, pauses, live sessions, and the rule.

Hits are those of the exact curve (kvbench trace curve, leaf-first, no warm-up), request by request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvbench.errors import RefusedError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.curve.doubts import doubts
from kvbench.traces.curve.hits import Found, find
from kvbench.traces.curve.measure import Asked, Measured, measure
from kvbench.traces.curve.traffic import Traffic, TrafficReader
from kvbench.traces.native import TraceFile

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in order of time; arrays have one entry a request.

    output_tokens: 0 where the trace gives no length (without_output of them). pause_s: since the end of the session's
    previous turn, nan at its first. live_sessions: most at a time, from their first start to their last end; None where
    no session takes any time. span_s: to the start of the last request; 0 where there are no times.
    """

    name: str
    path: str
    curve: Traffic
    found: Found
    output_tokens: Ints
    without_output: int
    pause_s: Floats
    sessions: int
    trees: int
    live_sessions: int | None
    span_s: float
    notes: tuple[str, ...]

    @property
    def requests(self) -> int:
        return self.curve.requests

    @property
    def block_size(self) -> int:
        return self.curve.blocking.block_size

    @property
    def input_tokens(self) -> Ints:
        return self.curve.input_tokens

    def hit_tokens(self, capacity_blocks: int | None) -> Ints:
        """Tokens that each request finds in a cache of so many blocks; None is an unbounded one."""
        runs = self.curve.runs
        blocks = runs.blocks
        if capacity_blocks is not None:
            blocks = np.clip(self._no_more_than_all(capacity_blocks) - self.found.above, 0, blocks)
        hits = np.bincount(runs.request, blocks, self.requests).astype(np.int64)
        return np.minimum(hits * self.block_size, self.input_tokens)

    def measured(self, capacities_blocks: Sequence[int], hit_rates: Sequence[float] = ()) -> Measured:
        """The curve itself, with its rule. Takes as long as observing did: ask once."""
        capacities = [self._no_more_than_all(capacity) for capacity in capacities_blocks]
        return measure(self.curve, Asked(capacities_blocks=capacities, hit_rates=hit_rates))

    def _no_more_than_all(self, capacity_blocks: int) -> int:
        """A cache of as many blocks as are sent at all loses none; what is above may not fit a machine's integer."""
        return min(capacity_blocks, int(self.curve.runs.depth.sum()))


def observe(trace: TraceFile) -> Observed:
    """One pass over an open trace. Raises RefusedError where which prompts begin alike is not known, or there is no
    token to plan for."""
    if trace.header.prefixes == "unknown":
        raise RefusedError(
            f"{trace.path}: arrivals and lengths alone; which prompts begin alike is not known, so there is no hit "
            "rate to plan with",
            hint="a source with hash ids or text has one; or say context, new_tokens and output_tokens",
        )
    blocked, reader = BlockedTrace(trace, times="recorded"), TrafficReader()
    starts, pauses, outputs = array("d"), array("d"), array("q")
    begins, ends = array("d"), array("d")
    root, last, without, timed = "", dict[str, tuple[int, float]](), 0, False
    for request in blocked.requests():
        reader.add(request)
        if request.root_id != root:
            root, last = request.root_id, {}
        number, end_s = last.get(request.session_id, (len(begins), float("nan")))
        if number == len(begins):
            begins.append(request.start_s)
            ends.append(request.end_s)
        ends[number] = max(ends[number], request.end_s)
        last[request.session_id] = number, request.end_s
        starts.append(request.start_s)
        pauses.append(request.start_s - end_s)
        outputs.append(request.output_tokens or 0)
        without += request.output_tokens is None
        timed |= request.end_s > request.start_s
    curve = reader.traffic(blocked)
    if not curve.input_tokens.sum():
        raise RefusedError(f"{trace.path}: not one token of input in it: there is nothing to plan for")
    by_time = np.argsort(np.array(starts), kind="stable")
    notes = doubts(trace, "recorded", blocked, curve)
    if len(curve.models) > 1:
        notes.append(
            f"the trace names {len(curve.models):,} models: all its requests are planned for one, in one cache"
        )
    if without:
        notes.append(f"{without:,} requests have no length of their answer, which counts as none: costs are floors")
    if blocked.recorded_trees and not timed and len(begins) < len(starts):
        notes.append("the source dates no answers: pauses contain what the answers took")
    return Observed(
        name=trace.header.name or Path(trace.path).stem,
        path=str(trace.path),
        curve=curve,
        found=find(curve.runs, "leaf-first"),
        output_tokens=np.array(outputs)[by_time],
        without_output=without,
        pause_s=np.maximum(np.array(pauses)[by_time], 0.0),
        sessions=len(begins),
        trees=trace.tree_count,
        live_sessions=_most_at_a_time(np.array(begins), np.array(ends)),
        span_s=float(curve.start_s[-1] - curve.start_s[0]),
        notes=tuple(notes),
    )


def _most_at_a_time(begins: Floats, ends: Floats) -> int | None:
    """Sessions that end when another begins are there together with it."""
    if not (ends > begins).any():
        return None
    at = np.searchsorted(np.sort(begins), np.sort(begins), side="right")
    gone = np.searchsorted(np.sort(ends), np.sort(begins), side="left")
    return int((at - gone).max())
