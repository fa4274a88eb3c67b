"""kvbench's own client, which knows nothing of the simulated endpoint, takes it for the DeepSeek API."""

from __future__ import annotations

import pytest

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile, load_profile
from kvbench.model import Record, Request
from kvbench.sim.process import SimProcess

from .conftest import QUICK


async def ask(profile: EndpointProfile, *, thinking: bool) -> tuple[Endpoint, Record]:
    endpoint = await Endpoint.open(profile, RunClock.start())
    try:
        await endpoint.discover(None)
        body = endpoint.build_body(
            messages=[{"role": "user", "content": "wxyz" * 300}], output_tokens=30, thinking=thinking
        )
        return endpoint, await endpoint.send(Request(request_id="q", session_id="s", turn=0, body=body))
    finally:
        await endpoint.aclose()


@pytest.mark.parametrize("usage_on", ["finish", "extra"])
async def test_it_is_found_out_and_understood(usage_on: str) -> None:
    settings = {**QUICK, "unit_build_s": 0, "thinking_tokens": 10, "usage_on": usage_on}
    # The first token comes after two or three signs of life, and is not one of them.
    settings |= {"prefill_base_s": 0.25, "keep_alive_s": 0.1}
    # Ten tokens of thought take 200 ms: a client that reads late on a busy machine still sees them apart.
    settings |= {"decode_base_s": 0.02}
    with SimProcess.start("deepseek-api", settings=settings) as sim:
        endpoint, first = await ask(load_profile(sim.url), thinking=True)
        _, second = await ask(load_profile(sim.url), thinking=False)
    assert (endpoint.info.dialect, endpoint.info.model) == ("deepseek", "deepseek-flash")
    for record, cached, reasoning in ((first, 0, 10), (second, 256, None)):
        assert record.error_class is None, record.error_message
        assert record.finish_reason in ("length", "stop")
        usage, clock = record.usage, record.clock
        assert (usage.input_tokens, usage.cached_tokens, usage.reasoning_tokens) == (307, cached, reasoning)
        assert usage.problem is None
        assert clock.first_token is not None
        assert clock.sent is not None
        assert clock.first_output_token is not None
        assert clock.first_token - clock.sent >= 250_000_000  # the engine cannot be quicker
        assert (clock.first_output_token > clock.first_token) == (reasoning is not None)
