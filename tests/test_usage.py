"""Usage objects as endpoints really send them, against counts read off by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.model import Usage
from kvbench.usage import normalise


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # vLLM without --enable-prompt-tokens-details, and with it
        (
            {"prompt_tokens": 65, "total_tokens": 70, "completion_tokens": 5, "prompt_tokens_details": None},
            Usage(input_tokens=65, output_tokens=5),
        ),
        (
            {"prompt_tokens": 65, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}},
            Usage(input_tokens=65, cached_tokens=64, output_tokens=5),
        ),
        # vLLM that leaves details out at no hit: not reported, so unknown
        (
            {"prompt_tokens": 65, "completion_tokens": 5, "prompt_tokens_details": {}},
            Usage(input_tokens=65, output_tokens=5),
        ),
        # vLLM's created_cache_tokens; a true 0 is a report
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 96},
            },
            Usage(input_tokens=100, cached_tokens=0, cache_write_tokens=96, output_tokens=1),
        ),
        # DeepSeek: two spellings of one count, not added up
        (
            {
                "prompt_tokens": 339,
                "completion_tokens": 83,
                "total_tokens": 422,
                "prompt_tokens_details": {"cached_tokens": 320},
                "completion_tokens_details": {"reasoning_tokens": 39},
                "prompt_cache_hit_tokens": 320,
                "prompt_cache_miss_tokens": 19,
            },
            Usage(input_tokens=339, cached_tokens=320, output_tokens=83, reasoning_tokens=39),
        ),
        # DeepSeek's fields alone
        (
            {"completion_tokens": 2, "prompt_cache_hit_tokens": 128, "prompt_cache_miss_tokens": 7},
            Usage(input_tokens=135, cached_tokens=128, output_tokens=2),
        ),
        # Moonshot
        (
            {"prompt_tokens": 300, "completion_tokens": 2, "cached_tokens": 256},
            Usage(input_tokens=300, cached_tokens=256, output_tokens=2),
        ),
        # LiteLLM
        (
            {
                "prompt_tokens": 300,
                "completion_tokens": 2,
                "cache_creation_input_tokens": 44,
                "prompt_tokens_details": {"cached_tokens": 256},
            },
            Usage(input_tokens=300, cached_tokens=256, cache_write_tokens=44, output_tokens=2),
        ),
        # xAI: 12 + 1 + 290 = 303, so reasoning comes on top of completion_tokens
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 1,
                "total_tokens": 303,
                "prompt_tokens_details": {"cached_tokens": 11},
                "completion_tokens_details": {"reasoning_tokens": 290},
            },
            Usage(input_tokens=12, cached_tokens=11, output_tokens=291, reasoning_tokens=290),
        ),
        # OpenAI's Responses API: cached tokens are part of the input
        (
            {
                "input_tokens": 1000,
                "input_tokens_details": {"cached_tokens": 896, "cache_write_tokens": 100},
                "output_tokens": 50,
                "output_tokens_details": {"reasoning_tokens": 30},
                "total_tokens": 1050,
            },
            Usage(input_tokens=1000, cached_tokens=896, cache_write_tokens=100, output_tokens=50, reasoning_tokens=30),
        ),
        # Codex: the same, in words of its own
        (
            {
                "input_tokens": 10058,
                "cached_input_tokens": 9856,
                "output_tokens": 59,
                "reasoning_output_tokens": 15,
                "total_tokens": 10117,
            },
            Usage(input_tokens=10058, cached_tokens=9856, output_tokens=59, reasoning_tokens=15),
        ),
        # Anthropic: 3 + 11515 + 13835; the parts of what was written are it, not more
        (
            {
                "input_tokens": 3,
                "cache_creation_input_tokens": 13835,
                "cache_read_input_tokens": 11515,
                "cache_creation": {"ephemeral_5m_input_tokens": 35, "ephemeral_1h_input_tokens": 13800},
                "output_tokens": 13,
                "service_tier": "standard",
                "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
            },
            Usage(
                input_tokens=25353,
                cached_tokens=11515,
                cache_write_tokens=13835,
                cache_write_1h_tokens=13800,
                output_tokens=13,
                service_tier="standard",
                server_tools={"web_search_requests": 2},
            ),
        ),
        # the same with only the parts
        (
            {
                "input_tokens": 1,
                "cache_read_input_tokens": 0,
                "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 4},
                "output_tokens": 1,
            },
            Usage(input_tokens=7, cached_tokens=0, cache_write_tokens=6, cache_write_1h_tokens=4, output_tokens=1),
        ),
        # a proxy that gives both shapes at once: 100 = 10 + 80 + 10
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 80,
                "cache_creation_input_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 80},
            },
            Usage(input_tokens=100, cached_tokens=80, cache_write_tokens=10, output_tokens=5),
        ),
        (None, Usage()),
        ({}, Usage()),
    ],
)
def test_shapes(raw: dict[str, Any] | None, expected: Usage) -> None:
    assert normalise(raw) == expected


def test_cached_above_prompt_is_not_believed() -> None:
    usage = normalise({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}})
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (None, None, 3)
    assert usage.problem is not None
    assert "64" in usage.problem
    assert "10" in usage.problem


@pytest.mark.parametrize("bad", [-1, "12", True, 1.5, [3]])
def test_a_count_that_is_none_is_unknown_never_zero(bad: Any) -> None:
    usage = normalise({"prompt_tokens": bad, "completion_tokens": 3})
    assert usage.input_tokens is None
    assert usage.output_tokens == 3
    assert usage.problem is not None
    assert "prompt_tokens" in usage.problem


def test_spellings_that_disagree_are_flagged() -> None:
    usage = normalise(
        {"prompt_tokens": 500, "prompt_cache_hit_tokens": 128, "prompt_tokens_details": {"cached_tokens": 256}}
    )
    assert usage.cached_tokens is None
    assert usage.input_tokens == 500
    assert usage.problem is not None
    assert "disagree" in usage.problem


def test_reasoning_above_completion_without_totals() -> None:
    usage = normalise(
        {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 9}}
    )
    assert (usage.output_tokens, usage.reasoning_tokens) == (None, None)
    assert usage.problem is not None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        # Anthropic's input leaves out what was read: without that count the prompt's length is not known
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 5, "output_tokens": 1},
            "cache_read_input_tokens is not reported",
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": None, "cache_creation_input_tokens": 5, "output_tokens": 1},
            "cache_read_input_tokens is not reported",
        ),
        ({"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 1}, "cache_creation_input_tokens is not"),
        ({"prompt_tokens": 100, "input_tokens": 30, "completion_tokens": 1}, "prompt_tokens 100 and input_tokens 30"),
        (
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 10,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 10},
            },
            "cache_creation_input_tokens 10 is not 5m 10 + 1h 10",
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "output_tokens": 3}, "completion_tokens 2 and output_tokens 3"),
        ({"prompt_tokens": 2**60, "completion_tokens": 2}, "prompt_tokens is above"),
        ({"prompt_tokens": 9, "completion_tokens": 2, "server_tool_use": {"search": -1}}, "search is negative"),
    ],
)
def test_reports_that_do_not_add_up(raw: dict[str, Any], says: str) -> None:
    usage = normalise(raw)
    assert usage.problem is not None
    assert says in usage.problem


FIELDS = (
    "prompt_tokens",
    "input_tokens",
    "completion_tokens",
    "output_tokens",
    "total_tokens",
    "prompt_cache_hit_tokens",
    "prompt_cache_miss_tokens",
    "cached_tokens",
    "cached_input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
VALUES = st.one_of(st.none(), st.integers(-2, 300), st.sampled_from([True, "7", 3.5, 8.0, [1], {}]))
PARTS = (
    "cached_tokens",
    "cache_write_tokens",
    "created_cache_tokens",
    "reasoning_tokens",
    "image_tokens",
    "ephemeral_5m_input_tokens",
    "ephemeral_1h_input_tokens",
)
DETAILS = st.dictionaries(st.sampled_from(PARTS), VALUES)
NESTED = ("prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "cache_creation")


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.dictionaries(st.sampled_from(NESTED), DETAILS))
def test_whatever_is_reported_no_count_contradicts_another(flat: dict[str, Any], nested: dict[str, Any]) -> None:
    usage = normalise(flat | nested)
    counts = (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens)
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)
    if usage.input_tokens is not None:
        assert (usage.cached_tokens or 0) <= usage.input_tokens
        assert (usage.image_tokens or 0) <= usage.input_tokens
    if usage.output_tokens is not None:
        assert (usage.reasoning_tokens or 0) <= usage.output_tokens
    if usage.cache_write_tokens is not None:
        assert (usage.cache_write_1h_tokens or 0) <= usage.cache_write_tokens
    negative = [name for name, value in flat.items() if type(value) is int and value < 0 and name != "total_tokens"]
    assert not negative or usage.problem is not None


def test_not_an_object() -> None:
    assert normalise([1, 2]).problem is not None


def _recorded_usages(name: str) -> list[dict[str, Any]]:
    """The usage mappings of a cassette's answers: two levels of YAML, keys and whole numbers."""
    found: list[dict[str, Any]] = []
    inner: dict[str, Any] | None = None
    for line in (Path(DATA or "") / "cassettes" / f"{name}.yaml").read_text("utf-8").splitlines():
        indent, (key, _, value) = len(line) - len(line.lstrip()), line.strip().partition(": ")
        if indent == 6 and line.strip() == "usage:":
            found.append({})
            inner = found[-1]
        elif inner is not None and indent == 8:
            if key.endswith(":"):
                inner = found[-1][key[:-1]] = {}
            else:
                found[-1][key] = int(value) if value.isdigit() else value
        elif inner is not None and indent == 10:
            inner[key] = int(value) if value.isdigit() else None
        else:
            inner = None
    return [usage for usage in found if "prompt_tokens" in usage]


DATA = os.environ.get("KVBENCH_TEST_DATA")


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (
            "test_deepseek_deferred_capability_with_thinking",
            [(563, 512, None, 116, 60), (875, 0, None, 79, 26), (976, 896, None, 61, 25)],
        ),
        ("test_mistral_history_uses_prompt_cache", [(253, 0, None, 5, None), (268, 224, None, 5, None)]),
        ("test_openai_chat_prompt_cache_e2e", [(4020, 0, 4012, 4, 0), (4020, 4012, 0, 4, 0)]),
    ],
)
def test_recorded_answers(name: str, counts: list[tuple[int | None, ...]]) -> None:
    usages = [normalise(raw) for raw in _recorded_usages(name)]
    assert [
        (u.input_tokens, u.cached_tokens, u.cache_write_tokens, u.output_tokens, u.reasoning_tokens) for u in usages
    ] == counts
    assert all(u.problem is None for u in usages)
