"""Token counts of a logged usage object, whichever API's: as kvbench.usage reads them, with what is wrong counted.

A log is read more leniently than a bill in one thing: in Anthropic's shape a cache field that is left out is 0, since
loggers leave out what is 0, and a trace's lengths are no money.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvbench.usage import CACHED_ABOVE, normalise

NOTES = {
    "usage_placeholder": "usage reports without a single input token: {n} (placeholders; taken as not reported)",
    "usage_cached_above_input": "usage reports with more cached than input tokens: {n} (neither is believed)",
    "usage_unreadable": "usage reports with a count that is negative or no whole number, or with counts that "
    "contradict each other: {n} (taken as not reported)",
}
"""Sentences of the codes counted here, for a format's own."""

MAX_TOKENS = 2**31 - 1
_READ, _WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


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
    rest = _as_rest(usage)
    read = normalise(usage if rest is None else rest)
    cached = None if rest is not None and usage.get(_READ) is None else read.cached_tokens
    counts = (read.input_tokens, cached, read.output_tokens)
    problems = [] if read.problem is None else read.problem.split("; ")
    above = [problem for problem in problems if problem.startswith(CACHED_ABOVE)]
    notes["usage_cached_above_input"] += bool(above)
    notes["usage_unreadable"] += len(problems) > len(above) or any(count and count > MAX_TOKENS for count in counts)
    if read.input_tokens == 0:
        notes["usage_placeholder"] += 1
        return TokenCounts()
    return TokenCounts(*[None if count is None or count > MAX_TOKENS else count for count in counts])


def _as_rest(usage: dict[str, Any]) -> dict[str, Any] | None:
    """Anthropic's shape with 0 for what is left out of it; None where nothing is, or where it is another shape."""
    if usage.get("prompt_tokens") is not None or normalise(usage).input_tokens is not None:
        return None
    written = usage.get(_WRITTEN) is not None or usage.get("cache_creation") is not None
    if not written and usage.get(_READ) is None:
        return None
    return usage | ({} if written else {_WRITTEN: 0}) | ({} if usage.get(_READ) is not None else {_READ: 0})
