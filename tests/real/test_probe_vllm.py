"""Capacity from outside against a real vLLM whose pool is known: pools of three sizes, prompts of several lengths."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from servers.sizes import TIGHT
from servers.vllm import KV_BYTES_PER_TOKEN, MIB, VllmServer, VllmSettings

POOLS = [VllmSettings(kv_bytes=6 * MIB), TIGHT, VllmSettings(kv_bytes=24 * MIB)]
three_pools = pytest.mark.parametrize(
    "vllm", [pytest.param(s, id=f"{s.kv_bytes // MIB}-MiB") for s in POOLS], indirect=True
)
pytestmark = [pytest.mark.real, three_pools]


def probe(kvbench: Callable[..., Any], vllm: VllmServer, *more: str) -> dict[str, dict[str, Any]]:
    memory = str(vllm.settings.kv_bytes)
    done = kvbench("probe", "capacity", "--endpoint", vllm.url, "--kv-memory", memory, "--yes", "--json", *more)
    assert done.returncode == 0, done.stderr + done.stdout
    return {e["name"]: e for e in json.loads(done.stdout)["estimates"]}


@pytest.mark.parametrize("lengths", [None, "1025,2001"])
def test_the_pool_is_found_to_a_block(vllm: VllmServer, kvbench: Callable[..., Any], lengths: str | None) -> None:
    found = probe(kvbench, vllm, *(["--input-tokens", lengths] if lengths else []))
    capacity, block = found["capacity_tokens"], vllm.settings.block_size
    assert abs(capacity["value"] - vllm.settings.capacity_tokens) <= block
    assert capacity["low"] <= vllm.settings.capacity_tokens <= capacity["high"]
    assert capacity["n"] <= 250
    assert abs(found["bytes_per_token"]["value"] / KV_BYTES_PER_TOKEN - 1) < 0.01
