"""Parts, merges and copies of traces: what is made is a trace again, and shares what its rule says and nothing else."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.public_traces import data

from kvbench.errors import InputError, UsageError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload, validate_workload
from kvbench.traces.synth.load import load_recipe, resolve_recipe
from kvbench.traces.synth.recipe import synthesis
from kvbench.traces.transforming.plan import Transform
from kvbench.traces.transforming.transform import TransformReport, transform

Line = dict[str, Any]


def write(path: Path, *lines: Line) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def made(sources: list[Path], **wanted: Any) -> tuple[list[Line], TransformReport]:
    """The lines of the result, which is a valid trace."""
    raw: list[bytes] = []
    with ExitStack() as stack:
        opened = [stack.enter_context(open_workload(source)) for source in sources]
        report = transform(opened, Transform(**wanted), raw.append)
    out = sources[0].parent / "made.jsonl"
    out.write_bytes(b"".join(raw))
    found = validate_workload(out)
    assert (found.errors, found.turns) == ((), report.turns)
    return [json.loads(line) for line in raw], report


def turns(lines: list[Line]) -> list[Line]:
    return [line for line in lines if "session_id" in line]


def prompts(lines: list[Line]) -> list[list[int]]:
    """All ids of each turn's prompt."""
    held: dict[str, list[int]] = {}
    out = []
    for line in turns(lines):
        ids = held.get(line["session_id"], [])[: line.get("keep_blocks", 0)] + line["hash_ids"]
        held[line["session_id"]] = ids
        out.append(ids)
    return out


def hits(chains: list[list[int]]) -> int:
    """Blocks that an unbounded cache hits: the leading ones whose whole prefix was sent before."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for chain in chains:
        heads = [tuple(chain[:n]) for n in range(1, len(chain) + 1)]
        total += sum(head in seen for head in heads)
        seen.update(heads)
    return total


HASHED = [
    {"kvbench_trace": 1, "name": "h", "block_size": 10, "more": 1},
    {"session_id": "a", "turn": 0, "start_s": 1, "input_tokens": 30, "hash_ids": [1, 2, 30]},
    {"session_id": "a", "turn": 1, "delay_s": 50, "input_tokens": 50, "keep_blocks": 3, "hash_ids": [31, 32]},
    {"session_id": "a.x", "turn": 0, "parent": {"session_id": "a", "turn": 0}, "delay_s": 9, "input_tokens": 40,
     "hash_ids": [1, 2, 30, 77]},
    {"session_id": "b", "turn": 0, "start_s": 5, "input_tokens": 35, "hash_ids": [1, 2, 90, 91]},
    {"session_id": "c", "turn": 0, "start_s": 9, "input_tokens": 10, "hash_ids": [500], "output_tokens": 3},
]  # fmt: skip


@pytest.fixture
def hashed(tmp_path: Path) -> Path:
    return write(tmp_path / "h.jsonl", *HASHED)


# ------------------------------------------------------------------------------------------------------- parts


def test_a_part_by_session_keeps_everything_of_its_trees(hashed: Path) -> None:
    lines, report = made([hashed], sessions=("a", "c*"))
    assert turns(lines) == turns(HASHED[:4] + HASHED[5:])
    assert lines[0]["more"] == 1
    assert (report.trees, report.sessions, report.turns, report.source_trees) == (2, 3, 4, 3)


@pytest.mark.parametrize(("window", "roots"), [((5, None), "bc"), ((None, 5), "a"), ((1, 9), "ab"), ((2, 6), "b")])
def test_a_window_takes_trees_that_start_in_it(hashed: Path, window: tuple[Any, Any], roots: str) -> None:
    lines, _ = made([hashed], from_s=window[0], until_s=window[1])
    assert [line["session_id"] for line in turns(lines) if line["turn"] == 0 and "parent" not in line] == list(roots)


def test_what_fits_nothing_is_refused(hashed: Path) -> None:
    with pytest.raises(UsageError, match=r'--session "a\.x" fits no root session') as caught:
        made([hashed], sessions=("a.x",))
    assert caught.value.hint is not None
    assert "root sessions are a, b, c" in caught.value.hint
    with pytest.raises(InputError, match=r"h\.jsonl: no tree of it is wanted") as refused:
        made([hashed], from_s=100)
    assert refused.value.hint == "its 3 trees start from 1 s to 9 s of trace time"


def test_pauses_are_capped(hashed: Path) -> None:
    lines, report = made([hashed], max_pause_s=9.5)
    assert [line.get("delay_s") for line in turns(lines)] == [None, 9.5, 9, None, None]
    assert report.pauses_capped == 1
    lines, _ = made([hashed], max_pause_s=0)
    assert all(not line.get("delay_s") for line in turns(lines))
    assert [line.get("start_s") for line in turns(lines)] == [1, None, None, 5, 9]


# ------------------------------------------------------------------------------------------- copies of hash ids


def test_dates_of_the_source_go_with_the_pauses_that_are_capped(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"kvbench_trace": 1, "block_size": 4},
        {"session_id": "a", "turn": 0, "input_tokens": 4, "hash_ids": [1], "recorded": {"at_s": 0, "e2e_s": 2}},
        {"session_id": "a", "turn": 1, "delay_s": 90, "input_tokens": 4, "hash_ids": [2], "recorded": {"at_s": 92}},
    )
    capped, _ = made([path], max_pause_s=9)
    assert [line.get("recorded") for line in turns(capped)] == [{"e2e_s": 2}, {}]
    kept, _ = made([path])
    assert [line["recorded"]["at_s"] for line in turns(kept)] == [0, 92]


def test_copies_share_what_two_trees_share_and_nothing_else(hashed: Path) -> None:
    lines, report = made([hashed], copies=3, spread_s=100.0, seed=1)
    # 3+5+4+4+1 = 17 blocks sent; 1, 2 shared; 30, 31, 32, 77, 90, 91, 500 private
    assert (report.source_blocks.blocks, report.source_blocks.distinct, report.source_blocks.hit_blocks) == (17, 9, 8)
    assert (report.result_blocks.blocks, report.result_blocks.distinct) == (51, 2 + 3 * 7)
    assert report.shared_blocks == 2
    assert report.result_blocks.hit_blocks == hits(prompts(lines)) == 51 - 23
    assert [len(turns(lines)), report.turns, report.sessions, report.trees] == [15, 15, 12, 9]
    by_name = {(line["session_id"], line["turn"]): line for line in turns(lines)}
    assert by_name["a.x~2", 0]["parent"] == {"session_id": "a~2", "turn": 0}
    first, second = by_name["a", 0]["hash_ids"], by_name["a~2", 0]["hash_ids"]
    assert first[:2] == second[:2] == by_name["b~3", 0]["hash_ids"][:2]
    assert first[2] != second[2]
    assert by_name["a.x~2", 0]["hash_ids"][2] == second[2]
    assert report.warnings[0].code == "copies_raise_hits"


def test_copies_start_later_by_the_seed_and_stand_in_order(hashed: Path) -> None:
    lines, report = made([hashed], copies=3, spread_s=100.0, seed=1)
    assert report.shifts_s[0] == 0
    assert len(set(report.shifts_s)) == 3
    assert all(0 <= shift <= 100 for shift in report.shifts_s)
    roots = [line for line in turns(lines) if line["turn"] == 0 and "parent" not in line]
    for line in roots:
        name, _, copy = line["session_id"].partition("~")
        shift = report.shifts_s[int(copy or 1) - 1]
        assert line["start_s"] == pytest.approx({"a": 1, "b": 5, "c": 9}[name] + shift)
    assert all(a["start_s"] <= b["start_s"] for a, b in pairwise(roots))
    assert made([hashed], copies=3, spread_s=100.0, seed=1)[0] == lines
    assert made([hashed], copies=3, spread_s=100.0, seed=2)[0] != lines
    assert made([hashed], copies=2, seed=1)[1].shifts_s[1] <= (9 - 1) / 2


def test_how_many_trees_make_a_thing_shared_can_be_said(hashed: Path) -> None:
    lines, report = made([hashed], copies=2, shared_by=3)
    assert report.shared_blocks == 0
    assert report.result_blocks.hit_blocks == hits(prompts(lines)) == 2 * 8
    assert report.warnings == ()


def test_a_tree_without_anything_of_its_own_is_counted(tmp_path: Path) -> None:
    same = [{"session_id": name, "turn": 0, "input_tokens": 10, "hash_ids": [1]} for name in ("a", "b")]
    path = write(tmp_path / "h.jsonl", {"kvbench_trace": 1, "block_size": 10}, *same)
    lines, report = made([path], copies=2)
    assert report.copies_without_private == 2
    assert hits(prompts(lines)) == 3


CHAINS = st.lists(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(trees=CHAINS, copies=st.integers(1, 3), shared_by=st.integers(2, 3))
def test_hits_of_copies_equal_a_brute_force_count(
    tmp_path_factory: pytest.TempPathFactory, trees: list[list[list[int]]], copies: int, shared_by: int
) -> None:
    """Random trees over a small alphabet; an id stands for a path, so equal paths are equal ids."""
    ids: dict[tuple[int, ...], int] = {}
    owners: dict[tuple[int, ...], set[int]] = {}
    lines: list[Line] = [{"kvbench_trace": 1, "block_size": 8}]
    sent = 0
    for t, tree in enumerate(trees):
        for turn, path in enumerate(tree):
            heads = [tuple(path[:n]) for n in range(1, len(path) + 1)]
            for head in heads:
                owners.setdefault(head, set()).add(t)
            sent += len(heads)
            named = [ids.setdefault(head, len(ids)) for head in heads]
            lines.append({"session_id": f"s{t}", "turn": turn, "input_tokens": 8 * len(path) + 1, "hash_ids": named})
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", *lines)
    got, report = made([path], copies=copies, shared_by=shared_by)
    shared = sum(len(who) >= shared_by for who in owners.values())
    assert report.result_blocks.hit_blocks == hits(prompts(got))
    if copies > 1:
        assert hits(prompts(got)) == copies * sent - shared - copies * (len(owners) - shared)


# ------------------------------------------------------------------------------------------------ copies of text

LONG = "The repository is laid out as follows, and these rules hold in it. " * 4


def say(role: str, text: str) -> Line:
    return {"role": role, "content": text}


TEXT = [
    {"kvbench_trace": 1, "name": "t"},
    {"prefix": "p", "messages": [say("system", "You are kind.")]},
    {"session_id": "a", "turn": 0, "prefix": "p", "append": [say("user", LONG + "Fix the parser.")]},
    {"session_id": "a", "turn": 1, "append": [say("assistant", "Fixed."), say("user", "Thanks.")]},
    {"session_id": "b", "turn": 0, "prefix": "p", "append": [say("user", LONG + "Speed up the tests.")]},
    {"session_id": "c", "turn": 0, "append": [say("system", "Inline."), say("user", "One")]},
    {"session_id": "d", "turn": 0, "append": [say("system", "Inline."), say("user", "Two")]},
    {"session_id": "e", "turn": 0, "tools": [{"type": "function", "function": {"name": "f"}}],
     "append": [say("user", "One")]},
    {"session_id": "g", "turn": 0, "append": [say("user", "same")]},
    {"session_id": "g", "turn": 1, "append": [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"}]},
    {"session_id": "i", "turn": 0, "append": [say("user", "same")]},
    {"session_id": "i", "turn": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
]  # fmt: skip


def test_copied_text_is_new_from_where_it_differs_from_other_trees(tmp_path: Path) -> None:
    lines, report = made([write(tmp_path / "t.jsonl", *TEXT)], copies=2)
    assert lines[1] == TEXT[1]
    assert [line for line in lines if "~" not in line.get("session_id", "~")] == turns(TEXT)
    copied = {(line["session_id"], line["turn"]): line for line in turns(lines)}
    common = len(LONG) // 64 * 64
    (asked,) = copied["a~2", 0]["append"]
    assert asked["content"] == LONG[:common] + "[copy 2] " + LONG[common:] + "Fix the parser."
    assert copied["a~2", 1]["append"] == TEXT[3]["append"]
    (asked,) = copied["b~2", 0]["append"]
    assert asked["content"].startswith(LONG[:common] + "[copy 2] ")
    assert copied["c~2", 0]["append"] == [say("system", "Inline."), say("user", "[copy 2] One")]
    assert copied["e~2", 0]["tools"][0]["function"] == {"name": "f", "description": "[copy 2] "}
    assert copied["e~2", 0]["append"] == [say("user", "[copy 2] One")]
    assert copied["g~2", 0]["append"] == [say("user", "same")]
    assert copied["g~2", 1]["append"][0]["content"] == "[copy 2] "
    assert copied["g~2", 1]["append"][1] == TEXT[9]["append"][1]
    assert copied["i~2", 1]["messages"][0]["content"] == [
        {"type": "text", "text": "[copy 2] "},
        {"type": "text", "text": "x"},
    ]
    assert (report.copies_without_private, report.source_blocks.hit_rate) == (0, None)


def test_copies_of_the_bundled_trace_share_its_prompts_only() -> None:
    with open_workload(Path(__file__).parents[2] / "workloads" / "agent-trace.jsonl") as trace:
        raw: list[bytes] = []
        report = transform([trace], Transform(copies=2), raw.append)
    first: dict[str, str] = {}
    for line in turns([json.loads(line) for line in raw]):
        if line["turn"] == 0:
            first[line["session_id"]] = line["append"][0]["content"]
    assert len(first) == 36
    assert report.turns == 2 * 215
    for name, text in first.items():
        if "~" in name:
            assert text == "[copy 2] " + first[name.partition("~")[0]]


@pytest.mark.parametrize("recipe", [None, "tool-chat"])
def test_copied_text_hits_what_a_count_of_its_blocks_predicts(tmp_path: Path, recipe: str | None) -> None:
    """Blocks of 16 estimated tokens: a marker moves what follows it, and may cost or save a block a context."""
    source = Path(__file__).parents[2] / "workloads" / "agent-trace.jsonl"
    if recipe is not None:
        source = tmp_path / "made.jsonl"
        with source.open("wb") as out:
            synthesis(load_recipe(resolve_recipe(recipe)), recipe).write(out.write)
    trees_with = dict[int, set[str]]()
    for root, chain in block_chains(source):
        for block in chain:
            trees_with.setdefault(block, set()).add(root)
    shared = sum(len(roots) > 1 for roots in trees_with.values())
    copied = tmp_path / "copied.jsonl"
    with open_workload(source) as trace, copied.open("wb") as out:
        report = transform([trace], Transform(copies=3), out.write)
    distinct = len({block for _, chain in block_chains(copied) for block in chain})
    assert shared > 90
    assert abs(distinct - shared - 3 * (len(trees_with) - shared)) <= report.sessions


def block_chains(path: Path) -> list[tuple[str, list[int]]]:
    with open_workload(path) as trace:
        return [(request.root_id, chain) for request, chain in BlockedTrace(trace, block_size=16).in_order()]


# ------------------------------------------------------------------------------------------------------- merging


def test_merged_traces_keep_apart_what_only_looks_the_same(hashed: Path, tmp_path: Path) -> None:
    other = write(
        tmp_path / "o.jsonl",
        {"kvbench_trace": 1, "name": "o", "block_size": 10},
        {"session_id": "a", "turn": 0, "start_s": 1000, "input_tokens": 30, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "turn": 1, "input_tokens": 30, "keep_blocks": 3, "hash_ids": []},
        {"session_id": "z", "turn": 0, "start_s": 1002, "input_tokens": 20, "hash_ids": [1, 4]},
    )
    lines, report = made([hashed, other])
    assert lines[0]["name"] == "h+o"
    names = [line["session_id"] for line in turns(lines)]
    assert names == ["a", "a", "a.x", "a@2", "a@2", "z@2", "b", "c"]
    starts = {line["session_id"]: line.get("start_s") for line in turns(lines) if line["turn"] == 0}
    assert starts == {"a": 0, "a.x": None, "a@2": 0, "z@2": 2, "b": 4, "c": 8}
    assert report.renamed_sources == 1
    assert hits(prompts(lines)) == report.result_blocks.hit_blocks == 8 + 4
    together, report = made([hashed, other], same_ids=True)
    # a@2 sends 1, 2 (sent by a before) and 3 twice; z 1
    assert hits(prompts(together)) == report.result_blocks.hit_blocks == 8 + 6
    assert {block for chain in prompts(together) for block in chain} >= {1, 2, 3, 4, 500}


def test_merged_prompts_of_one_name_stay_what_they_are(tmp_path: Path) -> None:
    def source(name: str, prompt: str, session: str) -> Path:
        return write(
            tmp_path / name,
            {"kvbench_trace": 1},
            {"prefix": "p", "messages": [say("system", prompt)]},
            {"session_id": session, "turn": 0, "prefix": "p", "append": []},
        )

    sources = [source("1.jsonl", "One.", "a"), source("2.jsonl", "Two.", "b"), source("3.jsonl", "One.", "c")]
    lines, report = made(sources)
    assert [(line["prefix"], line["messages"][0]["content"]) for line in lines[1:3]] == [("p", "One."), ("p@2", "Two.")]
    assert [line["prefix"] for line in turns(lines)] == ["p", "p@2", "p"]
    assert report.renamed_sources == 0


def test_a_trace_merged_with_itself_has_no_name_twice(hashed: Path) -> None:
    lines, report = made([hashed, hashed], copies=2)
    firsts = [line["session_id"] for line in turns(lines) if line["turn"] == 0]
    assert len(firsts) == len(set(firsts)) == 16
    assert report.result_blocks.hit_blocks == hits(prompts(lines))


def test_block_sizes_must_agree(hashed: Path, tmp_path: Path) -> None:
    other = write(
        tmp_path / "o.jsonl",
        {"kvbench_trace": 1, "block_size": 16},
        {"session_id": "q", "turn": 0, "input_tokens": 16, "hash_ids": [1]},
    )
    with pytest.raises(
        InputError, match=r"o\.jsonl: block_size: has blocks of 16 tokens, and .*h\.jsonl has blocks of 10"
    ):
        made([hashed, other])
    text = write(tmp_path / "t.jsonl", *TEXT)
    lines, _ = made([text, hashed])
    assert lines[0]["block_size"] == 10
    assert len(turns(lines)) == len(turns(TEXT)) + len(turns(HASHED))


# ------------------------------------------------------------------------------------------------- public traces


def test_copies_of_public_traces_hit_what_their_ids_say(tmp_path: Path) -> None:
    weka = data("weka")
    rows = [json.loads(line) for line in data("mooncake", "conversation_first400.jsonl").read_text().splitlines()]
    with open_workload(weka) as trace:
        raw: list[bytes] = []
        report = transform([trace], Transform(copies=3), raw.append)
        assert report.turns == 3 * trace.turn_count
    # ids of a Weka trace are its own: nothing is shared, three copies hit three times as much
    assert report.result_blocks.hit_blocks == 3 * report.source_blocks.hit_blocks
    (tmp_path / "w.jsonl").write_bytes(b"".join(raw))
    assert validate_workload(tmp_path / "w.jsonl").errors == ()

    with open_workload(data("mooncake", "conversation_first400.jsonl")) as trace:
        report = transform([trace], Transform(copies=2), lambda line: None)
    sent = [block for row in rows for block in row["hash_ids"]]
    in_rows = dict.fromkeys(sent, 0)
    for row in rows:
        for block in set(row["hash_ids"]):
            in_rows[block] += 1
    private = sum(count == 1 for count in in_rows.values())
    assert report.source_blocks.hit_blocks == len(sent) - len(in_rows)
    assert report.result_blocks.hit_blocks == 2 * len(sent) - (len(in_rows) - private) - 2 * private
