"""Anonymised traces: no text and no name is in them, and what was shared still is."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native_lines import hits, objects, turns, whole
from tests.public_traces import data

from kvbench.errors import UsageError
from kvbench.traces.bundled import resolve_trace
from kvbench.traces.importing import open_workload, validate_workload
from kvbench.traces.tokenizers import load_tokenizer
from kvbench.traces.writers.convert import Conversion

KEY = bytes(range(32))
NAMES = re.compile(r"s\d+(\.\d+)?|m\d+|\d+")
WORDS = {"anonymous", "local", "subagent", "unknown", "completed", "async_launched", "n", "s"}
FIELDS = {
    *("kvbench_trace", "name", "block_size", "source"),
    *("session_id", "turn", "parent", "after", "start_s", "delay_s", "input_tokens", "output_tokens", "keep_blocks"),
    *("hash_ids", "model", "recorded", "at_s", "ttft_s", "e2e_s", "cached_tokens", "usage", "streamed"),
    *("timestamp", "input_length", "output_length", "delay"),
    *("id", "models", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals", "t", "type", "in", "out"),
    *("api_time", "think_time", "ttft", "agent_id", "subagent_type", "duration_ms", "status"),
    *("parent_tokens", "subagent_tokens", "combined_tokens", "subagent_count", "input", "output"),
}
USAGE = {"prompt_tokens", "completion_tokens", "prompt_tokens_details", "cache_creation_input_tokens"}
SECRET = "zqzq"


def secrets() -> list[dict[str, Any]]:
    """A trace with a secret in every place a text can be."""
    made = iter(range(1000))

    def secret() -> str:
        return f"{SECRET}{next(made)}"

    tool = {"type": "function", "function": {"name": secret(), "description": secret(), secret(): secret()}}
    call = {"id": secret(), "type": "function", "function": {"name": secret(), "arguments": json.dumps({secret(): 1})}}
    usage = {
        "prompt_tokens": 9,
        "service_tier": secret(),
        secret(): 4,
        "completion_tokens": secret(),
        "prompt_tokens_details": {"cached_tokens": 3, secret(): secret()},
        "cache_creation_input_tokens": 0,
    }
    long = " ".join(secret() for _ in range(60))
    prefix, root, child, model = secret(), secret(), secret(), secret()
    return [
        {"kvbench_trace": 1, "name": secret(), "source": secret(), secret(): secret()},
        {"prefix": prefix, "messages": [{"role": "system", "content": long}], "tools": [tool], secret(): [secret()]},
        {
            "session_id": root, "turn": 0, "start_s": 4, "prefix": prefix, "model": model, "output_tokens": 3,
            "append": [
                {"role": "user", "name": secret(), "content": [
                    {"type": "text", "text": secret()}, {"type": "image_url", "image_url": {"url": secret()}},
                ]},
            ],
            "recorded": {"e2e_s": 2.5, "ttft_s": 0.5, "cached_tokens": 7, "usage": usage, secret(): secret()},
            "streamed": True, secret(): {"streamed": secret()}, "tool_tokens": secret(), "system_tokens": 12,
        },
        {
            "session_id": child, "turn": 0, "parent": {"session_id": root, "turn": 0, secret(): 1}, "delay_s": 0.5,
            "model": secret(), "tools": [tool], "messages": [{"role": "user", "content": secret()}],
            "subagent_type": secret(), "status": secret(), "output_tokens": 2,
        },
        {
            "session_id": root, "turn": 1, "after": [child], "delay_s": 1.25, "output_tokens": 5, "stop": secret(),
            "append": [
                {"role": "assistant", "content": None, "reasoning_content": secret(), "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": secret()},
            ],
        },
    ]  # fmt: skip


def strings(value: Any) -> Iterator[tuple[str, bool]]:
    """Every string in a JSON value, and whether it is the name of a field."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name, True
            yield from strings(each)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("target", ["native", "mooncake", "weka"])
def test_no_text_and_no_name_is_left(target: str, key: bytes | None, tmp_path: Path, convert: Any) -> None:
    source = tmp_path / f"{SECRET}.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in secrets()))
    if target == "weka" and key is not None:
        with pytest.raises(UsageError, match="local to it"):
            convert(source, target, anonymise=True, key=key)
        return
    made, report = convert(source, target, anonymise=True, block_size=16, key=key)
    assert SECRET not in made.read_text()
    said = {f"anonymised; lengths: {report.facts['lengths']}"}
    for line in objects(made):
        for text, is_field in strings(line):
            assert text in (FIELDS | USAGE if is_field else WORDS | said) or NAMES.fullmatch(text), text
    assert SECRET not in json.dumps(msgspec.to_builtins(report))


def test_structure_times_lengths_and_counts_stay(tmp_path: Path, convert: Any) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in secrets()))
    made, report = convert(source, "native", anonymise=True, block_size=16)
    head, first, second, third = objects(made)
    assert (head["kvbench_trace"], head["name"], head["block_size"]) == (1, "anonymous", 16)
    for line in (first, second, third):
        assert len(line.pop("hash_ids")) + line.pop("keep_blocks", 0) == line.pop("input_tokens") // 16
    assert first == {
        "session_id": "s1", "turn": 0, "start_s": 4.0, "output_tokens": 3, "model": "m1", "streamed": True,
        "system_tokens": 12,
        "recorded": {
            "e2e_s": 2.5, "ttft_s": 0.5, "cached_tokens": 7,
            "usage": {
                "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}, "cache_creation_input_tokens": 0,
            },
        },
    }  # fmt: skip
    # Tree by tree, a session after the other.
    assert second == {"session_id": "s1", "turn": 1, "after": ["s1.1"], "delay_s": 1.25, "output_tokens": 5}
    assert third == {
        "session_id": "s1.1", "turn": 0, "parent": {"session_id": "s1", "turn": 0}, "delay_s": 0.5,
        "output_tokens": 2, "model": "m2",
    }  # fmt: skip
    # Of usage: service_tier, a stranger, completion_tokens that are a text, and a stranger among the details.
    assert report.lost == {"texts": 3, "usage_fields": 4, "extra": 9}
    assert report.notes == {"other_parts": 1}
    assert validate_workload(made).errors == ()


def rendered(path: Path, tokenizer: Any) -> dict[tuple[str, int], list[Hashable]]:
    """The tokens of every prompt by (session, turn): schemas, then messages, each token with its message's role."""
    prefixes: dict[str, dict[str, Any]] = {}
    contexts: dict[str, tuple[list[Any], list[Any]]] = {}
    known: dict[int, list[Hashable]] = {}
    prompts: dict[tuple[str, int], list[Hashable]] = {}

    def tokens(message: dict[str, Any]) -> list[Hashable]:
        if id(message) not in known:
            texts = [message.get("content") or ""]
            if message.get("tool_calls"):
                texts.append(json.dumps(message["tool_calls"], ensure_ascii=False, separators=(",", ":")))
            ids = [token for text in texts for token in tokenizer.encode(text)]
            known[id(message)] = [(message["role"], token) for token in ids]
        return known[id(message)]

    for line in objects(path):
        if "session_id" not in line:
            prefixes[line.get("prefix", "")] = line
            continue
        tools, messages = contexts.setdefault(line["session_id"], ([], []))
        assert "tools" not in line
        if "messages" in line:
            messages.clear()
            tools.clear()
        if "prefix" in line:
            tools[:] = prefixes[line["prefix"]].get("tools", [])
            messages.extend(prefixes[line["prefix"]]["messages"])
        messages.extend(line["messages"] if "messages" in line else line["append"])
        schemas = tokenizer.encode(json.dumps(tools, ensure_ascii=False, separators=(",", ":"))) if tools else []
        prompt: list[Hashable] = [("tools", token) for token in schemas]
        for message in messages:
            prompt.extend(tokens(message))
        prompts[line["session_id"], line["turn"]] = prompt
    return prompts


def test_an_endless_cache_hits_as_on_the_tokens_of_the_source(convert: Any) -> None:
    source = resolve_trace("agent-trace.jsonl")
    tokenizer = load_tokenizer("deepseek")
    made, report = convert(source, "native", anonymise=True, block_size=32, tokenizer=tokenizer)
    prompts = rendered(source, tokenizer)
    lines = turns(made)
    assert len(lines) == len(prompts) == 215
    for prompt, line in zip(prompts.values(), lines.values(), strict=True):
        assert line.fields["input_tokens"] == len(prompt)
    blocks = [[tuple(prompt[at : at + 32]) for at in range(0, len(prompt) - 31, 32)] for prompt in prompts.values()]
    expected = hits(blocks)
    assert hits(whole(line, 32) for line in lines.values()) == expected
    assert sum(expected) > 50_000
    ids = {block for line in lines.values() for block in line.ids}
    assert ids == set(range(1, len(ids) + 1))
    assert report.input_tokens == sum(map(len, prompts.values()))
    assert objects(made)[0]["source"] == "anonymised; lengths: tokenizer deepseek, without the chat template"


def test_a_key_changes_nothing_but_the_ids(convert: Any) -> None:
    source = data("weka", "trace_0274.json")
    plain, _ = convert(source, "native", anonymise=True)
    keyed, _ = convert(source, "native", anonymise=True, key=KEY)
    again, _ = convert(source, "native", anonymise=True, key=KEY)
    other, _ = convert(source, "native", anonymise=True, key=KEY[::-1])
    assert keyed.read_bytes() == again.read_bytes()
    sides = [turns(path) for path in (plain, keyed, other)]
    ids = [{block for line in side.values() for block in line.ids} for side in sides]
    assert len(ids[0]) == len(ids[1]) == len(ids[2])
    assert not ids[1] & ids[2]
    assert all(0 <= block < 1 << 63 for block in ids[1] | ids[2])
    assert [hits(line.ids for line in side.values()) for side in sides].count(
        hits(line.ids for line in sides[0].values())
    ) == 3
    for field in ("input_tokens", "output_tokens", "recorded", "delay_s", "model"):
        values = [[line.fields.get(field) for line in side.values()] for side in sides]
        assert values[0] == values[1] == values[2]


def test_traces_made_with_one_key_agree_about_texts_and_about_nothing_else(write: Any, convert: Any) -> None:
    def trace(tail: str) -> Path:
        text = [{"role": "user", "content": "the same beginning. " * 8 + tail}]
        return write({"session_id": tail, "turn": 0, "append": text}, header={"block_size": None, "name": tail})

    made = [convert(trace(tail), "native", anonymise=True, block_size=8, key=KEY)[0] for tail in ("x" * 99, "y" * 99)]
    first, second = (next(line.ids for line in turns(path).values()) for path in made)
    assert first[:5] == second[:5]
    assert len(first) == len(second) == 8
    assert not set(first[5:]) & set(second[5:])
    smaller, _ = convert(trace("x" * 99), "native", anonymise=True, block_size=4, key=KEY)
    assert not set(turns(smaller)["s1", 0].ids) & set(first)
    hashed = [
        write({"session_id": "h", "turn": 0, "start_s": at, "input_tokens": 8, "hash_ids": [1, 2]}) for at in (0, 1)
    ]
    one, two = (turns(convert(path, "native", anonymise=True, key=KEY)[0])["s1", 0].ids for path in hashed)
    assert not set(one) & set(two)


def test_models_are_told_apart_only_where_there_are_several(write: Any, convert: Any) -> None:
    line = {"session_id": "s", "turn": 0, "input_tokens": 4, "output_tokens": 1, "hash_ids": [1], "model": "secret"}
    made, report = convert(write(line), "native", anonymise=True)
    assert "model" not in turns(made)["s1", 0].fields
    assert report.lost == {"one_model": 1}
    made, _ = convert(write(line, line | {"session_id": "t", "model": "other"}), "native", anonymise=True)
    assert [line.fields["model"] for line in turns(made).values()] == ["m1", "m2"]
    made, _ = convert(write(line), "weka", anonymise=True)
    assert objects(made)[0]["models"] == ["m1"]


@pytest.mark.parametrize(("size", "tokens"), [(6, [11, 11, 11, 1]), (5, [11, 12, 11, 1]), (1, [10, 11, 10, 1])])
def test_an_estimated_length_says_so(size: int, tokens: list[int], write: Any, convert: Any) -> None:
    """41, 47 and 41 characters. 47 are 11.75 tokens: 12, but not where the twelfth would fill a block that is not."""
    source = write(
        {"session_id": "s", "turn": 0, "input_tokens": 70, "append": [{"role": "user", "content": "x" * 41}]},
        {"session_id": "s", "turn": 1, "append": [{"role": "user", "content": "yyyyyy"}]},
        {"session_id": "s", "turn": 2, "messages": [{"role": "user", "content": "z" * 41}]},
        {"session_id": "e", "turn": 0, "append": [{"role": "user", "content": ""}]},
        header={"block_size": None},
    )
    made, report = convert(source, "native", anonymise=True, block_size=size)
    lines = turns(made)
    assert validate_workload(made).errors == ()
    assert [line.fields["input_tokens"] for line in lines.values()] == tokens
    assert report.notes == {"empty_prompts": 1}
    assert report.facts["lengths"] == "estimated at 4 characters a token, without the chat template"
    said = "70 tokens for the turns with text that say theirs, counted as 11 here; texts that it does not hold "
    assert report.facts["lengths the source has"] == said + "are in neither lengths nor ids"


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5), size=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_estimates_of_any_length_make_a_valid_trace(
    lengths: list[int], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, made = (tmp_path_factory.mktemp("t") / name for name in ("source.jsonl", "made.jsonl"))
    turns = [
        {"session_id": "s", "turn": at, "append": [{"role": "user", "content": "x" * n}]}
        for at, n in enumerate(lengths)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in ({"kvbench_trace": 1, "name": "t"}, *turns)))
    with open_workload(source) as trace, made.open("wb") as out:
        Conversion(trace, "native", anonymise=True, block_size=size).write(out.write)
    assert validate_workload(made).errors == ()


@pytest.mark.parametrize("target", ["native", "mooncake", "weka"])
def test_lengths_alone_stay_known_as_such_or_the_report_says_that_they_do_not(
    target: str, tmp_path: Path, convert: Any
) -> None:
    source = tmp_path / "azure.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,480,10\n")
    made, report = convert(source, target, anonymise=True)
    assert report.facts["prefixes"].startswith("not known: the source has lengths alone, and the ids are made up")
    if target == "native":
        assert objects(made)[0]["prefixes"] == "unknown"
    else:
        assert "the file cannot say so" in report.facts["prefixes"]
