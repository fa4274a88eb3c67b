"""Which hit rule a run's expectations follow: what the profile says, else what the server shows of itself."""

from __future__ import annotations

from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.metrics import CacheConfig
from kvbench.endpoints.profile import ExpectedHitsRule
from kvbench.traces.prefix import BlockRule, BreakpointsRule, Rule, StepsRule, UnitsRule
from kvbench.traces.prefix.rules import REPLAY_TOKENS, UNIT_BUILD_S, UNIT_LIFETIME_S

NAME_IT = "name a rule in an endpoint TOML ([expected_hits])"


def choose_rule(
    wanted: ExpectedHitsRule, info: EndpointInfo, *, time_scale: float = 1.0
) -> tuple[Rule | BreakpointsRule | None, str]:
    """The rule, or None and why there is none. time_scale: of a simulated endpoint, whose times scale with the trace's.

    auto takes `block` for a vLLM that says its block size, unless it shows several kinds of layers (hybrid, sliding
    window), blocks kept elsewhere, several engines or a cache switched off. It cannot see speculative decoding that
    drops a hit's last block, nor layers of several kinds where an older server does not state its capacity.
    """
    rule = wanted.rule
    if rule == "auto":
        if info.dialect == "deepseek":
            rule = "units"
        elif info.dialect == "vllm":
            why_not = _not_plain(info)
            if why_not is not None:
                return None, f"{why_not}: {NAME_IT}"
            rule = "block"
    if rule == "units":
        return _units(wanted, time_scale), ""
    if rule == "steps":
        return StepsRule(), ""
    if rule == "breakpoints":
        return BreakpointsRule(minimum_tokens=wanted.minimum_tokens), ""
    if rule in ("block", "block-replay"):
        block_size = wanted.block_size if wanted.block_size is not None else info.block_size
        if block_size is None:
            return None, "the server does not say its block size; name it in an endpoint TOML ([expected_hits])"
        # What a model with several kinds of layers can hold is no number of equal blocks.
        capacity = info.capacity_tokens if _not_plain(info) is None else None
        replay = 0 if rule == "block" else REPLAY_TOKENS if wanted.replay_tokens is None else wanted.replay_tokens
        return BlockRule(block_size, capacity, replay), ""
    if rule == "none":
        return None, "the endpoint profile says rule none"
    return None, f"no rule is known for this server; {NAME_IT}"


def _units(wanted: ExpectedHitsRule, time_scale: float) -> UnitsRule:
    build_s = UNIT_BUILD_S if wanted.build_s is None else wanted.build_s
    lifetime_s = UNIT_LIFETIME_S if wanted.lifetime_s is None else wanted.lifetime_s
    # A trace without its pauses has no trace time in which anything could go.
    lifetime_s = lifetime_s * time_scale if time_scale else UNIT_LIFETIME_S
    return UnitsRule(wanted.granularity_tokens, build_s * time_scale, lifetime_s, wanted.interval_tokens)


def _not_plain(info: EndpointInfo) -> str | None:
    """Why the pool is not what the block rule takes it for: equal blocks in one place, all kept until evicted."""
    cache = info.cache
    if cache is None:
        return None
    if cache.prefix_caching is False:
        return "the server's prefix cache is switched off"
    if cache.engines > 1:
        return f"{cache.engines} engines, each with a cache of its own, and which one answers is not known"
    if cache.special:
        return f"the server says {', '.join(cache.special)}: not all blocks of all layers are kept in one place"
    if not _states_equal_blocks(cache, info.max_model_len):
        return (
            f"{cache.num_gpu_blocks} blocks of {cache.block_size} tokens hold {cache.stated_tokens} tokens by the "
            "server's own account, so the model has several kinds of layers (hybrid or sliding window)"
        )
    return None


def _states_equal_blocks(cache: CacheConfig, max_model_len: int | None) -> bool:
    """vLLM states how many requests of max_model_len fit, times max_model_len: with layers of one kind these are
    num_gpu_blocks over the blocks of one such request. A block more or less is the null block."""
    stated, blocks, size = cache.stated_tokens, cache.num_gpu_blocks, cache.block_size
    if stated is None or blocks is None or size is None:
        return True
    if max_model_len is None:
        return abs(stated - blocks * size) * 20 <= blocks * size
    return abs(stated - blocks * max_model_len / -(-max_model_len // size)) <= size + 1
