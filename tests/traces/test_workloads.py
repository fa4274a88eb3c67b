"""The bundled workload, its recipe, the schema and the specification's examples agree with the reader."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvbench.errors import InputError
from kvbench.model import Turn
from kvbench.traces.bundled import bundled_workloads, resolve_trace
from kvbench.traces.context import ContextBuilder
from kvbench.traces.native import open_trace
from kvbench.traces.synth.load import load_recipe
from kvbench.traces.synth.recipe import synthesis
from kvbench.traces.synth.writer import message_tokens

WORKLOADS = Path(__file__).parents[2] / "workloads"
TRACE = WORKLOADS / "agent-trace.jsonl"
RECIPE = WORKLOADS / "coding-agent.toml"


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    loaded = json.loads((WORKLOADS / "trace.schema.json").read_text())
    Draft202012Validator.check_schema(loaded)
    return Draft202012Validator(loaded)


@pytest.fixture(scope="module")
def turns() -> dict[str, list[Turn]]:
    with open_trace(TRACE) as trace:
        return {session.session_id: list(session.turns) for tree in trace.trees() for session in tree.sessions}


# ------------------------------------------------------------------------------------------------------- recipe


def test_the_recipe_makes_the_committed_bytes() -> None:
    lines: list[bytes] = []
    synthesis(load_recipe(RECIPE), RECIPE.stem).write(lines.append)
    assert b"".join(lines) == TRACE.read_bytes()


def test_the_bundled_trace_is_what_it_says() -> None:
    with open_trace(TRACE) as trace:
        assert trace.warnings == ()
        assert trace.tree_count == 13
        assert trace.session_count == 18
        assert 180 <= trace.turn_count <= 230
        fan_outs = [tree for tree in trace.trees() if len(tree.sessions) > 1]
        assert sorted(len(tree.sessions) - 1 for tree in fan_outs) == [2, 3]
        for tree in fan_outs:
            joins = [turn for turn in tree.sessions[0].turns if turn.after]
            assert [set(turn.after) for turn in joins] == [{s.session_id for s in tree.sessions[1:]}]
            assert all(session.turns[0].prefix == "explorer" for session in tree.sessions[1:])
        assert len(trace.prefixes["coder"].tools) == 10
        described = (
            f"{trace.session_count} sessions of coding agents (13 roots, 5 sub-agents), {trace.turn_count} turns"
        )
        assert described in (WORKLOADS / "README.md").read_text()
    assert TRACE.stat().st_size < 2_000_000


def test_an_answer_is_as_long_as_the_turn_before_says(turns: dict[str, list[Turn]]) -> None:
    checked = 0
    for session in turns.values():
        for before, after in pairwise(session):
            (answer,) = (m for m in (after.append or after.messages or ()) if m["role"] == "assistant")
            assert message_tokens(answer) == before.output_tokens
            checked += 1
    assert checked == sum(map(len, turns.values())) - len(turns)


def test_lengths_pauses_and_work_are_as_the_demo_needs(turns: dict[str, list[Turn]]) -> None:
    everything = [turn for session in turns.values() for turn in session]
    output = sorted(turn.output_tokens or 0 for turn in everything)
    assert output[0] >= 20
    assert output[-1] <= 400
    assert 70 <= output[len(output) // 2] <= 130
    pauses = [turn.delay_s for turn in everything if turn.turn]
    assert min(pauses) == 0.2
    assert 120 < max(pauses) < 600
    assert max(sum(turn.output_tokens or 0 for turn in session) for session in turns.values()) <= 1800
    with open_trace(TRACE) as trace:
        longest = 0
        for session in turns.values():
            builder = ContextBuilder(trace.prefixes)
            for turn in session:
                context = builder.next(turn)
            assert context.messages is not None
            assert context.messages[0]["role"] == "system"
            longest = max(longest, sum(map(message_tokens, context.messages)))
    assert 18_000 <= longest <= 25_000


def test_all_tool_calls_have_ids_of_their_own_and_valid_arguments(turns: dict[str, list[Turn]]) -> None:
    ids = []
    for session in turns.values():
        for turn in session:
            for message in turn.append or turn.messages or ():
                for call in message.get("tool_calls", ()):
                    ids.append(call["id"])
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert len(ids) > 150
    assert len(set(ids)) == len(ids)


# ------------------------------------------------------------------------------------------- schema and examples


def test_the_bundled_trace_follows_the_schema(schema: Draft202012Validator) -> None:
    for line in TRACE.read_text().splitlines():
        schema.validate(json.loads(line))


BAD_LINES: list[dict[str, Any]] = [
    {},
    {"kvbench_trace": 2},
    {"kvbench_trace": 1, "block_size": 0},
    {"prefix": "p"},
    {"prefix": "p", "messages": [], "tools": []},
    {"prefix": "", "tools": [{}]},
    {"session_id": "s", "append": []},
    {"session_id": "", "turn": 0, "append": []},
    {"session_id": "s", "turn": -1, "append": []},
    {"session_id": "s", "turn": 0},
    {"session_id": "s", "turn": 0, "append": [], "messages": []},
    {"session_id": "s", "turn": 0, "append": [], "start_s": -1},
    {"session_id": "s", "turn": 0, "append": [], "delay_s": 1},
    {"session_id": "s", "turn": 1, "append": [], "start_s": 1},
    {"session_id": "s", "turn": 1, "append": [], "parent": {"session_id": "r", "turn": 0}},
    {"session_id": "s", "turn": 0, "append": [], "parent": {"session_id": "r", "turn": 0}, "start_s": 1},
    {"session_id": "s", "turn": 0, "append": [], "parent": {"session_id": "r"}},
    {"session_id": "s", "turn": 0, "append": [], "output_tokens": 0},
    {"session_id": "s", "turn": 0, "append": [], "keep_blocks": 1},
    {"session_id": "s", "turn": 0, "hash_ids": [1]},
    {"session_id": "s", "turn": 0, "hash_ids": [1], "input_tokens": 10, "prefix": "p"},
    {"session_id": "s", "turn": 0, "append": [{"content": "x"}]},
    {"session_id": "s", "turn": 0, "append": [{"role": "user", "content": 1}]},
    {"session_id": "s", "turn": 0, "append": [{"role": "user", "content": [{"text": "x"}]}]},
    {"session_id": "s", "turn": 0, "append": [], "tools": [{"type": "function"}]},
    {"session_id": "s", "turn": 0, "append": [], "recorded": {"ttft_s": -1}},
    {"session_id": "s", "turn": 0, "append": [], "after": [1]},
]


@pytest.mark.parametrize("line", BAD_LINES, ids=json.dumps)
def test_schema_and_reader_refuse_the_same_lines(
    schema: Draft202012Validator, tmp_path: Path, line: dict[str, Any]
) -> None:
    assert not schema.is_valid(line)
    path = tmp_path / "t.jsonl"
    good = [
        {"kvbench_trace": 1, "block_size": 10},
        {"prefix": "p", "tools": [{}]} if line.get("prefix") != "p" or "session_id" in line else {},
        {"session_id": "r", "turn": 0, "append": []},
    ]
    if line.get("turn") == 1:
        good.append({"session_id": "s", "turn": 0, "append": []})
    lines = [line] if "kvbench_trace" in line else [*filter(None, good), line]
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    with pytest.raises(InputError) as caught:
        open_trace(path)
    assert caught.value.line == len(lines)


def _examples() -> list[list[str]]:
    text = (WORKLOADS / "README.md").read_text()
    return [block.strip().splitlines() for block in re.findall(r"```jsonl\n(.*?)```", text, re.DOTALL)]


def test_the_specifications_examples_can_be_read(schema: Draft202012Validator, tmp_path: Path) -> None:
    examples = _examples()
    for block in examples:
        for line in block:
            schema.validate(json.loads(line))
    small, *parts = examples
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(small) + "\n")
    with open_trace(path) as trace:
        assert (trace.tree_count, trace.session_count, trace.turn_count) == (1, 2, 3)
        assert trace.warnings == ()
    path.write_text("\n".join(line for part in parts for line in part) + "\n")
    with open_trace(path) as trace:
        assert trace.header.block_size == 64
        assert [entry.root_id for entry in trace.tree_entries] == ["s1", "s2", "h7"]


def test_every_field_of_the_format_is_in_an_example_and_described() -> None:
    shown: set[str] = set()
    for block in _examples():
        for line in block:
            shown |= json.loads(line).keys()
    schema = json.loads((WORKLOADS / "trace.schema.json").read_text())["$defs"]
    known = {*schema["header"]["properties"], *schema["shared_prompt"]["properties"], *schema["turn"]["properties"]}
    turn_fields = set(Turn.__struct_fields__) - {"line", "extra"}
    assert turn_fields == set(schema["turn"]["properties"])
    assert shown == known
    text = (WORKLOADS / "README.md").read_text()
    assert [field for field in sorted(known) if f"| `{field}` |" not in text] == []


# -------------------------------------------------------------------------------------------------------- names


def test_names_of_bundled_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_trace("agent-trace.jsonl").read_bytes() == TRACE.read_bytes()
    assert resolve_trace("agent-trace") == resolve_trace("agent-trace.jsonl")
    assert "agent-trace.jsonl" in bundled_workloads()
    (tmp_path / "agent-trace.jsonl").write_text("mine")
    assert resolve_trace("agent-trace.jsonl") == Path("agent-trace.jsonl")
    for name in ("none.jsonl", "../workloads/agent-trace.jsonl", "", "x" * 5000, "a\0b"):
        with pytest.raises(InputError):
            resolve_trace(name)
    with pytest.raises(InputError) as caught:
        resolve_trace("none.jsonl")
    assert caught.value.hint is not None
    assert "agent-trace.jsonl" in caught.value.hint
