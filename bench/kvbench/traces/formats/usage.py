"""Token counts of a logged usage object, whichever API's, in one shape: input includes cached tokens.

Where the counts come from (an absent or null field is "not reported", never 0):

    input_tokens   prompt_tokens (OpenAI, vLLM, DeepSeek, LiteLLM); else input_tokens (OpenAI's Responses API), and in
                   Anthropic's shape, whose input_tokens is the uncached rest, the sum with cache_read_input_tokens and
                   cache_creation_input_tokens
    cached_tokens  prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens, prompt_cache_hit_tokens
                   (DeepSeek), cached_tokens (Moonshot), cache_read_input_tokens
    output_tokens  completion_tokens, output_tokens; plus reasoning tokens where total_tokens shows that they come on
                   top (xAI)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

NOTES = {
    "usage_placeholder": "usage reports without a single input token: {n} (placeholders; taken as not reported)",
    "usage_cached_above_input": "usage reports with more cached than input tokens: {n} (neither is believed)",
    "usage_unreadable": "usage reports with a count that is negative or no whole number: {n} (taken as not reported)",
}
"""Sentences of the codes counted here, for a format's own."""

MAX_TOKENS = 2**31 - 1


class TokenCounts(msgspec.Struct, frozen=True):
    """None: not reported."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


def token_counts(usage: Any, notes: Counter[str]) -> TokenCounts:
    """The counts of one usage object (None: there is none). What is not believed is counted in `notes`."""
    if not isinstance(usage, dict):
        notes["usage_unreadable"] += usage is not None
        return TokenCounts()
    faults: list[str] = []

    def count(source: Any, name: str) -> int | None:
        value = source.get(name) if isinstance(source, dict) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (type(value) is int and 0 <= value <= MAX_TOKENS):
            return value
        faults.append(name)
        return None

    def first(*named: tuple[Any, str]) -> int | None:
        return next((value for source, name in named if (value := count(source, name)) is not None), None)

    details = usage.get("prompt_tokens_details")
    if not isinstance(details, dict):
        details = usage.get("input_tokens_details")
    read, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
    cached = first((details, "cached_tokens"), (usage, "prompt_cache_hit_tokens"), (usage, "cached_tokens"))
    total_input = count(usage, "prompt_tokens")
    if total_input is None:
        total_input = count(usage, "input_tokens")
        if total_input is not None and cached is None:
            total_input += (read or 0) + (written or 0)
    cached = read if cached is None else cached
    output = first((usage, "completion_tokens"), (usage, "output_tokens"))
    notes["usage_unreadable"] += bool(faults)
    if total_input == 0:
        notes["usage_placeholder"] += 1
        return TokenCounts()
    if cached is not None and total_input is not None and cached > total_input:
        notes["usage_cached_above_input"] += 1
        cached = total_input = None
    reasoning = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning and output is not None and total_input is not None:
        output += reasoning if count(usage, "total_tokens") == total_input + output + reasoning else 0
    return TokenCounts(total_input, cached, output)
