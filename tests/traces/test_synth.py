"""Traces from recipes: the bundled ones, what a recipe's fields do, and what is said of a wrong recipe."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import InputError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload, validate_workload
from kvbench.traces.synth.load import bundled_recipes, load_recipe, resolve_recipe
from kvbench.traces.synth.recipe import synthesis

Line = dict[str, Any]
RECIPES = ["cache-hostile", "coding-agent", "long-context", "research", "tool-chat"]


def built(path: Path, **options: Any) -> bytes:
    lines: list[bytes] = []
    synthesis(load_recipe(path), path.stem, **options).write(lines.append)
    return b"".join(lines)


def turns(made: bytes) -> list[Line]:
    return [line for line in map(json.loads, made.splitlines()) if "session_id" in line]


def hit_rate(path: Path) -> float:
    """Share of blocks of 16 that an unbounded prefix cache hits."""
    seen: set[int] = set()
    blocks = hits = 0
    with open_workload(path) as trace:
        for _, chain in BlockedTrace(trace, block_size=None if trace.has_hash_ids else 16).in_order():
            blocks += len(chain)
            hits += sum(block in seen for block in chain)
            seen.update(chain)
    return hits / blocks


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each bundled recipe's trace."""
    folder = tmp_path_factory.mktemp("made")
    for name, path in bundled_recipes().items():
        (folder / f"{name}.jsonl").write_bytes(built(path))
    return {name: folder / f"{name}.jsonl" for name in bundled_recipes()}


# --------------------------------------------------------------------------------------------------- bundled ones


def test_there_are_recipes_for_five_families() -> None:
    assert sorted(bundled_recipes()) == RECIPES
    assert all(load_recipe(path).about for path in bundled_recipes().values())
    assert resolve_recipe("research") == resolve_recipe("research.toml")


@pytest.mark.parametrize("name", RECIPES)
def test_each_makes_a_valid_trace_the_same_every_time(made: dict[str, Path], name: str) -> None:
    found = validate_workload(made[name])
    assert (found.errors, found.warnings) == ((), ())
    recipe = bundled_recipes()[name]
    assert built(recipe) == made[name].read_bytes()
    few = built(recipe, sessions=2, seed=99)
    assert few == built(recipe, sessions=2, seed=99) != built(recipe, sessions=2, seed=98)
    header = json.loads(few.splitlines()[0])
    assert header["source"] == f"recipe {name}, seed 99, 2 root sessions"
    assert sum(line["turn"] == 0 and "parent" not in line for line in turns(few)) == 2


def test_the_texts_are_finished(made: dict[str, Path]) -> None:
    for name in ("research", "tool-chat"):
        assert re.findall(r"<[a-z]+\d?>", made[name].read_text()) == []


def test_research_fans_out_in_rounds_and_joins_each(made: dict[str, Path]) -> None:
    lines = turns(made["research"].read_bytes())
    roots = {line["session_id"] for line in lines if line["turn"] == 0 and "parent" not in line}
    assert len(roots) == 6
    for root in roots:
        called: dict[int, set[str]] = {}
        for line in lines:
            if line.get("parent", {}).get("session_id") == root:
                called.setdefault(line["parent"]["turn"], set()).add(line["session_id"])
        waits = {line["turn"]: line["after"] for line in lines if line["session_id"] == root and "after" in line}
        assert sorted(called) == [1, 3, 5]
        assert {turn - 1: set(names) for turn, names in waits.items()} == called
        assert 3 <= len(called[1]) <= 6
        assert 2 <= len(called[5]) <= 4
    results = [message for line in lines if "after" in line for message in line["append"] if message["role"] == "tool"]
    assert len(results) == sum(len(line["after"]) for line in lines if "after" in line)


def test_hostile_prompts_are_hardly_ever_found_again(made: dict[str, Path], tmp_path: Path) -> None:
    """The same conversations as tool-chat's first twelve, but for tools and the first line of each prompt."""
    kind = tmp_path / "kind.jsonl"
    kind.write_bytes(built(bundled_recipes()["tool-chat"], sessions=12))
    assert hit_rate(kind) == pytest.approx(0.920, abs=0.0005)  # as docs/synth.md says
    assert hit_rate(made["cache-hostile"]) == pytest.approx(0.058, abs=0.0005)
    lines = turns(made["cache-hostile"].read_bytes())
    orders = [tuple(tool["function"]["name"] for tool in line["tools"]) for line in lines]
    assert len(set(orders)) == len(lines)
    assert len({tuple(sorted(order)) for order in orders}) == 1
    for before, after in pairwise(lines):
        assert re.match(r"The current time is 2026-03-02T09:\d\d:\d\dZ\.\n\nYou are", after["messages"][0]["content"])
        if before["session_id"] == after["session_id"]:
            assert before["messages"][0]["content"] != after["messages"][0]["content"]
            assert before["messages"][1:] == after["messages"][1 : len(before["messages"])]


def test_a_million_tokens_stay_linear(made: dict[str, Path]) -> None:
    lines = turns(made["long-context"].read_bytes())
    longest = {line["session_id"]: 0 for line in lines}
    for line in lines:
        longest[line["session_id"]] = max(longest[line["session_id"]], line["input_tokens"])
    assert all(800_000 < tokens <= 1_000_000 for tokens in longest.values())
    assert sum(line["input_tokens"] for line in lines) > 200 * 2**20
    # An id is named once a session, 7 characters and a comma with its space at most
    assert sum(len(line["hash_ids"]) for line in lines) == sum(tokens // 64 for tokens in longest.values())
    assert made["long-context"].stat().st_size < 9 * sum(longest.values()) / 64 + 300 * len(lines)
    shared = 12_000 // 64
    first = [line["hash_ids"][:shared] for line in lines if line["turn"] == 0]
    assert all(ids == list(range(shared)) for ids in first)


# ------------------------------------------------------------------------------------------------- text recipes


def test_more_roots_than_the_recipe_has_arrive_at_its_rate() -> None:
    recipe = bundled_recipes()["coding-agent"]
    lines = turns(built(recipe, sessions=39))
    starts = [line["start_s"] for line in lines if "start_s" in line]
    assert len(starts) == 39
    assert lines[: len(turns(built(recipe)))] == turns(built(recipe))
    step = 330 / 13
    assert all(abs(start - step * i) <= 0.4 * step + 0.001 for i, start in enumerate(starts))
    fans_out = sorted({line["parent"]["session_id"] for line in lines if "parent" in line})
    assert fans_out == ["s03", "s08", "s16", "s21", "s29", "s34"]


def test_the_time_and_the_order_of_tools_can_change_by_session_or_by_turn(tmp_path: Path) -> None:
    def with_(hostile: str) -> list[Line]:
        path = tmp_path / "r.toml"
        path.write_text(f'extends = "coding-agent"\n[hostile]\n{hostile}\n')
        (tmp_path / "t.jsonl").write_bytes(built(path))
        assert validate_workload(tmp_path / "t.jsonl").errors == ()
        return turns((tmp_path / "t.jsonl").read_bytes())

    kind = turns(built(bundled_recipes()["coding-agent"]))
    by_session = with_('timestamp = "session"')
    assert [line["turn"] for line in by_session if "append" not in line] == [
        line["turn"] for line in kind if "append" not in line
    ]
    for line, before in zip(by_session, kind, strict=True):
        assert "prefix" not in line
        if "prefix" in before:
            field = "append" if "append" in before else "messages"
            assert line[field][0]["content"].startswith("The current time is 2026-03-02T09:")
            assert line[field][1:] == before[field]
            assert len(line["tools"]) in (4, 10)
        else:
            assert line == before
    stamps = {line["session_id"]: set[str]() for line in by_session}
    for line in by_session:
        for message in line.get("append", []) + line.get("messages", []):
            if message["role"] == "system":
                stamps[line["session_id"]].add(message["content"][:45])
    assert all(len(seen) == 1 for seen in stamps.values())

    tools = [[tool["function"]["name"] for tool in line["tools"]] for line in with_('tool_order = "turn"')]
    assert len(tools) == len(kind)
    assert tools[0] != tools[1]
    assert sorted(tools[0]) == sorted(tools[1])


# ----------------------------------------------------------------------------------------------- recipes of blocks

BLOCKS = """
family = "blocks"
name = "b"
roots = 3
block_size = 10
gap_s = 7
[[prompts]]
name = "p"
tokens = 25
[root]
turns = 3
growth_tokens = 12
output_tokens = 5
pause_s = 1.5
[[root.begins]]
with = "prompt"
new_tokens = 18
"""


def of_text(tmp_path: Path, text: str, **options: Any) -> list[Line]:
    path = tmp_path / "b.toml"
    path.write_text(text)
    out = tmp_path / "b.jsonl"
    out.write_bytes(built(path, **options))
    assert validate_workload(out).errors == ()
    return turns(out.read_bytes())


def test_blocks_are_shared_and_new_as_the_recipe_says(tmp_path: Path) -> None:
    lines = of_text(tmp_path, BLOCKS)
    # a prompt of 25 tokens has 2 whole blocks; 18 new tokens make 38, then 50, then 62
    assert [line["input_tokens"] for line in lines] == [38, 50, 62] * 3
    assert [line.get("keep_blocks") for line in lines] == [None, 3, 5] * 3
    assert [line["hash_ids"] for line in lines] == [
        [0, 1, 2], [3, 4], [5], [0, 1, 6], [7, 8], [9], [0, 1, 10], [11, 12], [13],
    ]  # fmt: skip
    assert [line.get("start_s") for line in lines] == [0, None, None, 7, None, None, 14, None, None]
    assert [line.get("delay_s") for line in lines] == [None, 1.5, 1.5] * 3
    assert {line["output_tokens"] for line in lines} == {5}
    tails = of_text(tmp_path, BLOCKS.replace("block_size", "partial_tail = true\nblock_size"))
    assert [line["hash_ids"] for line in tails[:3]] == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_prompts_begin_with_those_of_other_sessions(tmp_path: Path) -> None:
    text = (
        BLOCKS
        + """
[[root.begins]]
with = "root"
lag = 1
blocks = 4
weight = 1e9
new_tokens = 10
"""
    )
    lines = [line for line in of_text(tmp_path, text) if line["turn"] == 0]
    # the first has nobody to begin with; the others take four blocks of the last session's six, and bring one
    assert [line["hash_ids"] for line in lines] == [[0, 1, 2], [0, 1, 2, 3, 6], [0, 1, 2, 3, 9]]
    assert [line["input_tokens"] for line in lines] == [38, 50, 50]


def test_a_prompt_can_go_on_where_another_ended(tmp_path: Path) -> None:
    text = (
        BLOCKS
        + """
[[root.begins]]
with = "root"
blocks = 5
whole = 1
weight = 1e9
new_tokens = 9
"""
    )
    lines = of_text(tmp_path, text.replace("turns = 3", "turns = 2"))
    # the first session ends with five blocks, 0 1 2 3 4; the second takes all five and grows by one; no other has five
    first = [line for line in lines if line["turn"] == 0]
    assert [line["hash_ids"] for line in first] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert [line["input_tokens"] for line in first] == [38, 59, 59]


def test_cuts_and_sub_agents(tmp_path: Path) -> None:
    text = (
        BLOCKS
        + """
[[root.cuts]]
chance = [{ from_tokens = 50, chance = 1 }]
begins = [{ with = "previous", dropped_blocks = 3, new_tokens = 4 }]
[root.spawn]
chance = [{ values = [1] }, { from_turn = 1, values = [0] }]
children = 2
delay_s = 0.25
[sub_agent]
turns = 1
growth_tokens = 0
pause_s = 0
begins = [
  { with = "parent", blocks = 2, new_tokens = 10, weight = 1e-9 },
  { with = "sibling", blocks = 2, new_tokens = 20 },
]
"""
    )
    lines = of_text(tmp_path, text, sessions=1)
    by_name = {(line["session_id"], line["turn"]): line for line in lines}
    assert list(by_name) == [("s1", 0), ("s1", 1), ("s1", 2), ("s1.b", 0), ("s1.a", 0)]
    assert by_name["s1", 1]["after"] == ["s1.a", "s1.b"]
    # 50 tokens are 5 blocks; dropping 3 keeps 2, and 4 tokens make 24
    assert (by_name["s1", 2]["keep_blocks"], by_name["s1", 2]["input_tokens"]) == (2, 24)
    assert by_name["s1.a", 0]["parent"] == {"session_id": "s1", "turn": 0}
    assert by_name["s1.a", 0]["delay_s"] == 0.25
    assert by_name["s1.a", 0]["hash_ids"] == [0, 1, 3]
    assert by_name["s1.b", 0]["hash_ids"] == [0, 1, 4, 5]
    assert "output_tokens" not in by_name["s1.a", 0]


def test_sessions_end_before_a_prompt_would_be_too_long(tmp_path: Path) -> None:
    lines = of_text(tmp_path, BLOCKS.replace("roots", "max_input_tokens = 55\nroots"))
    assert [line["input_tokens"] for line in lines] == [38, 50] * 3
    lines = of_text(tmp_path, BLOCKS.replace("roots", "max_input_tokens = 30\nroots"))
    assert [line["input_tokens"] for line in lines] == [30] * 3


# ---------------------------------------------------------------------------------------------------- wrong recipes

WRONG: list[tuple[str, str, int | None, str, str, str | None]] = [
    ("roots = 3", "roots = 0", 4, "roots", "expected int >= 1", None),
    ("roots = 3", "", None, "roots", "missing", None),
    ("roots = 3", "rots = 3", 4, "rots", "unknown field", "allowed here: about, block_size, gap_s,"),
    ("turns = 3", "turns = {rnge = [1, 2]}", 11, "root.turns.rnge", "unknown field", "allowed here: from_turn,"),
    ("gap_s = 7", 'gap_s = "7"', 6, "gap_s", "expected a number or a distribution, got str", None),
    ("pause_s = 1.5", "pause_s = {median = 3}", 14, "root.pause_s", "median .above 0. and sigma go together", None),
    ('with = "prompt"', 'with = "promt"', 16, "root.begins[0].with", "one of nothing, .*'promt'", None),
    ('with = "prompt"', 'with = "prompt"\nprompt = "q"', 17, "root.begins[0].prompt", "one of prompts: p;", None),
    ('with = "prompt"', 'with = "sibling"', 16, "root.begins[0].with", "a root session has no sibling", None),
    ('family = "blocks"', 'family = "texts"', 2, "family", "one of agents, blocks; found 'texts'", None),
    ('family = "blocks"', "", None, "family", "one of agents, blocks", None),
    ("new_tokens = 18", "new_tokens = 18\nwhole = 1", 18, "root.begins[0].whole", "goes with root or sub_agent", None),
    ("new_tokens = 18", "", 15, "root.begins[0]", "one of new_tokens and length_share", None),
    ("new_tokens = 18", "length_share = 1", 17, "root.begins[0].length_share", "no turn before it", None),
    ("growth_tokens = 12", "growth_tokens = []", 12, "root.growth_tokens", "an empty list", None),
    ("turns = 3", "turns = 3\nspawn = {chance = 1, children = 1}", 12, "root.spawn", r"needs \[sub_agent\]", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "message", "hint"), WRONG, ids=[row[1] or row[0] for row in WRONG]
)
def test_what_is_wrong_with_a_recipe_is_named(
    tmp_path: Path, old: str, new: str, line: int | None, field: str, message: str, hint: str | None
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(BLOCKS.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(path)
    assert (caught.value.field, caught.value.line) == (field, line)
    assert (caught.value.hint or "").startswith(hint or "")


CHILDREN = "children = [1, 1]\nchild_turns = [1, 1]"
AGENTS_WRONG: list[tuple[str, int, str, str]] = [
    ('[shape]\nagent = "boss"', 3, "shape.agent", "one of prompts: assistant; found 'boss'"),
    ('[prompts.assistant]\ntools = ["find_product", "fly"]', 3, "prompts.assistant.tools", "found 'fly'"),
    ('[tools.check_stock]\nresult = "none"', 3, "tools.check_stock.result", "one of results: .*found 'none'"),
    ('[tools.check_stock]\ncolour = "red"', 3, "tools.check_stock.colour", "unknown field"),
    ("[shape]\nturns = [9, 4]", 3, "shape.turns", "from .. to, in this order"),
    ("[[fan_out]]\nturn = 8\nagent = 'assistant'\n" + CHILDREN, 3, "fan_out[0].turn", "below 3"),
    ("[hostile]\ntimestamp = 'day'", 3, "hostile.timestamp", "one of session, turn; found 'day'"),
    ("[words]\nproduct = []", 3, "words.product", "length >= 1"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "line", "field", "message"), AGENTS_WRONG, ids=[row[2] for row in AGENTS_WRONG])
def test_what_is_wrong_with_a_recipe_that_extends_another(
    tmp_path: Path, more: str, line: int, field: str, message: str
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'extends = "tool-chat"\n{more}\n')
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(path)
    assert (caught.value.field, caught.value.line, caught.value.path) == (field, line, path)


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "x"\nroots = = 3\n')
    with pytest.raises(InputError, match="no valid TOML") as caught:
        load_recipe(tmp_path / "bad.toml")
    assert caught.value.line == 2
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(InputError, match=r'"a\.toml" extends this recipe again'):
        load_recipe(tmp_path / "a.toml")
    (tmp_path / "c.toml").write_text('extends = "tool-chad"\n')
    with pytest.raises(InputError, match='no file "tool-chad" beside it') as lost:
        load_recipe(tmp_path / "c.toml")
    assert (lost.value.path, lost.value.line, lost.value.field) == (tmp_path / "c.toml", 1, "extends")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_recipe(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="no bundled recipe of that name") as missing:
        resolve_recipe("nowhere")
    assert missing.value.hint == f"bundled recipes: {', '.join(RECIPES)}"
    for name in ("", "a\0b", str(tmp_path)):
        with pytest.raises(InputError):
            resolve_recipe(name)
