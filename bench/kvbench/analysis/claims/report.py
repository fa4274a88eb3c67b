"""The checked claims as the object that `kvbench claims --json` prints and that the terminal shows."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from kvbench.analysis.claims import Traffic, check_claims, failed
from kvbench.analysis.claims.claim import Verdict


def claims_report(traffic: Traffic | None) -> dict[str, Any]:
    """claims: a row each; trace: the traffic they were also held against, or null; failed: ids of those that do not
    hold, by the model or on the trace."""
    claims = check_claims(traffic)
    verdicts = dict.fromkeys(get_args(Verdict), 0)
    for claim in claims:
        verdicts[claim.verdict] += 1
    return {
        "claims": msgspec.to_builtins(claims),
        "verdicts": verdicts,
        "failed": [claim.id for claim in failed(claims)],
        "trace": None if traffic is None else _traffic(traffic),
    }


def _traffic(traffic: Traffic) -> dict[str, Any]:
    return {
        "name": traffic.name,
        "requests": traffic.requests,
        "input_tokens": traffic.input_tokens,
        "output_tokens": traffic.output_tokens,
        "new_tokens": traffic.new_tokens if traffic.sharing_known else None,
        "hit_rate_ceiling": float(traffic.hit_ceiling) if traffic.sharing_known else None,
        "mean_context_tokens": sum(traffic.contexts) / traffic.requests,
        "longest_context_tokens": max(traffic.contexts),
        "requests_without_output_tokens": traffic.without_output,
        "block_size": traffic.block_size,
        "tokens": traffic.tokens,
        "estimated": traffic.estimated,
        "sharing_known": traffic.sharing_known,
    }
