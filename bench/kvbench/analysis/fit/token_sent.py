"""The requests of a token audit: what was reported of each, and the exact counts that were written beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kvbench.analysis.fit.token_line import CHANCE, Points
from kvbench.model import Check, Counted, Usage
from kvbench.runs.reader import Run
from kvbench.usage import normalise

SHOWN = 5
"""Requests that are named as evidence."""


class Sent(NamedTuple):
    """One answered request. series: size (with its number), again, other, repeat, cap or think. text: names what was
    sent; two of one name are the same. total: total_tokens as reported."""

    request: str
    series: str
    text: str
    role: str
    counted: Counted
    usage: Usage
    total: int | None
    reported: bool
    finish_reason: str | None


class Audit(NamedTuple):
    """A run of the probe. source: what counted, None where nothing could. server: that was the server itself."""

    sent: Sequence[Sent]
    source: str | None
    server: bool
    local: str | None
    dialect: str


def audit_of(run: Run) -> Audit:
    """Its answered requests, in the order of sending."""
    counter: dict[str, Any] = next((e for e in run.events if e.get("kind") == "counter"), {})
    counted = {}
    for event in run.events:
        if event.get("kind") == "counted":
            each = msgspec.convert(event, Counted, strict=False)
            counted[each.request] = each
    sent = []
    for record in sorted(run.records, key=lambda r: r.clock.due):
        series, _, rest = record.request_id.partition("/")
        text, _, role = rest.partition(".")
        if not record.ok or record.request_id not in counted:
            continue
        raw = record.usage_raw
        total = raw.get("total_tokens") if isinstance(raw, dict) else None
        sent.append(
            Sent(
                request=record.request_id,
                series=series.rstrip("0123456789"),
                text=text,
                role=role.rstrip("0123456789"),
                counted=counted[record.request_id],
                usage=record.usage if raw is None else normalise(raw),
                total=total if type(total) is int else None,
                reported=raw is not None,
                finish_reason=record.finish_reason,
            )
        )
    server = run.info.server or {}
    return Audit(
        sent=sent,
        source=counter.get("source"),
        server=bool(counter.get("server")),
        local=counter.get("local"),
        dialect=str(server.get("dialect") or ""),
    )


def grain_check(name: str, points: Points, grain: int) -> Check:
    """Whether the counts of `name` are rounded to something. Named NAME_grain."""
    name = f"{name}_grain"
    counts = len({reported for _, reported in points})
    seen = next((g for g in (2, 4, 8, 16, 32, 64, 128) if g ** (1 - counts) < CHANCE), None)
    if grain > 1:
        return Check(
            name=name, verdict="disputed", n=counts, detectable=seen, detectable_unit="tokens",
            says=f"all reported counts are whole multiples of {grain}, the exact ones are not: where that is rounding "
            f"up, {(grain - 1) / 2:g} tokens a request too many on average",
            excess=(grain - 1) / 2, excess_unit="tokens a request",
        )  # fmt: skip
    if seen is None:
        return Check(name=name, verdict="cannot tell", says="too few different counts", n=counts)
    says = "the counts are no multiples of anything"
    return Check(name=name, verdict="confirmed", says=says, n=counts, detectable=seen, detectable_unit="tokens")


def shown(s: Sent) -> dict[str, Any]:
    """A request as evidence."""
    return {
        "request": s.request,
        "text_tokens": s.counted.text_tokens,
        "prompt_tokens": s.counted.prompt_tokens,
        "reported_input_tokens": s.usage.input_tokens,
        "output_tokens": s.counted.output_tokens,
        "reported_output_tokens": s.usage.output_tokens,
    }
