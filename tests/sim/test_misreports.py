"""What usage says that is not so, held against the endpoint's own truth."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from tests.sim.conftest import tiny
from tests.sim.test_deepseek import simulated, stream, text, user

TEXT = "wxyz" * 100


def chat(client: httpx.Client, content: str = TEXT, **body: Any) -> dict[str, Any]:
    """The last object with usage, of a stream or of a whole answer; `text` is what was said."""
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if body.pop("stream", False) else {}
    answer = client.post(
        "/v1/chat/completions", json={"messages": [user(content)], "max_tokens": 20, **streaming, **body}
    )
    assert answer.status_code == 200, answer.text
    if not streaming:
        return dict(answer.json())
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return next((e for e in map(msgspec.json.decode, reversed(events)) if e.get("usage")), {})


def last_truth(client: httpx.Client) -> dict[str, Any]:
    return dict(msgspec.json.decode(client.get("/sim/truth").content.splitlines()[-1]))


@pytest.mark.parametrize(
    ("settings", "plain", "streamed"),
    [
        # 100 tokens of text, 4 marks before and after them, 3 that ask for the answer: 107.
        ({}, 107, 107),
        ({"template_tokens": 200}, 307, 307),
        ({"fault_input_overcount": 1, "overcount_share": 0.05}, 113, 113),
        ({"fault_stream_overcount": 1, "overcount_share": 0.05}, 107, 113),
        ({"usage_granularity_tokens": 64}, 128, 128),
    ],
)
def test_input_in_usage(settings: dict[str, Any], plain: int, streamed: int) -> None:
    with tiny(**settings) as client:
        for stream, tokens in ((False, plain), (True, streamed)):
            usage = chat(client, stream=stream)["usage"]
            assert usage["prompt_tokens"] == tokens
            assert usage["total_tokens"] == tokens + usage["completion_tokens"]
            assert last_truth(client)["prompt_tokens"] == 107 + settings.get("template_tokens", 0)
        told = client.post("/tokenize", json={"messages": [user(TEXT)]}).json()["count"]
        assert told == 107 + settings.get("template_tokens", 0)


def test_an_overrun_is_said_counted_and_in_the_truth() -> None:
    with tiny(fault_overrun=1, overcount_share=0.25) as client:
        answer = chat(client, ignore_eos=True)
        assert (answer["usage"]["completion_tokens"], len(answer["choices"][0]["message"]["content"])) == (25, 100)
        assert last_truth(client)["output_tokens"] == 25


def test_no_usage_is_none_at_all() -> None:
    with tiny(report_usage=False) as client:
        assert "usage" not in chat(client)
        assert chat(client, stream=True) == {}


def test_what_is_to_be_repeated_is_repeated_and_the_end_mark_counted() -> None:
    with tiny(repeats=True) as client:
        answer = chat(client, "Repeat exactly, and nothing else: the quick fox.", max_tokens=50)
        assert answer["choices"][0]["message"]["content"].rstrip() == "the quick fox."
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (5, "stop")
        cut = chat(client, "Repeat exactly, and nothing else: the quick fox.", max_tokens=2)
        assert cut["choices"][0]["message"]["content"] == "the quic"
        assert chat(client, "Say something: else", max_tokens=50)["choices"][0]["message"]["content"][:4] != "else"


def test_misreported_input_is_charged() -> None:
    prices = {"price_hit_per_mtok": 0, "price_miss_per_mtok": 10_000, "price_output_per_mtok": 0}
    with simulated(**prices, fault_input_overcount=1, overcount_share=0.5) as client:
        [*_, last] = stream(client, user(text("bill", 193)), max_tokens=1)
        row = dict(msgspec.json.decode(client.get("/sim/truth").content.splitlines()[-1]))
    assert (row["prompt_tokens"], last["usage"]["prompt_tokens"]) == (200, 300)
    assert (row["price"], row["charged"], row["billing_faults"]) == ("2", "3", ["input_overcount"])


def test_reasoning_may_be_counted_and_not_shown() -> None:
    with simulated(hide_reasoning=True, thinking_tokens=10) as client:
        events = stream(client, user("think"), max_tokens=30, thinking={"type": "enabled"})
    assert not any(event["choices"][0]["delta"].get("reasoning_content") for event in events)
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
