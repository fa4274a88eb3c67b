"""What claims need to know of a trace: how long its contexts are, and how much of its prompts is new.

A request's context is its prompt and its answer: input_tokens + output_tokens. Its new tokens are those of its prompt
behind the leading blocks that some request before it had (trees in file order, requests of a tree in order of time),
as if no cache ever lost anything. An answer counts as new where a later prompt sends it back, not before.
"""

from __future__ import annotations

from array import array
from fractions import Fraction

import msgspec

from kvbench.analysis.models import ModelBytes
from kvbench.errors import RefusedError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.curve.traffic import TrafficReader
from kvbench.traces.native import TraceFile


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """contexts: tokens at the end of each request. without_output: requests whose answer's length is not given, which
    count as if it were none. tokens: how they were counted, in words. sharing_known: False where the source has lengths
    alone, so that all of it counts as new."""

    name: str
    contexts: array[int]
    input_tokens: int
    output_tokens: int
    new_tokens: int
    without_output: int
    block_size: int
    tokens: str
    estimated: bool
    sharing_known: bool = True

    @property
    def requests(self) -> int:
        return len(self.contexts)

    @property
    def new_per_request(self) -> Fraction:
        return Fraction(self.new_tokens, self.requests)

    @property
    def hit_ceiling(self) -> Fraction:
        """Share of the input that can be hit at all."""
        return 1 - Fraction(self.new_tokens, self.input_tokens) if self.input_tokens else Fraction(0)

    def total(self, model: ModelBytes) -> Fraction:
        """Sum over the requests of the bytes a session of its context holds."""
        held = Fraction(0)
        for part in model.parts:
            if part.kind == "token":
                held += part.size * sum(self.contexts)
            elif part.kind == "window":
                held += part.size * sum(min(context, part.window) for context in self.contexts)
            else:
                held += part.size * self.requests
        return held


def traffic_of(trace: TraceFile) -> Traffic:
    """One pass over an open trace. Memory: 8 bytes a request, 8 a distinct block and some more a branch.

    Raises RefusedError for a trace without a token.
    """
    blocked = BlockedTrace(trace)
    reader = TrafficReader()
    contexts = array("q")
    input_tokens = output_tokens = new_tokens = without_output = 0
    for request in blocked.requests():
        known = reader.distinct_blocks
        reader.add(request)
        hit = request.kept + len(request.new_ids) - (reader.distinct_blocks - known)
        new_tokens += request.input_tokens - min(hit * blocked.block_size, request.input_tokens)
        input_tokens += request.input_tokens
        output_tokens += request.output_tokens or 0
        without_output += request.output_tokens is None
        contexts.append(request.input_tokens + (request.output_tokens or 0))
    if not any(contexts):
        raise RefusedError(f"{trace.path}: not one token in it: no claim can be held against it")
    return Traffic(
        name=trace.header.name or trace.path.stem,
        contexts=contexts,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        new_tokens=new_tokens,
        without_output=without_output,
        block_size=blocked.block_size,
        tokens=blocked.blocking().tokens,
        estimated=blocked.text_turns > 0,
        sharing_known=trace.imported is None or "prefixes" not in trace.imported.facts,
    )
