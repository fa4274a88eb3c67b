"""The token audit against a real vLLM: what it reports is what its own /tokenize and its own ids say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from servers.sizes import roomy
from servers.vllm import VllmServer

pytestmark = [pytest.mark.real, roomy]


def test_reported_tokens_are_confirmed(vllm: VllmServer, kvbench: Callable[..., Any], client: httpx.Client) -> None:
    done = kvbench(
        "probe", "tokens", "--endpoint", vllm.url, "--max-input-tokens", "2048", "--max-output-tokens", "128",
        "--yes", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    found = {e["name"]: e for e in report["estimates"]}
    checks = {c["name"]: c for c in report["checks"]}
    assert report["verdict"] == "confirmed"
    assert found["input_tokens_per_token"]["value"] == 1.0
    assert found["output_tokens_per_token"]["value"] == 1.0
    assert {c["verdict"] for c in checks.values()} <= {"confirmed", "not reported"}
    assert checks["cached"]["verdict"] == checks["total"]["verdict"] == "confirmed"

    text = "Read these notes."
    whole = client.post("/tokenize", json={"messages": [{"role": "user", "content": text}]}).json()["count"]
    alone = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["count"]
    assert found["input_tokens_added"]["value"] == whole - alone
