from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.public_traces import data

from kvbench.errors import UsageError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload


def write(path: Path, *rows: dict[str, Any], block_size: int = 4) -> Path:
    head = {"kvbench_trace": 1, "name": "t", "block_size": block_size}
    path.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    return path


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chains(path: Path, **options: Any) -> list[tuple[str, int, float, int, list[int]]]:
    with open_workload(path) as trace:
        blocked = BlockedTrace(trace, **options)
        return [(r.session_id, r.turn, r.start_s, r.input_tokens, ids) for r, ids in blocked.in_order()]


def test_hash_ids_in_trace_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"session_id": "late", "turn": 0, "start_s": 5, "input_tokens": 6, "hash_ids": [1, 2]},
        {"session_id": "s", "turn": 0, "start_s": 1, "input_tokens": 9, "hash_ids": [1, 3, 4]},
        {"session_id": "s", "turn": 1, "delay_s": 8, "input_tokens": 17, "keep_blocks": 2, "hash_ids": [5, 6]},
        {"session_id": "tie", "turn": 0, "start_s": 5, "input_tokens": 3, "hash_ids": []},
    )
    assert chains(path) == [
        ("s", 0, 1.0, 9, [1, 3, 4]),
        ("late", 0, 5.0, 6, [1, 2]),
        ("tie", 0, 5.0, 3, []),
        ("s", 1, 9.0, 17, [1, 3, 5, 6]),
    ]
    with open_workload(path) as trace:
        blocked = BlockedTrace(trace)
        deltas = [(r.session_id, r.kept, list(r.new_ids)) for r in blocked.requests()]
        assert blocked.blocking().block_size == 4
        assert blocked.blocking().tokens == "the trace's own lengths and hash ids"
    assert deltas == [("late", 0, [1, 2]), ("s", 0, [1, 3, 4]), ("s", 2, [5, 6]), ("tie", 0, [])]


def test_blocks_named_again_are_the_ones_a_session_had(tmp_path: Path) -> None:
    first = {"session_id": "s", "turn": 0, "input_tokens": 12, "hash_ids": [1, 2, 3]}
    path = write(
        tmp_path / "t.jsonl",
        first,
        {"session_id": "s", "turn": 1, "input_tokens": 16, "hash_ids": [1, 2, 3, 4]},
        {"session_id": "s", "turn": 2, "input_tokens": 16, "keep_blocks": 1, "hash_ids": [2, 3, 5]},
        {"session_id": "s", "turn": 3, "input_tokens": 8, "hash_ids": [1, 2]},
        {"session_id": "s", "turn": 4, "input_tokens": 8, "hash_ids": [2, 1]},
    )
    with open_workload(path) as trace:
        deltas = [(r.kept, list(r.new_ids)) for r in BlockedTrace(trace).requests()]
    assert deltas == [(0, [1, 2, 3]), (3, [4]), (3, [5]), (2, []), (0, [2, 1])]
    assert [ids for *_, ids in chains(path)] == [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2], [2, 1]]


def test_another_block_size_than_the_ids_have_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"session_id": "s", "turn": 0, "input_tokens": 4, "hash_ids": [1]})
    with open_workload(path) as trace:
        assert BlockedTrace(trace, block_size=4).block_size == 4
        with pytest.raises(UsageError, match="stand for 4 tokens each"):
            BlockedTrace(trace, block_size=8)


def test_text_is_cut_at_four_characters_a_token(tmp_path: Path) -> None:
    # blocks of 2 tokens: 8 characters. Session a: 20 characters, 5 tokens, 2 whole blocks; its second turn 33 -> 9, 4.
    path = write(
        tmp_path / "t.jsonl",
        {"session_id": "a", "turn": 0, "append": [user("0123456789"), user("abcdefghij")]},
        {"session_id": "a", "turn": 1, "delay_s": 1, "append": [user("x" * 13)]},
        {"session_id": "b", "turn": 0, "start_s": 2, "append": [user("0123456789"), user("abcdeFGHIJ")]},
        {"session_id": "c", "turn": 0, "start_s": 3, "append": [{"role": "system", "content": "0123456789abcdefghij"}]},
    )
    a0, a1, b, c = chains(path, block_size=2)
    assert [len(found[4]) for found in (a0, a1, b, c)] == [2, 4, 2, 2]
    assert [found[3] for found in (a0, a1, b, c)] == [5, 9, 5, 5]
    assert a1[4][:2] == a0[4] == b[4][:1] + a0[4][1:], "the first 8 characters are a's, the next 8 are not"
    assert b[4][1] != a0[4][1]
    assert not set(c[4]) & set(a0[4]), "another role is another prompt, though the text is the same"
    assert all(block < 0 for found in (a0, a1, b, c) for block in found[4])
    with open_workload(path) as trace:
        blocked = BlockedTrace(trace, block_size=2)
        assert [(r.kept, len(r.new_ids)) for r in blocked.requests()] == [(0, 2), (2, 2), (0, 2), (0, 2)]
        assert blocked.blocking().tokens == "estimated at 4 characters a token, without the chat template"


def test_a_block_stands_for_the_whole_prefix_before_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"session_id": "a", "turn": 0, "append": [user("one-----same----")]},
        {"session_id": "b", "turn": 0, "append": [user("two-----same----")]},
    )
    a, b = chains(path, block_size=2)
    assert len(a[4]) == len(b[4]) == 2
    assert not set(a[4]) & set(b[4])


def test_replaced_contexts_and_tools(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "ask"}}
    path = write(
        tmp_path / "t.jsonl",
        {"prefix": "p", "messages": [{"role": "system", "content": "s" * 40}]},
        {"session_id": "a", "turn": 0, "prefix": "p", "append": [user("u" * 40)]},
        {"session_id": "a", "turn": 1, "messages": [{"role": "system", "content": "s" * 40}, user("v" * 40)]},
        {"session_id": "a", "turn": 2, "tools": [tool], "append": [user("w" * 8)]},
        {"session_id": "b", "turn": 0, "start_s": 1, "prefix": "p", "append": [user("u" * 40), user("u" * 8)]},
    )
    with open_workload(path) as trace:
        found = [
            (r.session_id, r.kept, len(r.new_ids), r.input_tokens) for r in BlockedTrace(trace, block_size=2).requests()
        ]
    tool_chars = len(json.dumps([tool], separators=(",", ":")))
    assert found == [
        ("a", 0, 10, 20),
        ("a", 5, 5, 20),  # the 40 characters of the system message are the same, the user's are not
        ("a", 0, (tool_chars + 88) // 8, -(-(tool_chars + 88) // 4)),  # tool schemas come first: nothing is left
        ("b", 0, 11, 22),
    ]
    a0, b0 = (chains(path, block_size=2)[i][4] for i in (0, 3))
    assert b0[:10] == a0, "a shared prompt is the same in every session"


class Words:
    """One token a word."""

    name, exact = "words", True

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self.known.setdefault(word, len(self.known)) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        raise NotImplementedError


def test_a_tokenizer_that_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"session_id": "a", "turn": 0, "append": [user("one two three"), user("four five")]},
        {"session_id": "b", "turn": 0, "append": [user("one two three"), user("four six")]},
        {"session_id": "c", "turn": 0, "append": [user("one two"), user("three four")]},
    )
    a, b, c = chains(path, block_size=2, tokenizer=Words())
    assert [found[3] for found in (a, b, c)] == [5, 5, 4]
    assert a[4] == b[4]
    assert a[4][0] == c[4][0]
    assert a[4][1] != c[4][1], "a message ends elsewhere"


def test_parts_that_are_no_text_differ_and_count_one_token(tmp_path: Path) -> None:
    def picture(name: str) -> dict[str, Any]:
        part = {"type": "image_url", "image_url": {"url": name}}
        return {"role": "user", "content": [{"type": "text", "text": "abcd"}, part]}

    path = write(
        tmp_path / "t.jsonl",
        {"session_id": "a", "turn": 0, "append": [picture("data:1")]},
        {"session_id": "b", "turn": 0, "append": [picture("data:2")]},
        {"session_id": "c", "turn": 0, "append": [picture("data:1")]},
    )
    a, b, c = chains(path, block_size=2)
    assert a[3] == 2
    assert a[4] == c[4] != b[4]


def test_public_hash_ids_come_through_whole() -> None:
    rows = [json.loads(line) for line in data("mooncake", "conversation_first400.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["timestamp"])
    found = chains(data("mooncake", "conversation_first400.jsonl"))
    assert [(tokens, ids) for _, _, _, tokens, ids in found] == [(row["input_length"], row["hash_ids"]) for row in rows]


def test_weka_requests_by_the_times_that_its_file_writes() -> None:
    """A sub-agent's request is at the entry's t plus its own: reference_weka_lru.py."""
    for path in sorted(data("weka").glob("trace_*.json")):
        rows: list[tuple[float, int, list[int]]] = []
        for entry in json.loads(path.read_text())["requests"]:
            nested = entry["requests"] if entry["type"] == "subagent" else [entry]
            base = entry["t"] if entry["type"] == "subagent" else 0.0
            rows += [(base + request["t"], request["in"], request["hash_ids"]) for request in nested]
        rows.sort(key=lambda row: row[0])
        with open_workload(path) as trace:
            found = list(BlockedTrace(trace, times="recorded").in_order())
        assert [request.start_s for request, _ in found] == pytest.approx([row[0] for row in rows])
        assert [request.input_tokens for request, _ in found] == [row[1] for row in rows]
        ids: dict[int, int] = {}
        renumbered = [[ids.setdefault(block, len(ids) + 1) for block in row[2]] for row in rows]
        theirs: dict[int, int] = {}
        assert [[theirs.setdefault(block, len(theirs) + 1) for block in chain] for _, chain in found] == renumbered


@st.composite
def text_sessions(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    message = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text("ab", max_size=9)})
    messages = st.lists(message, min_size=1, max_size=3)
    tools = st.sampled_from([None, None, [{"n": 1}], [{"n": 2}]])
    made = []
    for _ in range(draw(st.integers(1, 3))):
        turns = []
        for _ in range(draw(st.integers(1, 4))):
            turn: dict[str, Any] = {draw(st.sampled_from(["append", "append", "messages"])): draw(messages)}
            if (schemas := draw(tools)) is not None:
                turn["tools"] = schemas
            turns.append(turn)
        made.append(turns)
    return made


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text_sessions(), st.integers(1, 3))
def test_blocks_of_text_are_equal_where_all_before_them_is(
    tmp_path: Path, made: list[list[dict[str, Any]]], block_size: int
) -> None:
    rows, rendered = [], []
    for number, turns in enumerate(made):
        context: list[dict[str, Any]] = []
        tools: list[dict[str, Any]] = []
        for at, turn in enumerate(turns):
            context = turn["messages"] if "messages" in turn else context + turn["append"]
            tools = turn.get("tools", tools)
            parts = [("tools", json.dumps(tools, separators=(",", ":")))] if tools else []
            parts += [(message["role"], message["content"]) for message in context]
            # a character, and whose first one it is
            rendered.append([(char, role if i == 0 else "") for role, text in parts for i, char in enumerate(text)])
            rows.append({"session_id": f"s{number}", "turn": at, **turn})
    found = chains(write(tmp_path / "random.jsonl", *rows), block_size=block_size)
    found.sort(key=lambda request: request[:2])
    width = 4 * block_size
    meaning: dict[int, tuple[Any, ...]] = {}
    ids: dict[tuple[Any, ...], int] = {}
    for (_, _, _, tokens, chain), characters in zip(found, rendered, strict=True):
        assert tokens == -(-len(characters) // 4)
        assert len(chain) == len(characters) // width
        for k, block in enumerate(chain):
            prefix = tuple(characters[: (k + 1) * width])
            assert meaning.setdefault(block, prefix) == prefix
            assert ids.setdefault(prefix, block) == block
