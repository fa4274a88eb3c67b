"""Predicted against reported hits, and in what steps they come, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kvbench.render.amounts import WIDTH, amount_text, block
from kvbench.render.text import percent, plural, safe

_UNSETTLED = 0.01
_LABELS = {"turn": "turn", "pause": "pause", "session": "session", "hour": "hour (UTC)"}


def residual_lines(report: dict[str, Any], currency: str) -> Iterator[str]:
    """Nothing for an estimate, in which nothing was reported."""
    if "residuals" in report:
        yield from _residuals(report["residuals"], currency)
        yield from _granularity(report["granularity"])


def _residuals(found: dict[str, Any], currency: str) -> Iterator[str]:
    if not found["requests"]:
        yield f"{'residual':<{WIDTH}}not predicted: {safe(found['why'])}"
        return
    rules = ", ".join(map(safe, found["rules"]))
    requests = plural(found["requests"], "request")
    yield (
        f"{'residual':<{WIDTH}}reported - predicted hits: {found['inside']:,} of {requests} "
        f"inside [floor, ceiling], at the median {percent(found['median_width'])} of the prompt wide ({rules})"
    )
    apart = [("not_predicted", "without a prediction"), ("hits_not_reported", "without reported hits")]
    said = ", ".join(f"{found[name]:,} {words}" for name, words in apart if found[name])
    if said:
        yield f"{'':<{WIDTH}}{said}"
    if found["below"] or found["above"]:
        table: list[tuple[str, ...]] = [
            ("outside, by", "", "requests", "below", "above", "tokens", "median", "5% to 95%", currency)
        ]
        table.append(("all", "", *_row(found)))
        for name, bins in found["by"].items():
            label = _LABELS[name]
            for where, one in bins.items():
                table.append((label, where, *_row(one)))
                label = ""
        yield from block("", table)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    tokens = one["tokens"]
    net = one["above_tokens"] - one["below_tokens"]
    money = Decimal(one["below_amount"]) - Decimal(one["above_amount"])
    return (
        f"{one['requests']:,}",
        f"{one['below']:,}",
        f"{one['above']:,}",
        f"{net:+,}" if net else "0",
        f"{tokens['p50']:+,.0f}" if tokens["p50"] else "0",
        f"{tokens['p5']:,.0f} to {tokens['p95']:,.0f}",
        f"{'-' if money < 0 else '+' if money else ''}{amount_text(f'{abs(money):f}')}",
    )


def _granularity(models: dict[str, Any]) -> Iterator[str]:
    label = "granule"
    for model, found in models.items():
        yield f"{label:<{WIDTH}}{safe(model)}: {granule_says(found)}"
        label = ""


def granule_says(found: dict[str, Any]) -> str:
    granule = found["granule_tokens"]
    if granule is None:
        return "no hit was reported"
    if found["sizes"] < 2:
        return f"not known from {plural(found['hits'], 'hit')} of one size ({granule:,} tokens)"
    known = f" ({found['known']})" if found["known"] else ""
    if granule > 1 and found["accident"] >= _UNSETTLED and not found["differs"]:
        return (
            f"at most {granule:,} tokens, the common divisor of {plural(found['hits'], 'hit')} of {found['sizes']:,} "
            f"sizes, which may be an accident ({_chance(found['accident'])})"
        )
    chance = f" (by accident: {_chance(found['accident'])})" if granule > 1 else ""
    said = (
        f"{plural(granule, 'token')}{known}: all {plural(found['hits'], 'hit')}, of {found['sizes']:,} sizes, are "
        f"multiples of it{chance}"
    )
    if not found["rules"] or found["agrees"] is None:
        return said
    rules = ", ".join(map(safe, found["rules"]))
    if found["differs"]:
        return f"{said}; DIFFERS: {safe(found['differs'])}"
    return f"{said}; agrees with {rules}"


def _chance(chance: float) -> str:
    return f"{chance:.1%}" if chance >= 0.001 else f"{chance:.0e}" if chance >= 1e-9 else "less than 1e-9"
