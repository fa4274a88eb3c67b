"""The vendors' claims as checked rows, in general and on the traffic of a trace."""

from __future__ import annotations

from kvbench.analysis.claims import others, sizes
from kvbench.analysis.claims.claim import FAILS, Claim
from kvbench.analysis.claims.traffic import Traffic, traffic_of

__all__ = ["Claim", "Traffic", "check_claims", "failed", "traffic_of"]


def check_claims(traffic: Traffic | None = None) -> list[Claim]:
    """Every claim, with what it comes to on `traffic` where that bears on it."""
    return [
        *sizes.deepseek(traffic),
        *others.prefill(traffic),
        *others.structure(),
        *others.behaviour(),
        *sizes.kimi(),
        others.price(traffic),
    ]


def failed(claims: list[Claim]) -> list[Claim]:
    """Claims that do not hold: by the model, or on the trace's traffic. One that needs a correction is none of them."""
    return [
        claim
        for claim in claims
        if claim.verdict == FAILS or (claim.on_trace is not None and claim.on_trace.verdict == FAILS)
    ]
