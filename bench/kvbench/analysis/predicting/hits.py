"""What a cache of a given size would hit in a given order of requests: the exact curve, request by request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.fit.inversion import Prediction
from kvbench.analysis.fit.served import served_of
from kvbench.analysis.predicting.load import Load, Order, simulate
from kvbench.analysis.predicting.target import Target
from kvbench.model import Clock, Record, Usage

Floats = NDArray[np.float64]
ROUNDS = 6
"""Of order and hits, until the order stays: times depend on hits, and hits on the order."""
_GAP_NS = 1_000
Takes = Callable[[Floats], Floats]
"""Cached tokens of each turn to the seconds that each takes."""


class Hits:
    """Hits at any capacity, in tokens, in the target's order of turns."""

    def __init__(self, target: Target, order: Order) -> None:
        self._size = target.block_size
        sent_ns = np.round(order.sent_s * 1e9).astype(np.int64) + _GAP_NS + order.rank
        end_ns = np.maximum(np.round(order.end_s * 1e9).astype(np.int64), sent_ns + 1)
        records = [
            Record(
                request_id=row.request_id,
                session_id=row.session_id,
                root_id=target.roots[i],
                turn=0,
                attempt=row.attempt,
                clock=Clock(scheduled=0, due=0, sent=int(sent_ns[i]), end=int(end_ns[i])),
                usage=Usage(input_tokens=row.input_tokens, cached_tokens=0, output_tokens=int(target.output_tokens[i])),
            )
            for i, row in enumerate(target.rows)
        ]
        served = served_of(target.rows, records)
        assert served is not None
        self._prediction, self._known = Prediction(served), served.known
        self._by = np.argsort(sent_ns, kind="stable")

    @property
    def sufficient_tokens(self) -> int:
        """A capacity that hits as an unbounded one."""
        return self._prediction.most_blocks * self._size

    def at(self, capacity_tokens: float | None) -> Floats:
        """None: an unbounded cache."""
        blocks = self._prediction.most_blocks if capacity_tokens is None else capacity_tokens / self._size
        found = np.zeros(len(self._by))
        found[self._by] = self._prediction.blocks(float(blocks))[self._known] * self._size
        return found

    def least_for(self, tokens: float) -> int:
        """The least capacity, in tokens, that hits so many in all."""
        low, high = 0, self._prediction.most_blocks
        while low < high:
            middle = (low + high) // 2
            if self.at(middle * self._size).sum() >= tokens:
                high = middle
            else:
                low = middle + 1
        return low * self._size


def ordered(target: Target, load: Load, capacity_tokens: float | None, takes: Takes) -> tuple[Order, Hits, Floats]:
    """The order of requests at a load, and what they hit at a capacity (tokens; None: unbounded)."""
    cached = np.zeros(len(target.rows))
    before: Order | None = None
    for _ in range(ROUNDS):
        order = simulate(target.planned, target.starts_s, load, takes(cached))
        if before is not None and (order.rank == before.rank).all():
            break
        hits = Hits(target, order)
        cached, before = hits.at(capacity_tokens), order
    return order, hits, cached
