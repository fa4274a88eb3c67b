"""What work takes, without chance and without load: the formulas of parameters.Preset."""

from __future__ import annotations

import math

from kvbench.sim.parameters import Preset

NS = 1_000_000_000


def life_ns(seconds: float | None, trace_time_scale: float) -> int | None:
    """A time to live in ns; None: for ever, as where no trace time passes. Any other lasts 1 ns at least."""
    if seconds is None or not trace_time_scale:
        return None
    return math.ceil(seconds * trace_time_scale * NS)


def prefill_s(preset: Preset, uncached: int, cached: int) -> float:
    """Seconds to compute `uncached` tokens of a prompt behind `cached` ones, but for what each chunk costs."""
    return (
        preset.prefill_base_s
        + preset.prefill_s_per_token * uncached
        + preset.prefill_s_per_cached_token * cached
        + preset.attention_s_per_token2 * (uncached * cached + uncached * uncached / 2)
    )


def decode_s(preset: Preset, requests: int, context_tokens: int) -> float:
    """Seconds of a step in which so many requests decode, with so many tokens of context between them."""
    if not requests:
        return 0.0
    return (
        preset.decode_base_s
        + preset.decode_s_per_request * requests
        + preset.decode_s_per_context_token * context_tokens
    )
