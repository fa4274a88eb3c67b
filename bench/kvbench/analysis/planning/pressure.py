"""What a session costs that does not fit: evicted and computed again, offloaded and restored, or turned away."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from kvbench.analysis.plan import prefill_s
from kvbench.analysis.planning.capacity import Rank
from kvbench.analysis.planning.fields import Speed
from kvbench.analysis.planning.money import PriceSet, text


class TierSpeed:
    """A tier as a session meets it that is moved there as a whole."""

    def __init__(self, name: str, size: int, bytes_per_s: int, latency_s: float) -> None:
        self.name = name
        self.size = size
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s


def pressure(
    rank: Rank | None,
    tokens: int,
    tiers: list[TierSpeed],
    speed: Speed,
    prices: PriceSet | None,
    *,
    sessions: int | None,
    request_s: float | None,
    turns: float | None,
) -> dict[str, Any]:
    """One session of `tokens` tokens that there is no room for. Seconds are None where a speed is not given.

    Evicted: the next request computes all of it. Offloaded: m c / BW to write (beside the work) and again to restore.
    Rejected: it waits until one of the `sessions` that are kept has ended; each lasts turns x request_s, pauses in it,
    so that one ends every turns x request_s / sessions.
    """
    recompute_s = None
    if speed.prefill_tokens_per_s is not None:
        recompute_s = prefill_s(tokens, 0, speed.prefill_tokens_per_s, speed.attention_s_per_token2)
    moved = None if rank is None else rank.idle(tokens)
    return {
        "tokens": tokens,
        "evict": {
            "recompute_s": recompute_s,
            "price": [
                {"when": phase.when, "cost": text(Decimal(tokens) * (phase.rates.miss - phase.rates.hit) / 1_000_000)}
                for phase in (prices.phases if prices is not None else ())
            ],
        },
        "offload": [] if moved is None else [_offload(tier, moved, recompute_s) for tier in tiers],
        "break_even_bytes_per_s": None if moved is None or not recompute_s else float(moved / Fraction(recompute_s)),
        "reject": _reject(sessions, request_s, turns),
    }


def _offload(tier: TierSpeed, moved: Fraction, recompute_s: float | None) -> dict[str, Any]:
    transfer_s = float(moved / tier.bytes_per_s)
    restore_s = tier.latency_s + transfer_s
    return {
        "tier": tier.name,
        "bytes": float(moved),
        "write_s": transfer_s,
        "restore_s": restore_s,
        "times_quicker_than_computing": None if recompute_s is None or not restore_s else recompute_s / restore_s,
        "sessions": int(tier.size // moved) if moved else None,
    }


def _reject(sessions: int | None, request_s: float | None, turns: float | None) -> dict[str, Any]:
    if not sessions or request_s is None or turns is None:
        return {"session_s": None, "wait_s": None}
    return {"session_s": turns * request_s, "wait_s": turns * request_s / sessions}
