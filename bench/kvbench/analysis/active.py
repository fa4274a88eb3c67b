"""How fast prefill and decode went while they had work: tokens of a phase over the time in which any request was in it.

Over all attempts of the window that report their tokens. A request is in prefill from its last byte sent to its first
generated chunk, waiting in the server's queue included, and in decode from there to its last chunk. Source: AIPerf's
active throughputs; decode leaves out the first token, which prefill made, so that of one stream alone it is 1 / TPOT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kvbench.analysis.measured import Measured
from kvbench.runs.own_error import NS_PER_S


def prefill_tokens_per_s(ran: Measured) -> float | None:
    """Input tokens, cached ones included; of a prompt that the window's end cuts, the part of its time inside."""
    if ran.window is None:
        return None
    told = ran.attempts[ran.attempts["input_tokens"].notna() & ran.attempts["ttft_s"].notna()]
    spans, tokens = [], 0.0
    for start, end, given in zip(told["sent_at_s"], told["first_token_at_s"], told["input_tokens"], strict=True):
        inside = min(end, ran.window[1])
        if inside > start:
            spans.append((start, inside))
            tokens += int(given) * (inside - start) / (end - start)
    return _per_covered_s(tokens, spans)


def decode_tokens_per_s(ran: Measured) -> float | None:
    """Output tokens after the first, spread evenly over the chunks after the first. An answer in one chunk says nothing
    of the time between its tokens."""
    if ran.window is None:
        return None
    told = ran.attempts[ran.attempts["output_tokens"].notna() & (ran.attempts["chunks_ns"].map(len) > 1)]
    end_ns = round(ran.window[1] * NS_PER_S)
    spans, tokens = [], 0.0
    for chunks, got in zip(told["chunks_ns"], told["output_tokens"], strict=True):
        later = bisect_right(chunks, end_ns) - 1
        if got > 1 and later >= 0 and chunks[-1] > chunks[0]:
            spans.append((chunks[0] / NS_PER_S, min(chunks[-1], end_ns) / NS_PER_S))
            tokens += (int(got) - 1) * later / (len(chunks) - 1)
    return _per_covered_s(tokens, spans)


def _per_covered_s(tokens: float, spans: Iterable[tuple[float, float]]) -> float | None:
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return tokens / covered if covered > 0 else None
