"""Answers of DeepSeek and of others that were recorded, played again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.test_deepseek import StartServer

from .conftest import Peer, http_chunk
from .helpers import DONE, LAST_CHUNK, STREAM_HEAD, answer, send, serving, stream

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")


def _cassette(name: str) -> list[dict[str, Any]]:
    import yaml

    text = (Path(DATA or "") / "cassettes" / f"{name}.yaml").read_text(encoding="utf-8")
    return [interaction["response"] for interaction in yaml.safe_load(text)["interactions"]]


def _counts(record: Any) -> tuple[int | None, ...]:
    usage = record.usage
    assert usage.problem is None
    miss = None if record.usage_raw is None else record.usage_raw.get("prompt_cache_miss_tokens")
    return usage.cached_tokens, miss, usage.input_tokens, usage.output_tokens, usage.reasoning_tokens


@needs_data
async def test_recorded_thinking_with_tools(raw_server: StartServer) -> None:
    answers = [
        answer(response["parsed_body"]) for response in _cassette("test_deepseek_deferred_capability_with_thinking")
    ]
    records = [await send(raw_server(serving(a)).url, dialect="deepseek", stream=False) for a in answers]
    assert [_counts(r) for r in records] == [
        (512, 51, 563, 116, 60),
        (0, 875, 875, 79, 26),
        (896, 80, 976, 61, 25),
    ]
    assert [r.finish_reason for r in records] == ["tool_calls", "tool_calls", "stop"]
    first, second, third = records
    assert first.output_text == "Let me load the dice rolling capability!"
    assert (first.reasoning_text or "").startswith("The user wants to play a dice game.")
    assert [c["function"] for c in first.tool_calls or []] == [
        {"name": "load_capability", "arguments": '{"id": "DICE_ROLL"}'}
    ]
    assert [c["function"]["name"] for c in second.tool_calls or []] == ["get_player_name", "roll_dice"]
    assert third.tool_calls is None
    assert {r.response_model for r in records} == {"deepseek-v4-flash"}
    assert all(r.clock.first_token is None and r.clock.last_token is not None for r in records)


@needs_data
async def test_a_recorded_stream_of_thoughts_and_text(raw_server: StartServer) -> None:
    (response,) = _cassette("test_deepseek_model_thinking_stream")
    content = response["body"]["string"].encode()
    half = content.index(b'"content":"Hello"')

    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        for start in range(0, half, 1000):
            peer.chunk(content[start : min(start + 1000, half)])
        time.sleep(0.05)
        peer.send(http_chunk(content[half:]) + LAST_CHUNK)

    record = await send(raw_server(handler).url, dialect="deepseek")
    assert record.ok, record.error_message
    assert _counts(record) == (0, 6, 6, 212, 198)
    assert (record.output_text or "").startswith("Hello there!")
    assert (record.reasoning_text or "").startswith('Hmm, the user just said "Hello')
    assert record.finish_reason == "stop"
    clock = record.clock
    assert clock.first_token is not None
    assert clock.first_output_token is not None
    assert clock.first_output_token - clock.first_token > 40_000_000
    events = [json.loads(line[6:]) for line in content.split(b"\n\n") if line.startswith(b"data: {")]
    deltas = [e["choices"][0]["delta"] for e in events]
    assert len(clock.chunks) == sum(bool(d.get("content") or d.get("reasoning_content")) for d in deltas)


@needs_data
@pytest.mark.parametrize(
    ("name", "counts", "thinks", "calls", "finish"),
    [
        ("deepseek-reasoning", (0, 18, 18, 219, 205), True, [], "stop"),
        ("deepseek-text", (0, 13, 13, 400, None), False, [], "length"),
        ("deepseek-tool-call", (320, 19, 339, 83, 39), True, ["weather"], "tool_calls"),
        ("groq-tool-call", (None, None, 210, 15, None), False, ["weather"], "tool_calls"),
        ("moonshotai-stream", (None, None, 9, 12, 7), True, [], "stop"),
        ("xai-text", (11, None, 12, 291, 290), True, [], "stop"),
        ("xai-tool-call", (306, None, 307, 253, 227), True, ["weather"], "tool_calls"),
    ],
)
async def test_recorded_chunks_of_deepseek_and_others(
    raw_server: StartServer,
    name: str,
    counts: tuple[int | None, ...],
    thinks: bool,
    calls: list[str],
    finish: str,
) -> None:
    lines = (Path(DATA or "") / "sse" / f"{name}.chunks.txt").read_bytes().splitlines()
    deltas = [json.loads(line)["choices"] for line in lines if line.strip()]
    texts = [(c[0]["delta"].get("reasoning_content") or "", c[0]["delta"].get("content") or "") for c in deltas if c]
    parts = [b"data: " + line + b"\n\n" for line in lines if line.strip()]
    record = await send(raw_server(serving(stream(*parts, DONE))).url)
    assert record.ok, record.error_message
    assert _counts(record) == counts
    assert record.finish_reason == finish
    assert record.reasoning_text == ("".join(r for r, _ in texts) or None)
    assert record.output_text == ("".join(t for _, t in texts) or None)
    assert (record.reasoning_text is not None) == thinks
    assert [c["function"]["name"] for c in record.tool_calls or []] == calls
    clock = record.clock
    assert clock.first_token is not None
    assert clock.first_output_token is not None
    if thinks:
        assert clock.first_token <= clock.first_output_token
