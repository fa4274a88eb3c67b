"""Served against reported: whether reported hits are those that the endpoint's own rule demands. Inference, no proof.

A hit may lapse without anyone's fault (caches are best effort, replicas have their own), and an interval of expected
hits hides what is smaller than it is wide. So hits below the floor are a difference to ask about, and their absence
says something only where there was little room to hide in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from kvbench.analysis.billing.sides import Asked, cost, tier_of
from kvbench.prices.money import plain, total

ROOM = 0.005
"""The largest share of the hits that may be unseen where no difference is claimed."""
RATE = 0.005
"""The largest rate of lapses that may be unseen, at 95%."""
RULE_BROKEN = 0.01
"""Share of requests above their ceiling from which the rule is not the endpoint's."""


def served(requests: Sequence[Asked]) -> dict[str, Any]:
    """verdict: differs | no difference seen | cannot tell. Tokens, money, and shares of requests (95% intervals)."""
    rows = [
        (each, each.billable.floor, each.billable.ceiling, each.priced.usage.cached_tokens)
        for each in requests
        if each.priced is not None
    ]
    known = [
        (each, floor, ceiling, cached)
        for each, floor, ceiling, cached in rows
        if floor is not None and ceiling is not None and cached is not None
    ]
    owed = [row for row in known if row[1] > 0]
    below = [row for row in known if row[3] < row[1]]
    above = [row for row in known if row[3] > row[2]]
    hits = sum(cached for _, _, _, cached in known)
    short = sum(floor - cached for _, floor, _, cached in below)
    room = sum(max(0, ceiling - cached) for _, _, ceiling, cached in known)
    whole = sum(1 for row in below if row[3] == 0)
    low, high = interval(len(below), len(owed))
    report: dict[str, Any] = {
        "requests": len(known),
        "without_expectation": len(requests) - len(known),
        "owed_a_hit": len(owed),
        "below_floor": len(below),
        "hit_nothing": whole,
        "above_ceiling": len(above),
        "reported_hit_tokens": hits,
        "short_tokens": short,
        "short_amount": plain(total(_dearer(each, floor - cached) for each, floor, _, cached in below)),
        "lapse_rate": {"seen": len(below) / len(owed) if owed else None, "at_least": low, "at_most": high},
        "unseen_tokens": room,
        "unseen_share": room / (hits + room) if hits + room else None,
        "first": [each.billable.request_id for each, *_ in below[:5]],
    }
    report["verdict"], report["says"] = _verdict(report, len(known), high)
    report["to_see_less"] = _to_see_less(report) if report["verdict"] == "cannot tell" else None
    return report


def _to_see_less(report: dict[str, Any]) -> str:
    """What it takes until a difference would show, or its absence be claimed."""
    if not report["requests"]:
        return "requests whose hits can be predicted: an endpoint that tells token ids, or a tokenizer in its profile"
    wanted = math.ceil(math.log(0.05) / math.log(1 - RATE))
    needs = []
    if report["owed_a_hit"] < wanted:
        needs.append(f"{wanted:,} requests that are owed a hit (here {report['owed_a_hit']:,})")
    if (report["unseen_share"] or 0.0) > ROOM:
        needs.append("turns that begin once the turn before is surely stored, so that hits are known closer")
    return " and ".join(needs) or "the endpoint's own rule in its profile"


def _verdict(report: dict[str, Any], known: int, high: float | None) -> tuple[str, str]:
    if not known or not report["owed_a_hit"]:
        return "cannot tell", "no request had an expected hit above 0 beside its report"
    if report["above_ceiling"] > RULE_BROKEN * known:
        return (
            "cannot tell",
            f"{report['above_ceiling']:,} requests hit more than the rule allows: it is not this endpoint's rule",
        )
    if report["below_floor"]:
        lost = report["hit_nothing"]
        what = (
            "they hit nothing at all, as after a lapse"
            if lost == report["below_floor"]
            else "a part of the hit is missing, which no lapse explains"
            if not lost
            else f"{lost:,} of them hit nothing at all"
        )
        return (
            "differs",
            f"{report['below_floor']:,} of {report['owed_a_hit']:,} requests report fewer hits than the rule demands, "
            f"{report['short_tokens']:,} tokens in all; {what}",
        )
    share = report["unseen_share"] or 0.0
    if share > ROOM or high is None or high > RATE:
        seen = "no bound" if high is None else f"{high:.2%} of the requests"
        return (
            "cannot tell",
            f"no request is below its floor, but {share:.2%} of the hits could be missing unseen (expected hits are "
            f"intervals), and lapses of up to {seen}",
        )
    return (
        "no difference seen",
        f"no request is below its floor; at most {share:.2%} of the hits could be missing unseen, and lapses of up to "
        f"{high:.2%} of the requests (95%)",
    )


def interval(count: int, of: int) -> tuple[float | None, float | None]:
    """Clopper-Pearson's 95% interval of a rate; one-sided (rule of three) where nothing was seen."""
    if not of:
        return None, None
    from scipy.stats import beta

    if count == 0:
        return 0.0, float(1 - 0.05 ** (1 / of))
    low = float(beta.ppf(0.025, count, of - count + 1))
    return low, 1.0 if count == of else float(beta.ppf(0.975, count + 1, of - count))


def _dearer(request: Asked, tokens: int) -> Decimal:
    assert request.priced is not None
    tier = tier_of(request.priced)
    return cost(tier.least("miss") - tier.least("hit"), tokens)
