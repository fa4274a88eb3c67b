"""The simulated endpoint against a real vLLM with the same small pool: the same requests hit the same tokens."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest
from servers.sizes import tight
from servers.vllm import VllmServer

from kvbench.sim.process import SimProcess

pytestmark = [pytest.mark.real, tight]


def bodies(seed: int, count: int) -> list[dict[str, Any]]:
    """Prompts that go on from earlier ones, at their end or before it, and so much output that blocks run out."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    made = []
    for _ in range(count):
        stem = rng.choice(prompts[-40:]) if prompts and rng.random() < 0.75 else []
        stem = stem[: rng.choice([len(stem), len(stem), rng.randint(0, len(stem))])]
        ids = [*stem, *(rng.randrange(10, 250) for _ in range(rng.choice([1, 32, 64, 100, 333, 800, 1500])))][:6000]
        if rng.random() < 0.3:
            ids = ids[: max(32, len(ids) // 32 * 32)]
        prompts.append(ids)
        output_tokens = rng.choice([1, 2, 17, 32, 33, 60])
        exact = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
        made.append({"model": "tiny", "prompt": ids, "cache_salt": f"sim-{seed}", **exact})
    return made


def hits(client: httpx.Client, requests: list[dict[str, Any]]) -> list[int]:
    assert client.post("/reset_prefix_cache").status_code == 200
    found = []
    for body in requests:
        usage = client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
        assert usage["prompt_tokens"] == len(body["prompt"])
        found.append((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_requests_hit_the_same_tokens(client: httpx.Client, vllm: VllmServer, seed: int) -> None:
    requests = bodies(seed, 150)
    real = hits(client, requests)
    assert 0 < sum(map(bool, real)) < len(real)
    settings = {"num_blocks": vllm.settings.kv_bytes // 512 // 32, "decode_base_s": 0, "decode_s_per_request": 0}
    with SimProcess.start("tiny", settings=settings) as sim, httpx.Client(base_url=sim.url, trust_env=False) as other:
        assert hits(other, requests) == real
