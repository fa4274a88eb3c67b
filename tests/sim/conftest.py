"""A simulated endpoint over real HTTP for the tests of its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from kvbench.sim.process import SimProcess

QUICK = {
    "frontend_s": 0,
    "send_s_per_chunk": 0,
    "prefill_base_s": 0,
    "prefill_s_per_token": 0,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.001,
    "decode_s_per_request": 0,
}


@contextmanager
def tiny(**settings: Any) -> Iterator[httpx.Client]:
    """A client of a `tiny` of its own, so set."""
    with (
        SimProcess.start("tiny", settings={**QUICK, **settings}) as sim,
        httpx.Client(base_url=sim.url, trust_env=False, timeout=20) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def tiny_url() -> Iterator[str]:
    """The preset `tiny` (block 32, 16,352 usable tokens), all prefill in no time."""
    with SimProcess.start("tiny", settings=QUICK) as sim:
        yield sim.url


@pytest.fixture
def client(tiny_url: str) -> Iterator[httpx.Client]:
    """A client of `tiny`, its cache emptied."""
    with httpx.Client(base_url=tiny_url, trust_env=False, timeout=20) as client:
        assert client.post("/reset_prefix_cache").json() == {"reset": True}
        yield client
