"""Usage objects of every API in one shape: input includes cached and written tokens, output includes reasoning.

A run and a bill are read by this one module. Where the counts come from (an absent or null field is "not reported",
never 0; several spellings of one count are compared, never added up):

    input_tokens         prompt_tokens (vLLM, OpenAI, DeepSeek, OpenRouter, xAI, Moonshot, LiteLLM, llama.cpp);
                         DeepSeek's prompt_cache_hit_tokens + prompt_cache_miss_tokens where it is left out;
                         input_tokens (OpenAI's Responses API, Codex); in Anthropic's shape, whose input_tokens is the
                         uncached rest, its sum with what was read from and written to the cache
    cached_tokens        prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens,
                         prompt_cache_hit_tokens (DeepSeek), cached_tokens (Moonshot), cached_input_tokens (Codex),
                         cache_read_input_tokens (Anthropic, LiteLLM)
    cache_write_tokens   the details' cache_write_tokens (OpenAI, OpenRouter) or created_cache_tokens (vLLM);
                         cache_creation_input_tokens (Anthropic, LiteLLM), or its parts in `cache_creation`
    cache_write_1h_tokens  cache_creation.ephemeral_1h_input_tokens (Anthropic)
    output_tokens        completion_tokens, output_tokens; plus reasoning_tokens where total_tokens shows that they
                         come on top (xAI)
    reasoning_tokens     the output's details' reasoning_tokens, or reasoning_output_tokens (Codex)
    image_tokens         the input's details' image_tokens
    server_tools         server_tool_use, those that were called
"""

from __future__ import annotations

from typing import Any

from kvbench.model import Usage

MAX_TOKENS = 2**53
CACHED_ABOVE = "cached tokens"
"""How the problem begins that is more cached than input."""
_ANTHROPIC = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")


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
        if not 0 <= value <= MAX_TOKENS:
            self.problems.append(f"{field} is negative ({value})" if value < 0 else f"{field} is above {MAX_TOKENS}")
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
    details = _details(raw, "prompt_tokens_details", "input_tokens_details")
    cached = read.one_of(
        (details, "cached_tokens"),
        (raw, "prompt_cache_hit_tokens"),
        (raw, "cached_tokens"),
        (raw, "cached_input_tokens"),
        (raw, "cache_read_input_tokens"),
    )
    written, written_1h = _written(raw, details, read)
    input_tokens, input_name = _input(raw, details, cached, written, read)
    output = read.one_of((raw, "completion_tokens"), (raw, "output_tokens"))
    reasoning = read.one_of(
        (_details(raw, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
        (raw, "reasoning_output_tokens"),
    )
    image = read.count(details, "image_tokens")
    if input_tokens is not None and _contradicts(raw, input_tokens, read):
        cached = input_tokens = None
    if cached is not None and input_tokens is not None and cached > input_tokens:
        read.problems.append(f"{CACHED_ABOVE} {cached} above {input_name} {input_tokens}")
        cached = input_tokens = None
    if image is not None and input_tokens is not None and image > input_tokens:
        read.problems.append(f"image_tokens {image} above {input_name} {input_tokens}")
        image = None
    if output is not None and reasoning and input_tokens is not None:
        total = read.count(raw, "total_tokens")
        if total == input_tokens + output + reasoning:
            output += reasoning
    if output is not None and reasoning is not None and reasoning > output:
        read.problems.append(f"reasoning_tokens {reasoning} above completion_tokens {output}")
        output = reasoning = None
    tier = raw.get("service_tier")
    return Usage(
        input_tokens=input_tokens,
        cached_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
        output_tokens=output,
        reasoning_tokens=reasoning,
        image_tokens=image,
        server_tools=_server_tools(raw, read),
        service_tier=tier if isinstance(tier, str) and tier else None,
        problem="; ".join(dict.fromkeys(read.problems)) or None,
    )


def _details(raw: dict[str, Any], *names: str) -> Any:
    return next((raw[name] for name in names if isinstance(raw.get(name), dict)), None)


def _input(
    raw: dict[str, Any], details: Any, cached: int | None, written: int | None, read: _Reader
) -> tuple[int | None, str]:
    """All input tokens, and the field they were read from."""
    prompt, rest = read.count(raw, "prompt_tokens"), read.count(raw, "input_tokens")
    hit, miss = read.count(raw, "prompt_cache_hit_tokens"), read.count(raw, "prompt_cache_miss_tokens")
    if raw.get("prompt_tokens") is not None:
        # A proxy may give both shapes; Anthropic's input is then the rest of the prompt.
        if prompt is not None and rest not in (None, prompt) and prompt != (rest or 0) + (cached or 0) + (written or 0):
            read.problems.append(f"prompt_tokens {prompt} and input_tokens {rest} disagree")
        return prompt, "prompt_tokens"
    if hit is not None and miss is not None:
        return hit + miss, "hit + miss"
    if rest is None or not _is_uncached_rest(raw, details):
        return rest, "input_tokens"
    if cached is None or written is None:
        missing = "cache_read_input_tokens" if cached is None else "cache_creation_input_tokens"
        read.problems.append(f"{missing} is not reported, and input_tokens {rest} leaves it out")
        return None, "input_tokens"
    return rest + cached + written, "input_tokens"


def _contradicts(raw: dict[str, Any], input_tokens: int, read: _Reader) -> bool:
    """Whether DeepSeek's hit and miss are not the input."""
    hit, miss = read.count(raw, "prompt_cache_hit_tokens"), read.count(raw, "prompt_cache_miss_tokens")
    if hit is None or miss is None or hit + miss == input_tokens:
        return False
    read.problems.append(f"prompt_tokens {input_tokens} is not hit {hit} + miss {miss}")
    return True


def _is_uncached_rest(raw: dict[str, Any], details: Any) -> bool:
    """Anthropic's input_tokens; a shape with its cached tokens in the details, or Codex's, includes them."""
    inclusive = raw.get("cached_input_tokens") is not None or (isinstance(details, dict) and "cached_tokens" in details)
    return not inclusive and any(name in raw for name in _ANTHROPIC)


def _written(raw: dict[str, Any], details: Any, read: _Reader) -> tuple[int | None, int | None]:
    """(tokens written to the cache, those of them that stay for an hour)"""
    written = read.one_of(
        (details, "cache_write_tokens"),
        (details, "created_cache_tokens"),
        (raw, "cache_creation_input_tokens"),
    )
    parts = raw.get("cache_creation")
    short, long = read.count(parts, "ephemeral_5m_input_tokens"), read.count(parts, "ephemeral_1h_input_tokens")
    if short is None and long is None:
        return written, None
    if written is None:
        return (None, long) if short is None or long is None else (short + long, long)
    if short is None or long is None:
        long = written - (short or 0) if long is None else long
        short = written - long
    if min(short, long) < 0 or short + long != written:
        read.problems.append(f"cache_creation_input_tokens {written} is not 5m {short} + 1h {long}")
        return None, None
    return written, long


def _server_tools(raw: dict[str, Any], read: _Reader) -> dict[str, int]:
    calls = raw.get("server_tool_use")
    if not isinstance(calls, dict):
        return {}
    return {str(name): count for name in calls if (count := read.count(calls, name))}
