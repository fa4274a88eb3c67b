"""Capacity from outside against a real vLLM whose pool is known: three sizes and types of KV cache, prompts of several
lengths; a sliding window; no prefix caching."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from servers.sizes import TIGHT
from servers.vllm import MIB, VllmServer, VllmSettings

POOLS = [
    VllmSettings(kv_bytes=6 * MIB, dtype="float32", max_model_len=4_096),
    TIGHT,
    VllmSettings(kv_bytes=12 * MIB, kv_cache_dtype="fp8"),
]
WINDOW = VllmSettings(model="tiny-window")
NO_CACHE = VllmSettings(prefix_caching=False)


def on(*settings: VllmSettings) -> pytest.MarkDecorator:
    names = [f"{s.kv_bytes // MIB}-MiB-{s.model}-{s.dtype}-{s.kv_cache_dtype}" for s in settings]
    return pytest.mark.parametrize("vllm", list(settings), ids=names, indirect=True)


pytestmark = pytest.mark.real


def probe(kvbench: Callable[..., Any], vllm: VllmServer, *more: str) -> dict[str, dict[str, Any]]:
    memory = str(vllm.settings.kv_bytes)
    done = kvbench("probe", "capacity", "--endpoint", vllm.url, "--kv-memory", memory, "--yes", "--json", *more)
    assert done.returncode == 0, done.stderr + done.stdout
    return {e["name"]: e for e in json.loads(done.stdout)["estimates"]}


@on(*POOLS)
@pytest.mark.parametrize("lengths", [None, "1025,2001"])
def test_the_pool_is_found_to_a_block(vllm: VllmServer, kvbench: Callable[..., Any], lengths: str | None) -> None:
    found = probe(kvbench, vllm, *(["--input-tokens", lengths] if lengths else []))
    capacity, block = found["capacity_tokens"], vllm.settings.block_size
    assert abs(capacity["value"] - vllm.settings.capacity_tokens) <= block
    assert capacity["low"] <= vllm.settings.capacity_tokens <= capacity["high"]
    assert capacity["n"] <= 250
    assert abs(found["bytes_per_token"]["value"] / vllm.settings.bytes_per_token - 1) < 0.01


@on(WINDOW)
def test_a_sliding_window_shows_in_bytes_a_session(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    found = probe(kvbench, vllm)
    assert "capacity_tokens" not in found
    for name in ("bytes_per_token", "bytes_per_session"):
        truth = getattr(vllm.settings, name)
        assert found[name]["low"] <= truth <= found[name]["high"] <= 2 * truth
    assert found["window_tokens"]["low"] <= 512 <= found["window_tokens"]["high"] <= 560
    assert found["bytes_per_token"]["n"] <= 250


@on(NO_CACHE)
def test_without_prefix_caching_there_is_no_number(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    done = kvbench("probe", "capacity", "--endpoint", vllm.url, "--kv-memory", "8388608", "--yes", "--json")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["estimates"] == []
    assert "prefix caching is off" in report["refusals"][0]["reason"]
