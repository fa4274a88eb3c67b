"""Refusals that capacity probes share."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kvbench.analysis.fit.steps import Step
from kvbench.model import FitReport, Misfit, Refusal

REPEAT = "kvbench probe capacity"
AGED = "aged"
"""Role of the request for a prompt that nothing was sent after."""
REREAD = "reread"
OTHERS = Misfit(share=1.0, limit=0.0, causes=("other traffic",))
AGE = Misfit(share=1.0, limit=0.0, causes=("a cache that gives things up by age", "other traffic"))
MORE_PROMPTS = 2
"""Found once more than before: one may be there in part."""


def refused(reason: str, experiment: str) -> Refusal:
    """No capacity_tokens."""
    return Refusal(name="capacity_tokens", reason=reason, experiment=experiment)


def no_memory() -> Refusal:
    """No bytes_per_token."""
    return Refusal(
        name="bytes_per_token",
        reason="the memory that the capacity takes up is not known",
        experiment=f"{REPEAT} --kv-memory BYTES, or kvbench fit RUN --kv-memory BYTES",
    )


def by_age() -> Refusal:
    """Age alone makes prompts go: how many tokens were held says how fast they were sent."""
    return refused(
        "a prompt that was left alone was gone at the age at which others were lost: things are given up by "
        "age, or others use the cache",
        "kvbench probe ttl; and kvbench probe capacity --input-tokens with longer prompts, to fill it within that time",
    )


def not_asked(found: Sequence[Step]) -> tuple[str, ...]:
    """What is assumed of a probe whose budget did not reach to its last two questions."""
    roles = {s.role for s in found}
    assumed = []
    if REREAD not in roles:
        assumed.append("nobody else writes to the cache: the budget left no room to read the last series once more")
    if AGED not in roles:
        assumed.append("nothing is given up by age: the budget left no room to ask for a prompt that was left alone")
    return tuple(assumed)


def found_more(first: int, again: int) -> Refusal | None:
    """Where more prompts were found once more than before, which took no room in between."""
    if again < first + MORE_PROMPTS:
        return None
    return refused(
        f"{first} prompts were found, and once more, in the order in which they were asked for, {again}: others wrote "
        "to the cache in between",
        f"{REPEAT} again with nothing else on the endpoint",
    )


def without_bytes(report: FitReport, below: float) -> FitReport:
    """The same without bytes, where so many tokens came from below HBM: what is held is then held in more memory."""
    why = f"{below:,.0f} tokens came from below HBM, by the server's own counters: what is held is held in all tiers"
    bytes_ = [e.name for e in report.estimates if "bytes" in e.unit]
    experiment = f"{REPEAT} on the server without offloading"
    return replace(
        report,
        estimates=tuple(e for e in report.estimates if e.name not in bytes_),
        refusals=(*report.refusals, *(Refusal(name=name, reason=why, experiment=experiment) for name in bytes_)),
    )
