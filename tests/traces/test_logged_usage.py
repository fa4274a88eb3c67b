"""Logged usage is read as a bill's is, but for cache fields that a logger left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvbench.traces.formats.usage import TokenCounts, token_counts


@pytest.mark.parametrize(
    ("usage", "counts", "notes"),
    [
        (None, (None, None, None), {}),
        ("none", (None, None, None), {"usage_unreadable": 1}),
        # OpenAI's shape, DeepSeek's, and both at once: never added up
        ({"prompt_tokens": 20, "completion_tokens": 5}, (20, None, 5), {}),
        ({"prompt_cache_hit_tokens": 15, "prompt_cache_miss_tokens": 5, "completion_tokens": 1}, (20, 15, 1), {}),
        ({"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 15}, "cached_tokens": 15},
         (20, 15, None), {}),
        # Anthropic's: the three add up; one that is left out is 0 for the length, and still not reported
        ({"input_tokens": 3, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 7}, (20, 10, None), {}),
        ({"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 2}, (13, 10, 2), {}),
        ({"input_tokens": 3, "cache_creation_input_tokens": 7}, (10, None, None), {}),
        ({"input_tokens": 3, "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 3},
          "cache_read_input_tokens": 10}, (20, 10, None), {}),
        # LiteLLM writes Anthropic's fields beside OpenAI's
        ({"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 9}, "cache_creation_input_tokens": 4},
         (20, 9, None), {}),
        # reasoning on top of the completion (xAI), as the total shows
        ({"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 32,
          "completion_tokens_details": {"reasoning_tokens": 7}}, (20, None, 12), {}),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, None, None), {"usage_placeholder": 1}),
        ({"prompt_tokens": 20, "cached_tokens": 30, "completion_tokens": 5}, (None, None, 5),
         {"usage_cached_above_input": 1}),
        ({"prompt_tokens": 20, "completion_tokens": -1}, (20, None, None), {"usage_unreadable": 1}),
        ({"prompt_tokens": 20, "cached_tokens": 3, "prompt_cache_hit_tokens": 4}, (20, None, None),
         {"usage_unreadable": 1}),
        ({"prompt_tokens": 2**40, "completion_tokens": 5}, (None, None, 5), {"usage_unreadable": 1}),
    ],
)  # fmt: skip
def test_counts(usage: Any, counts: tuple[int | None, ...], notes: dict[str, int]) -> None:
    noted: Counter[str] = Counter()
    assert token_counts(usage, noted) == TokenCounts(*counts)
    assert +noted == notes
