"""Usage objects of OpenAI-shaped endpoints in one shape: input includes cached, output includes reasoning.

Where the fields come from (an absent or null field is "not reported", never 0):

    input_tokens         prompt_tokens (vLLM, OpenAI, DeepSeek, OpenRouter, xAI, Moonshot, llama.cpp), or
                         DeepSeek's prompt_cache_hit_tokens + prompt_cache_miss_tokens where it is left out
    cached_tokens        prompt_tokens_details.cached_tokens, prompt_cache_hit_tokens (DeepSeek), cached_tokens
                         (Moonshot): several spellings of one count, never added up
    cache_write_tokens   prompt_tokens_details.cache_write_tokens (OpenAI, OpenRouter) or created_cache_tokens
                         (vLLM), cache_creation_input_tokens (LiteLLM)
    output_tokens        completion_tokens; plus reasoning_tokens where total_tokens shows that they come on top (xAI)
    reasoning_tokens     completion_tokens_details.reasoning_tokens
"""

from __future__ import annotations

from typing import Any

from kvbench.model import Usage


class _Reader:
    """Reads counts and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def count(self, raw: Any, field: str) -> int | None:
        value = raw.get(field) if isinstance(raw, dict) else None
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self.problems.append(f"{field} is not a whole number")
            return None
        if value < 0:
            self.problems.append(f"{field} is negative ({value})")
            return None
        return value

    def one_of(self, *named: tuple[Any, str]) -> int | None:
        """The count that has several spellings; None, and a problem, where they differ."""
        found = [(field, count) for raw, field in named if (count := self.count(raw, field)) is not None]
        if len({count for _, count in found}) > 1:
            self.problems.append(" and ".join(f"{field} {count}" for field, count in found) + " disagree")
            return None
        return found[0][1] if found else None


def normalise(raw: Any) -> Usage:
    """The counts of one usage object (None: nothing was reported).

    A count that is negative or no whole number is None. Where cached is above input, or hit and miss are not the input,
    neither is believed: a server that does not count cached tokens in its input would look just so.
    """
    if raw is None:
        return Usage()
    if not isinstance(raw, dict):
        return Usage(problem="usage is not an object")
    read = _Reader()
    prompt_details = raw.get("prompt_tokens_details")
    input_tokens = read.count(raw, "prompt_tokens")
    contradicted = False
    hit, miss = read.count(raw, "prompt_cache_hit_tokens"), read.count(raw, "prompt_cache_miss_tokens")
    if hit is not None and miss is not None:
        if raw.get("prompt_tokens") is None:
            input_tokens = hit + miss
        elif input_tokens is not None and input_tokens != hit + miss:
            read.problems.append(f"prompt_tokens {input_tokens} is not hit {hit} + miss {miss}")
            contradicted = True
    cached = read.one_of((prompt_details, "cached_tokens"), (raw, "prompt_cache_hit_tokens"), (raw, "cached_tokens"))
    written = read.one_of(
        (prompt_details, "cache_write_tokens"),
        (prompt_details, "created_cache_tokens"),
        (raw, "cache_creation_input_tokens"),
    )
    output = read.count(raw, "completion_tokens")
    reasoning = read.count(raw.get("completion_tokens_details"), "reasoning_tokens")
    if cached is not None and input_tokens is not None and cached > input_tokens:
        read.problems.append(f"cached tokens {cached} above prompt_tokens {input_tokens}")
        contradicted = True
    if contradicted:
        cached = input_tokens = None
    if output is not None and reasoning and input_tokens is not None:
        total = read.count(raw, "total_tokens")
        if total == input_tokens + output + reasoning:
            output += reasoning
    if output is not None and reasoning is not None and reasoning > output:
        read.problems.append(f"reasoning_tokens {reasoning} above completion_tokens {output}")
        output = reasoning = None
    return Usage(
        input_tokens=input_tokens,
        cached_tokens=cached,
        cache_write_tokens=written,
        output_tokens=output,
        reasoning_tokens=reasoning,
        problem="; ".join(dict.fromkeys(read.problems)) or None,
    )
