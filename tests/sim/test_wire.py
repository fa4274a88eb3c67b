"""What parameters change on the wire, in the metrics and in the truth."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.sim.conftest import QUICK
from tests.sim.test_server import cached, complete, metric, truth

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import ExpectedHitsRule, load_profile
from kvbench.replay.rules import choose_rule
from kvbench.sim.process import SimProcess


@contextmanager
def served(**settings: Any) -> Iterator[httpx.Client]:
    with (
        SimProcess.start("tiny", settings={**QUICK, **settings}) as sim,
        httpx.Client(base_url=sim.url, trust_env=False, timeout=20) as client,
    ):
        yield client


def test_one_request_too_many_is_refused_where_there_is_a_limit() -> None:
    body = {"prompt": list(range(40)), "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with served(max_in_flight=1) as client, client.stream("POST", "/v1/completions", json=body) as running:
        chunks = running.iter_raw()  # a generator that is let go of hangs up
        next(chunks)
        refused = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "TooManyRequests"
        assert "limit of 1 requests" in refused.json()["error"]["message"]


def test_accepted_drafts_come_in_one_chunk() -> None:
    body = {"prompt": list(range(40)), "max_tokens": 10, "ignore_eos": True, "stream": True, "return_token_ids": True}
    with served(speculative_tokens=3, speculative_acceptance=1, decode_base_s=0.03) as client:
        lines = client.post("/v1/completions", json=body).text.split("\n\n")
        whole = complete(client, list(range(40)), 10)
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line.startswith("data: {")]
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1, 4, 4, 1]
    assert [chunk["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert "".join(chunk["text"] for chunk in chunks) == whole["choices"][0]["text"]


def test_how_late_tokens_were_is_told() -> None:
    with served() as client:
        body = {"prompt": list(range(40)), "max_tokens": 50, "ignore_eos": True, "stream": True}
        assert client.post("/v1/completions", json=body).status_code == 200
        late = client.get("/sim/lateness").json()
        assert (late["first_token"]["count"], late["others"]["count"]) == (1, 49)
        assert 0 <= late["others"]["p50_s"] <= late["others"]["p99_s"] <= late["others"]["max_s"]
        [row] = truth(client).values()
        assert row["first_token_write_ns"] - row["planned_first_token_ns"] == pytest.approx(
            late["first_token"]["max_s"] * 1e9
        )


def test_replicas_are_engines_in_the_metrics_and_in_the_truth() -> None:
    with served(replicas=2, seed=1) as client:
        hits = [cached(client, list(range(100))) for _ in range(12)]
        rows = list(truth(client).values())
        text = client.get("/metrics").text
        models = client.get("/v1/models").json()
    assert {row["replica"] for row in rows} == {0, 1}
    assert hits == [row["cached_tokens"] for row in rows]
    assert hits.count(0) == 2
    for replica in (0, 1):
        asked = sum(row["prompt_tokens"] for row in rows if row["replica"] == replica)
        assert f'vllm:prefix_cache_queries_total{{engine="{replica}",model_name="tiny"}} {float(asked)}' in text
        assert f'engine="{replica}",kv_cache_memory_bytes="8388608",kv_cache_size_tokens="16352"' in text
    assert len(models["data"]) == 1
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))


def test_the_metrics_tell_state_and_tiers() -> None:
    settings = {"bytes_per_session": 40_000, "host_bytes": 2**30, "idle_ttl_s": 0.2, "max_model_len": 8000}
    with served(**settings) as client:
        complete(client, list(range(100)), 1)
        time.sleep(0.3)
        assert cached(client, list(range(100))) == 96
        assert metric(client, "external_prefix_cache_hits_total") == 96
        assert metric(client, "prefix_cache_hits_total") == 0
        assert metric(client, "prompt_tokens_by_source_total", 'source="external_kv_transfer"') == 96
        text = client.get("/metrics").text
        assert list(truth(client).values())[1]["hits"] == {"host": 96}
    # Blocks of 16,384 bytes: three for the state, 250 for 8,000 tokens; 511 usable blocks are 2.0198 such requests.
    assert 'kv_cache_size_tokens="16158",kv_offloading_size="1.0"' in text
    assert 'sliding_window="None"' in text


async def test_kvbenchs_client_takes_none_of_them_for_a_plain_pool() -> None:
    for settings, reason in (
        ({"host_bytes": 2**30}, "kv_offloading_size=1.0"),
        ({"window_tokens": 128, "window_replay": "always"}, "sliding_window=128"),
        ({"bytes_per_session": 400_000, "max_model_len": 4000}, "several kinds of layers"),
        ({"replicas": 2}, "2 engines"),
    ):
        with SimProcess.start("tiny", settings=settings) as sim:
            endpoint = await Endpoint.open(load_profile(sim.url), RunClock.start())
            try:
                await endpoint.discover(None)
                rule, why = choose_rule(ExpectedHitsRule(), endpoint.info)
            finally:
                await endpoint.aclose()
        assert rule is None
        assert reason in why


def test_usage_of_the_pool_counts_running_requests_and_their_state() -> None:
    body = {"prompt": list(range(40)), "max_tokens": 7900, "ignore_eos": True, "stream": True}
    with (
        served(bytes_per_session=40_000, max_model_len=8000, decode_base_s=1) as client,
        client.stream("POST", "/v1/completions", json=body) as running,
    ):
        chunks = running.iter_raw()  # a generator that is let go of hangs up
        next(chunks)
        # Two blocks of tokens and three of state.
        assert metric(client, "kv_cache_usage_perc") == pytest.approx(5 / 511)
