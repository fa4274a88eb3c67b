"""The curve of a trace, the rule it was computed by, and the capacity that a wanted hit rate takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np

from kvbench.traces.curve.hits import HitCounts, Mask, Order, find
from kvbench.traces.curve.traffic import Traffic

By = Literal["kind", "model"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures hold for: a hit rate without its rule says little. Words for people, numbers for scripts."""

    cache: str
    order: Order
    touch: str
    requests: str
    ttl_s: float | None
    ttl: str
    outputs: str
    block_size: int
    tokens: str
    partial_tail: str
    weighting: str
    warmup: float
    warmup_requests: int
    """The first so many requests touch, and are not counted."""
    repeated_ids: int
    """Ids that stand after more than one prefix: each is a block of its own after each."""


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    """None where there is nothing to divide by."""

    block_hit_rate: float | None
    token_hit_rate: float | None


class CurvePoint(HitRates, frozen=True, kw_only=True):
    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    hit_blocks: int
    hit_tokens: int


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """The least capacity with a wanted hit rate; None: no capacity has it, the ceiling is lower."""

    hit_rate: float
    by: Literal["block", "token"]
    capacity_blocks: int | None
    capacity_tokens: int | None
    capacity_bytes: int | None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Hits by capacity, of the requests that count. sufficient_*: the least capacity that hits as an unbounded one."""

    group: str
    requests: int
    blocks: int
    input_tokens: int
    hit_blocks_unbounded: int
    hit_tokens_unbounded: int
    unbounded: HitRates
    sufficient_blocks: int
    sufficient_tokens: int
    sufficient_bytes: int | None
    points: tuple[CurvePoint, ...]
    needed: tuple[Needed, ...]


@dataclass(frozen=True)
class Asked:
    """capacities_blocks: None chooses them; ttl_s: None keeps blocks for ever; warmup: share of requests, below 1."""

    order: Order = "leaf-first"
    capacities_blocks: Sequence[int] | None = None
    hit_rates: Sequence[float] = ()
    warmup: float = 0.0
    ttl_s: float | None = None
    by: By | None = None
    bytes_per_token: Fraction | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    rule: Rule
    unique_blocks: int
    all: Curve
    groups: tuple[Curve, ...]


def measure(traffic: Traffic, asked: Asked) -> Measured:
    """Exact hits at every capacity; see hits.py. Groups share the cache, and differ in which requests count."""
    runs = traffic.runs
    found = find(runs, asked.order)
    fresh = None if asked.ttl_s is None else traffic.ages_s <= asked.ttl_s
    skipped = int(asked.warmup * traffic.requests)
    counted = np.arange(traffic.requests) >= skipped
    size = traffic.blocking.block_size

    def counts(mask: Mask) -> HitCounts:
        return HitCounts(
            runs, found, asked.order, block_size=size, input_tokens=traffic.input_tokens, counted=mask, fresh=fresh
        )

    every = counts(counted)
    capacities = asked.capacities_blocks
    if capacities is None:
        capacities = spread_capacities(every.sufficient_blocks)
    groups = [
        _curve(name, counts(counted & mask), capacities, asked)
        for name, mask in _groups(traffic, asked.by)
        if (counted & mask).any()
    ]
    return Measured(
        rule=_rule(traffic, asked, skipped),
        unique_blocks=traffic.unique_blocks,
        all=_curve("all", every, capacities, asked),
        groups=tuple(groups),
    )


def fine_curve(traffic: Traffic, asked: Asked, measured: Measured, points: int = 240) -> Measured:
    """The same at capacities close enough to be drawn, those of `measured` among them."""
    every = measured.all
    sufficient = every.sufficient_blocks
    capacities = {point.capacity_blocks for point in every.points}
    if sufficient:
        low, high = min((1, *capacities)), max((sufficient, *capacities))
        capacities.update(np.unique(np.geomspace(low, high, points).round().astype(np.int64)).tolist())
    return measure(traffic, replace(asked, capacities_blocks=sorted(capacities)))


def spread_capacities(sufficient_blocks: int, points: int = 16) -> list[int]:
    """Capacities of two significant digits in even steps of their logarithm over three decades, up to the least
    sufficient one."""
    if not sufficient_blocks:
        return []
    low = max(1, sufficient_blocks // 1000)
    capacities = {sufficient_blocks}
    for value in np.geomspace(low, sufficient_blocks, points)[:-1].tolist():
        unit = 10 ** max(math.floor(math.log10(value)) - 1, 0)
        capacities.add(max(1, round(value / unit) * unit))
    return sorted(capacities)


def _groups(traffic: Traffic, by: By | None) -> list[tuple[str, Mask]]:
    if by == "kind":
        return [("roots", ~traffic.sub_agent), ("sub-agents", traffic.sub_agent)]
    if by == "model":
        return [(name, traffic.model == i) for i, name in enumerate(traffic.models)] + [
            ("no model named", traffic.model < 0)
        ]
    return []


def _curve(name: str, counts: HitCounts, capacities: Sequence[int], asked: Asked) -> Curve:
    size = counts.block_size

    def in_bytes(blocks: int | None) -> int | None:
        if blocks is None or asked.bytes_per_token is None:
            return None
        return math.ceil(blocks * size * asked.bytes_per_token)

    def rates(blocks: int, tokens: int) -> tuple[float | None, float | None]:
        return _share(blocks, counts.blocks), _share(tokens, counts.tokens)

    at = np.array(capacities, np.int64)
    points = []
    for capacity, blocks, tokens in zip(
        capacities, counts.hit_blocks(at).tolist(), counts.hit_tokens(at).tolist(), strict=True
    ):
        by_block, by_token = rates(blocks, tokens)
        points.append(
            CurvePoint(
                capacity_blocks=capacity,
                capacity_tokens=capacity * size,
                capacity_bytes=in_bytes(capacity),
                hit_blocks=blocks,
                hit_tokens=tokens,
                block_hit_rate=by_block,
                token_hit_rate=by_token,
            )
        )
    needed = []
    for rate in asked.hit_rates:
        for by in ("block", "token"):
            least = counts.capacity_for(rate, by)
            needed.append(
                Needed(
                    hit_rate=rate,
                    by=by,
                    capacity_blocks=least,
                    capacity_tokens=None if least is None else least * size,
                    capacity_bytes=in_bytes(least),
                )
            )
    by_block, by_token = rates(counts.hit_blocks_unbounded, counts.hit_tokens_unbounded)
    return Curve(
        group=name,
        requests=counts.requests,
        blocks=counts.blocks,
        input_tokens=counts.tokens,
        hit_blocks_unbounded=counts.hit_blocks_unbounded,
        hit_tokens_unbounded=counts.hit_tokens_unbounded,
        unbounded=HitRates(block_hit_rate=by_block, token_hit_rate=by_token),
        sufficient_blocks=counts.sufficient_blocks,
        sufficient_tokens=counts.sufficient_blocks * size,
        sufficient_bytes=in_bytes(counts.sufficient_blocks),
        points=tuple(points),
        needed=tuple(needed),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# ------------------------------------------------------------------------------------------------------- the rule


_TOUCH: dict[Order, str] = {
    "leaf-first": "a request touches its blocks last to first: of a prompt the tail is evicted first",
    "root-first": "a request touches its blocks first to last: of a prompt the head is evicted first",
}


def _rule(traffic: Traffic, asked: Asked, skipped: int) -> Rule:
    size = traffic.blocking.block_size
    models = f" and all {len(traffic.models)} models" if len(traffic.models) > 1 else ""
    return Rule(
        cache=f"one LRU cache for all requests{models}; a block of {size} tokens stands for the whole prefix up to its "
        "end, and a lookup ends at the first block that is not there",
        order=asked.order,
        touch=_TOUCH[asked.order],
        requests=f"{_times(traffic)}; each finds what all before it left, at once",
        ttl_s=asked.ttl_s,
        ttl="none"
        if asked.ttl_s is None
        else f"a block not touched for more than {asked.ttl_s:g} s of trace time is gone, and its room is free; every "
        "touch, hit or not, begins the time anew; capacity aside, what is older goes first either way",
        outputs="not inserted: answers are cached when a later prompt brings them",
        block_size=size,
        tokens=traffic.blocking.tokens,
        partial_tail=_partial_tail(traffic),
        weighting="by block: hit blocks / blocks; by token: min(hit blocks * block size, input tokens) / input tokens; "
        "sums over requests; a prompt that is there whole is hit whole, where a server computes its end again",
        warmup=asked.warmup,
        warmup_requests=skipped,
        repeated_ids=traffic.repeated_ids,
    )


def _times(traffic: Traffic) -> str:
    if traffic.requests > 1 and traffic.start_s[0] == traffic.start_s[-1]:
        return "in file order, a tree after the other: the trace has no times"
    if traffic.recorded_trees == traffic.trees:
        whose = "the source's own times"
    elif traffic.recorded_trees:
        whose = (
            f"the source's own times ({traffic.recorded_trees:,} of {traffic.trees:,} trees), else those of a replay "
            "without a server's delays"
        )
    else:
        whose = "the times of a replay: starts, pauses, joins, and answers' recorded durations"
    return f"in order of {whose}, ties in file order"


def _partial_tail(traffic: Traffic) -> str:
    whole = traffic.runs.depth * traffic.blocking.block_size
    with_id = int((whole > traffic.input_tokens).sum())
    without = int((whole < traffic.input_tokens).sum())
    parts = []
    if with_id:
        parts.append(f"a block where the trace gives it an id ({with_id:,} requests)")
    if without:
        parts.append(f"no block, and never hit, where it has none ({without:,} requests)")
    return "; ".join(parts) or "there is none"
