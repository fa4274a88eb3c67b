"""Refusals that capacity probes share."""

from __future__ import annotations

from kvbench.model import Refusal

REPEAT = "kvbench probe capacity"


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
