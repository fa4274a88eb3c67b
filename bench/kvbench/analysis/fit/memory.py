"""What an endpoint has for its KV cache, and who says so."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvbench.runs.reader import Run


class Memory(NamedTuple):
    """bytes_: for the KV cache. stated: a sentence where the server is the one that says so."""

    bytes_: int
    stated: str | None = None


def memory_of(run: Run, given: int | None) -> Memory | None:
    """As given, else as the run's own settings have it, else as the server states it; None: nobody says."""
    settings = run.info.settings.get("kv_memory_bytes")
    if given is None and isinstance(settings, int) and settings > 0:
        given = settings
    if given is not None:
        return Memory(given)
    stated = server_cache(run).get("stated_bytes")
    if not isinstance(stated, int) or stated <= 0:
        return None
    return Memory(stated, f"memory of the KV cache as the server states it: {stated:,} bytes (kv_cache_memory_bytes)")


def server_cache(run: Run) -> dict[str, Any]:
    """What the server claimed of its cache when the run began; empty where it said nothing."""
    cache = (run.info.server or {}).get("cache")
    return cache if isinstance(cache, dict) else {}


def server_claims(run: Run) -> str | None:
    """Those claims in words: shown beside what was measured, and never taken for it."""
    cache = server_cache(run)
    names = {"block_size": "block_size", "num_gpu_blocks": "num_gpu_blocks", "stated_tokens": "kv_cache_size_tokens"}
    told = [f"{label} {cache[name]:,}" for name, label in names.items() if isinstance(cache.get(name), int)]
    return f"claimed by the server, and not used: {', '.join(told)}" if told else None
