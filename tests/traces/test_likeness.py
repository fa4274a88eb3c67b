"""Traces like others: what is measured, what is fitted, and how close the result comes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from tests.public_traces import data

from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload, validate_workload
from kvbench.traces.likeness.distance import Likeness, likeness
from kvbench.traces.likeness.fit import amount, by_turn, fitted, kept_rank
from kvbench.traces.likeness.like import fit
from kvbench.traces.likeness.sample import BeginSample, Sample, SpawnSample, sample
from kvbench.traces.synth.dice import Draw
from kvbench.traces.synth.fields import BlocksRecipe
from kvbench.traces.synth.load import load_recipe
from kvbench.traces.synth.recipe import synthesis
from kvbench.traces.synth.toml import recipe_toml

Line = dict[str, Any]


def write(path: Path, *lines: Line) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def measured(path: Path, **options: Any) -> Sample:
    with open_workload(path) as trace:
        return sample(BlockedTrace(trace, **options))


def turn(session: str, number: int, tokens: int, ids: list[int], **more: Any) -> Line:
    return {"session_id": session, "turn": number, "input_tokens": tokens, "hash_ids": ids, **more}


SMALL = [
    {"kvbench_trace": 1, "name": "small", "block_size": 10},
    turn("a", 0, 35, [1, 2, 3], start_s=0, output_tokens=7),
    turn("a", 1, 52, [4, 5], keep_blocks=3, delay_s=4, after=["a.x"]),  # grows by 17
    turn("a", 2, 45, [6, 7], keep_blocks=2, delay_s=5, output_tokens=9),  # drops 3 of 5
    turn("a", 3, 56, [3, 4, 5], keep_blocks=2),  # back on the branch of turn 1
    turn("a.x", 0, 40, [1, 2, 3, 20], parent={"session_id": "a", "turn": 0}, delay_s=1),  # the parent's prompt
    turn("a.y", 0, 48, [1, 2, 3, 20], parent={"session_id": "a", "turn": 0}, delay_s=2),  # its sibling's
    turn("b", 0, 31, [1, 2, 30], start_s=100),  # two blocks of a, which its sub-agents had, too
    turn("b", 1, 33, [], keep_blocks=3, delay_s=6),
    turn("c", 0, 12, [90], start_s=130),
    turn("d", 0, 44, [1, 2, 30, 40], start_s=150),  # three blocks of b: two roots back
]  # fmt: skip


def begin(
    with_: Any, at: int, blocks: int, lag: int, dropped: int, new: int, share: float, *there: bool
) -> BeginSample:
    return BeginSample(with_, at, blocks, lag, dropped, new, share, *there)


def test_what_is_measured_by_hand(tmp_path: Path) -> None:
    got = measured(write(tmp_path / "s.jsonl", *SMALL))
    assert got.gap_s == [100, 30, 20]
    assert (got.root.turns, got.sub_agent.turns) == ([4, 2, 1, 1], [1, 1])
    assert got.root.begins == [
        begin("nothing", 0, 0, 0, 0, 35, 1.0, False, False, False),
        begin("sub_agent", 0, 2, 1, 0, 11, 1.0, False, True, False),
        begin("nothing", 0, 0, 0, 0, 12, 1.0, False, True, False),
        begin("root", 0, 3, 2, 0, 14, 1.0, True, True, False),
    ]
    assert got.sub_agent.begins == [
        begin("parent", 0, 3, 0, 0, 10, 1.0, True, False, False),
        begin("sibling", 0, 4, 0, 0, 8, 1.0, True, False, True),
    ]
    assert got.root.cuts == [
        begin("previous", 2, 2, 0, 3, 25, 0.8654, False, False, True),
        begin("session", 3, 5, 0, 0, 6, 1.2444, True, False, True),
    ]
    assert got.root.growth == [[(1, 17)], [(1, 2)], [], []]
    assert [(tokens, cut and cut.with_) for tokens, cut in got.root.after] == [
        (35, None), (52, "previous"), (45, "session"), (31, None),
    ]  # fmt: skip
    assert got.root.output == [[(0, 7), (2, 9)], [], [], []]
    assert got.root.pause_s == [[(1, 4), (2, 5), (3, 0)], [(1, 6)], [], []]
    assert got.root.spawns == [SpawnSample(0, 2, 1, True)]
    assert got.sub_agent.first_delay_s == [1, 2]
    assert (got.depth, got.partial_tail) == (2, False)
    # a: 3 + 5 + 4 + 5; x and y: 4 each; b: 3 and 3; c: 1; d: 4. New: 1 2 3, 20, 4 5, 6 7, 30, 90, 40
    assert (got.blocks, got.distinct) == (36, 11)
    assert got.ceiling == pytest.approx(25 / 36)
    assert sorted(got.shared_by) == [2, 3, 3]


def test_blocks_that_a_source_gives_no_chain_are_told_apart_by_what_stands_before(tmp_path: Path) -> None:
    lines = [SMALL[0], turn("a", 0, 20, [1, 2]), turn("b", 0, 20, [2, 1]), turn("c", 0, 20, [1, 1])]
    got = measured(write(tmp_path / "s.jsonl", *lines))
    assert (got.blocks, got.distinct) == (6, 5)


def test_short_prompts_do_not_say_whether_they_grow(tmp_path: Path) -> None:
    lines = [SMALL[0], turn("a", 0, 5, []), turn("a", 1, 8, []), turn("a", 2, 6, []), turn("a", 3, 25, [1, 2])]
    lines += [turn("a", 4, 30, [3, 4, 5])]
    got = measured(write(tmp_path / "s.jsonl", *lines))
    assert got.root.growth == [[(1, 3), (3, 19)]]
    assert [(tokens, cut and cut.with_) for tokens, cut in got.root.after] == [(25, "nothing")]
    recipe = fitted(got, "r", "s")
    assert [chance.chance for cut in recipe.root.cuts for chance in cut.chance] == [1]


# -------------------------------------------------------------------------------------------------------- fitting


def test_empirical_distributions_keep_values_and_mean() -> None:
    assert amount([3, 3, 3]) == 3
    assert amount([1, 5, 1, 1]) == Draw(values=(1, 5), weights=(3, 1))
    few = amount([10, 0, 40])
    assert isinstance(few, Draw)
    assert few.quantiles == ((0, 0), (0.1666667, 0), (0.5, 10), (0.8333333, 40), (1, 40))
    values = [float(i * i % 997) for i in range(997)] + [50_000.0] * 3
    many = amount(values)
    assert isinstance(many, Draw)
    assert many.quantiles is not None
    ranks = [(i + 0.5) / 20_000 for i in range(20_000)]
    assert sum(map(many.at, ranks)) / len(ranks) == pytest.approx(sum(values) / len(values), rel=0.05)
    assert many.at(0.999999) == 50_000
    assert many.at(0.5) == pytest.approx(sorted(values)[500], rel=0.02)


def test_turns_are_told_apart_where_there_are_enough_of_them() -> None:
    sessions = [[(t, 100.0 * t) for t in range(1, 5)] for _ in range(40)]
    amounts = by_turn(sessions)
    assert isinstance(amounts, tuple)
    assert [(draw.from_turn, draw.values, draw.weights) for draw in amounts] == [
        (1, (100,), None),
        (2, (200, 300), (40, 40)),
        (4, (400,), None),
    ]
    assert by_turn(sessions[:3]) == Draw(values=(100, 200, 300, 400), weights=(3, 3, 3, 3))
    assert by_turn([[], []]) == 0


def test_ranks_that_stay_are_seen() -> None:
    alike = [[(t, float(s)) for t in range(1, 4)] for s in range(40)]
    assert kept_rank(alike) > 0.95
    shuffled = [[(t, float((s * 7919 + t * 104729) % 1009)) for t in range(1, 30)] for s in range(60)]
    assert kept_rank(shuffled) < 0.1
    assert kept_rank([[(1, 1.0), (2, 2.0)]]) == 0


def test_a_fitted_recipe_survives_being_written(tmp_path: Path) -> None:
    recipe = fitted(measured(write(tmp_path / "s.jsonl", *SMALL)), 'like "x"\n', "a source")
    assert recipe.max_depth == 2
    assert recipe.sub_agent is not None
    path = tmp_path / "r.toml"
    path.write_text(recipe_toml(recipe))
    assert load_recipe(path) == recipe
    lines: list[bytes] = []
    synthesis(recipe, "r").write(lines.append)
    (tmp_path / "r.jsonl").write_bytes(b"".join(lines))
    assert validate_workload(tmp_path / "r.jsonl").errors == ()


# ------------------------------------------------------------------------------------------------------- distances


def test_distances_worked_out_by_hand(tmp_path: Path) -> None:
    ours = write(tmp_path / "a.jsonl", SMALL[0], *(turn(f"s{i}", 0, n, [i]) for i, n in enumerate([10, 11, 12, 13])))
    theirs = write(tmp_path / "b.jsonl", SMALL[0], *(turn(f"s{i}", 0, n, [0]) for i, n in enumerate([12, 13, 19])))
    got = likeness(measured(ours), measured(theirs))
    by_name = {distance.quantity: distance for distance in got.distances}
    lengths = by_name["input"]
    assert (lengths.source_n, lengths.result_n, lengths.source_median, lengths.result_median) == (4, 3, 11.5, 13)
    # at 11: 2 of 4 against 0 of 3
    assert lengths.ks == pytest.approx(0.5)
    # areas between the steps 10 11 12 13 19: 1/4 + 2/4 + (3/4 - 1/3) + 6 * (1 - 2/3)
    assert lengths.wasserstein == pytest.approx(0.25 + 0.5 + 5 / 12 + 2)
    assert lengths.ks_chance == 1.0
    assert (got.source_ceiling, got.result_ceiling) == (0, pytest.approx(2 / 3))
    assert "a shared block's trees" not in by_name  # as they have other numbers of trees
    assert "sub-agent turns" not in by_name
    assert lengths.ks == pytest.approx(stats.ks_2samp([10, 11, 12, 13], [12, 13, 19]).statistic)
    alone = write(tmp_path / "c.jsonl", SMALL[0], turn("s", 0, 10, [1]))
    assert [distance.ks for distance in likeness(measured(alone), measured(alone)).distances] == [0, 0, 0, 0]


# ------------------------------------------------------------------------------------------- how close it comes


def like(path: Path, tmp_path: Path, *numbers: int | None) -> tuple[BlocksRecipe, list[Likeness]]:
    """The recipe, and how close it comes with each number of root sessions (None: the trace's)."""
    with open_workload(path) as trace:
        found = fit(trace)
    out = tmp_path / "like.jsonl"
    close = []
    for sessions in numbers:
        with out.open("wb") as stream:
            made = found.write(stream.write, seed=1, sessions=sessions)
        valid = validate_workload(out)
        assert (valid.errors, valid.turns) == ((), made.turns)
        close.append(found.compared(out))
    return found.recipe, close


def ks(close: Likeness, *names: str) -> Sequence[float]:
    found = {distance.quantity: distance.ks for distance in close.distances}
    return [found[name] or 0.0 for name in names]


KNOWN = """
family = "blocks"
name = "known"
roots = 400
block_size = 16
gap_s = { median = 3.0, sigma = 1.2, range = [0.01, 300.0] }
prompts = [{ name = "large", tokens = 1600, weight = 3 }, { name = "small", tokens = 320 }]
[root]
turns = { range = [2, 16] }
begins = [{ with = "prompt", new_tokens = { median = 90, sigma = 0.9, range = [5, 2000] } }]
growth_tokens = [{ median = 200, sigma = 1.0, range = [10, 9000] }, { from_turn = 6, range = [20, 60] }]
output_tokens = { median = 50, sigma = 1.1, range = [1, 4000] }
pause_s = { values = [1.0, 60.0], weights = [5, 1] }
keep = { growth = 0.5 }
cuts = [
  { chance = [{ from_tokens = 2500, chance = 0.2 }], begins = [{ with = "previous", blocks = 9, length_share = 0.4 }] },
]
spawn = { chance = 0.1, children = { range = [1, 3] }, joined = 0.5, delay_s = 0.5 }
[sub_agent]
turns = { range = [1, 4] }
begins = [{ with = "parent", blocks = 20, new_tokens = 100 }, { with = "nothing", new_tokens = 300, weight = 0.5 }]
growth_tokens = 150
pause_s = 2
"""


def test_the_bytes_of_a_recipe_of_blocks_never_change(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(KNOWN)
    digest = hashlib.sha256()
    synthesis(load_recipe(tmp_path / "known.toml"), "known").write(digest.update)
    assert digest.hexdigest() == "bdba15a347291548c7de39baf6e87ba8845dfd990e659aa60789e49346aa5b17"


def test_a_trace_of_a_known_recipe_is_fitted_well(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(KNOWN)
    with (tmp_path / "known.jsonl").open("wb") as stream:
        synthesis(load_recipe(tmp_path / "known.toml"), "known").write(stream.write)
    recipe, (close,) = like(tmp_path / "known.jsonl", tmp_path, None)
    assert close.source_ceiling is not None
    assert close.result_ceiling == pytest.approx(close.source_ceiling, abs=0.01)
    bounds = {
        "root turns": 0.02, "root growth": 0.03, "root pause": 0.03, "root output": 0.03, "input": 0.06,
        "root first prompt, new": 0.09, "root first prompt, shared": 0.02, "sub-agent turns": 0.12,
        "sub-agent first prompt, shared": 0.12, "root fan-out": 0.12, "gap between roots": 0.08,
    }  # fmt: skip
    for (name, bound), distance in zip(bounds.items(), ks(close, *bounds), strict=True):
        assert distance < bound, name
    assert recipe.root.keep.growth == pytest.approx(0.5, abs=0.1)
    assert recipe.root.keep.output < 0.1
    assert recipe.root.spawn is not None
    assert recipe.root.spawn.joined == pytest.approx(0.5, abs=0.1)


def test_prompts_that_replace_one_another_do_not_multiply(tmp_path: Path) -> None:
    # A short prompt and a long one in turn, 40 times as long, that share nothing: as shares, 40 times 40 and so on.
    lines = [{"kvbench_trace": 1, "name": "turns", "block_size": 10}]
    for number in range(12):
        long = number % 3 == 2
        ids = list(range(1000 * number, 1000 * number + (120 if long else 3)))
        lines.append(turn("a", number, 10 * len(ids) + 5, ids, **({} if number else {"start_s": 0})))
    with open_workload(write(tmp_path / "s.jsonl", *lines)) as trace:
        found = fit(trace)
    made = tmp_path / "like.jsonl"
    with made.open("wb") as stream:
        found.write(stream.write, seed=3, sessions=40)
    result = measured(made)
    assert max(result.input_tokens) <= 1205
    assert max(result.input_tokens) > 1000, "the long ones are there"


def test_mooncake_is_matched_in_lengths_and_sharing(tmp_path: Path) -> None:
    recipe, (as_many, fewer) = like(data("mooncake", "conversation_trace.jsonl"), tmp_path, None, 1000)
    # 288,500 ids in the file, 182,790 of them distinct
    assert (as_many.source_blocks, as_many.source_ceiling) == (288_500, pytest.approx(1 - 182_790 / 288_500))
    assert as_many.result_ceiling == pytest.approx(as_many.source_ceiling, abs=0.01)
    assert fewer.result_ceiling == pytest.approx(as_many.source_ceiling, abs=0.03)
    # a conversation goes on under another name: most take all of the prompt before
    long = [begin for begin in recipe.root.begins if begin.with_ == "root" and begin.blocks != 1]
    assert sum(begin.weight * begin.whole for begin in long) / sum(begin.weight for begin in long) > 0.8
    names = ["input", "root first prompt, new", "root first prompt, shared", "root output", "gap between roots"]
    assert max(ks(as_many, *names)) < 0.02
    assert max(ks(fewer, *names)) < 0.04


def test_agent_traces_with_sub_agents_are_matched(tmp_path: Path) -> None:
    recipe, (close,) = like(data("weka"), tmp_path, 100)
    assert close.source_blocks == 573_211
    assert close.result_ceiling == pytest.approx(close.source_ceiling, abs=0.02)
    assert max(ks(close, "root growth", "root output", "root pause", "sub-agent growth", "sub-agent pause")) < 0.08
    assert [begin.with_ for begin in recipe.root.begins] == ["nothing"]
    assert recipe.sub_agent is not None
    assert {begin.with_ for begin in recipe.sub_agent.begins} == {"nothing", "sibling"}


def test_a_trace_of_text_is_matched_in_blocks(tmp_path: Path) -> None:
    recipe, (close,) = like(Path(__file__).parents[2] / "workloads" / "agent-trace.jsonl", tmp_path, None)
    assert close.tokens == "estimated at 4 characters a token, without the chat template"
    assert close.result_ceiling == pytest.approx(close.source_ceiling, abs=0.03)
    assert recipe.roots == 13
    assert "services/" not in recipe_toml(recipe)
