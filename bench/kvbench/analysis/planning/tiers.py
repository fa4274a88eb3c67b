"""Tiers of a cache on the traffic of a trace: what each finds, by the exact curve, and what eviction costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvbench.analysis.models.numbers import plain
from kvbench.analysis.planning.capacity import Room
from kvbench.analysis.planning.fields import Replay, Speed
from kvbench.analysis.planning.money import PriceSet, input_price_at
from kvbench.analysis.planning.pressure import TierSpeed
from kvbench.analysis.planning.traffic import Observed
from kvbench.analysis.planning.work import Tiering, Work, trace_work
from kvbench.traces.curve.measure import Measured


class Tiers:
    """HBM first, then those below it; each holds what those above it evict, so that their capacities add up."""

    def __init__(self, observed: Observed, rooms: Sequence[Room], below: Sequence[TierSpeed]) -> None:
        self.observed = observed
        self.rooms = rooms
        self.blocks: list[int] = []
        """Capacity of each tier with all above it, in blocks of the trace."""
        size, tokens = observed.block_size, 0
        for each in rooms:
            tokens += each.tokens
            self.blocks.append(tokens // size)
        self.tiering = [Tiering(name=rooms[0].name, blocks=self.blocks[0], s_per_token=0.0, latency_s=0.0)]
        for room, blocks, tier in zip(rooms[1:], self.blocks[1:], below, strict=True):
            s_per_token = float(room.per_token / tier.bytes_per_s)
            self.tiering.append(
                Tiering(name=room.name, blocks=blocks, s_per_token=s_per_token, latency_s=tier.latency_s)
            )

    def rows(self, work: Work, measured: Measured) -> list[dict[str, Any]]:
        """work: that of the trace in these tiers; measured: the curve at their capacities."""
        points = measured.all.points
        total = int(self.observed.input_tokens.sum())
        return [
            {
                "name": each.name,
                "bytes": each.size,
                "fixed_bytes_of_running": plain(each.held),
                "bytes_per_token": plain(each.per_token),
                "tokens": each.tokens,
                "blocks_with_those_above": upto,
                "hit_tokens": share.tokens,
                "token_hit_rate": share.tokens / total,
                "token_hit_rate_with_those_above": point.token_hit_rate,
                "block_hit_rate_with_those_above": point.block_hit_rate,
                "requests": share.requests,
                "restore_s_per_request": share.seconds,
            }
            for each, share, point, upto in zip(self.rooms, work.shares, points, self.blocks, strict=True)
        ]

    def eviction(
        self, speed: Speed, replay: Replay, replay_tokens: int, prices: PriceSet | None
    ) -> list[dict[str, Any]]:
        """A mean request where nothing is lost, where HBM evicts, and where tiers take what is evicted."""
        everything = Tiering(name="", blocks=None, s_per_token=0.0, latency_s=0.0)
        rows = [("nothing is lost", [everything]), ("HBM alone", self.tiering[:1])]
        rows += [(f"with {tier.name}", self.tiering[: at + 1]) for at, tier in enumerate(self.tiering) if at]
        out = []
        for what, tiers in rows:
            work = trace_work(self.observed, tiers, speed, replay, replay_tokens)
            assert work.input_tokens is not None
            hit_rate = 1 - work.new_tokens / work.input_tokens
            out.append(
                {
                    "what": what,
                    "token_hit_rate": hit_rate,
                    "computed_tokens": work.computed_tokens,
                    "prefill_s": work.prefill_s,
                    "restore_s": work.restore_s,
                    "input_price_per_million": [] if prices is None else input_price_at(prices, hit_rate),
                }
            )
        return out


def rule(measured: Measured) -> dict[str, Any]:
    """The ceiling, and the rule that all hits of the plan go by."""
    return {
        "ceiling_token_hit_rate": measured.all.unbounded.token_hit_rate,
        "sufficient_tokens": measured.all.sufficient_tokens,
        **msgspec.to_builtins(measured.rule),
    }
