"""Curves of whole traces: by hand, and against the independent values for public ones."""

from __future__ import annotations

import json
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.public_traces import data

from kvbench.traces.blocks import BlockedTrace, Times
from kvbench.traces.curve.hits import Order
from kvbench.traces.curve.measure import Asked, Measured, fine_curve, measure, spread_capacities
from kvbench.traces.curve.traffic import read_traffic
from kvbench.traces.importing import open_workload

UNBOUNDED = 10**9


def curve(path: Path, times: Times = "recorded", **asked: Any) -> Measured:
    with open_workload(path) as trace:
        return measure(read_traffic(BlockedTrace(trace, times=times)), Asked(**asked))


def write(path: Path, *rows: dict[str, Any]) -> Path:
    head = {"kvbench_trace": 1, "name": "t", "block_size": 4}
    path.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    return path


def turn(name: str, start_s: float, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    return {"session_id": name, "turn": 0, "start_s": start_s, "hash_ids": ids, "input_tokens": tokens, **more}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Blocks of 4 tokens. a: 1 2 3 (12 tokens); b: 1 2 4 (10, the last one partial); a again; b again at 100 s."""
    return write(
        tmp_path / "t.jsonl",
        turn("a", 0, [1, 2, 3], 12, model="big"),
        turn("b", 1, [1, 2, 4], 10, model="small"),
        turn("c", 2, [1, 2, 3], 13, model="big"),
        turn("d", 100, [1, 2, 4], 10, model="small"),
    )


def points(measured: Measured) -> list[tuple[int, int, int]]:
    return [(point.capacity_blocks, point.hit_blocks, point.hit_tokens) for point in measured.all.points]


def test_by_hand_leaf_first(small: Path) -> None:
    found = curve(small, capacities_blocks=[1, 2, 3, 4])
    # Evicted first is the tail. 1 block keeps id 1, 2 keep 1 and 2; 3 keep the last request whole, which then is not
    # asked for again but for 1 and 2; 4 keep everything. Partial 4 has 2 tokens of 10.
    assert points(found) == [(1, 3, 12), (2, 6, 24), (3, 6, 24), (4, 8, 30)]
    every = found.all
    assert (every.requests, every.blocks, every.input_tokens, found.unique_blocks) == (4, 12, 45, 4)
    assert (every.hit_blocks_unbounded, every.hit_tokens_unbounded, every.sufficient_blocks) == (8, 30, 4)
    assert (every.unbounded.block_hit_rate, every.unbounded.token_hit_rate) == (8 / 12, 30 / 45)


def test_by_hand_root_first(small: Path) -> None:
    # Evicted first is the head: with 1 or 2 blocks the head of what came before is gone, and nothing is hit.
    found = curve(small, order="root-first", capacities_blocks=[1, 2, 3, 4])
    assert points(found) == [(1, 0, 0), (2, 0, 0), (3, 6, 24), (4, 8, 30)]


def test_warm_up_skips_the_first_requests_and_keeps_what_they_cached(small: Path) -> None:
    found = curve(small, warmup=0.5, capacities_blocks=[4])
    assert points(found) == [(4, 6, 22)]  # c all of 12 tokens of 13, d all of 10
    assert (found.all.requests, found.all.blocks, found.rule.warmup_requests) == (2, 6, 2)


def test_a_pause_of_exactly_the_ttl_is_not_longer_than_it(tmp_path: Path) -> None:
    # sums of fractions: from 1.1 s on in steps of 0.7 s, most differences of floats are above or below 0.7
    later = [{"session_id": "a", "turn": n, "delay_s": 0.7, "hash_ids": [1], "input_tokens": 4} for n in range(1, 30)]
    path = write(tmp_path / "t.jsonl", turn("a", 1.1, [1], 4), *later)
    assert curve(path, ttl_s=0.7).all.hit_blocks_unbounded == 29
    assert curve(path, ttl_s=0.6999).all.hit_blocks_unbounded == 0


def test_ttl(small: Path) -> None:
    # d comes 98 s after c touched 1 and 2, and 99 s after b touched 4
    for ttl_s, hits in ((99, 8), (98, 7), (97.9, 5), (0.5, 0)):
        found = curve(small, ttl_s=ttl_s, capacities_blocks=[10])
        assert found.all.hit_blocks_unbounded == found.all.points[0].hit_blocks == hits, ttl_s


def test_groups_share_the_cache(small: Path) -> None:
    found = curve(small, by="model", capacities_blocks=[4])
    assert [(group.group, group.requests, group.blocks, group.hit_blocks_unbounded) for group in found.groups] == [
        ("big", 2, 6, 3),
        ("small", 2, 6, 5),
    ]
    assert "all 2 models" in found.rule.cache


def test_by_kind_of_session(tmp_path: Path) -> None:
    child = {"parent": {"session_id": "r", "turn": 0}, "turn": 0, "session_id": "r.a", "delay_s": 1}
    path = write(
        tmp_path / "t.jsonl",
        turn("r", 0, [1, 2], 8),
        {**child, "hash_ids": [1, 3], "input_tokens": 8},
    )
    found = curve(path, by="kind")
    assert [(group.group, group.requests, group.hit_blocks_unbounded) for group in found.groups] == [
        ("roots", 1, 0),
        ("sub-agents", 1, 1),
    ]


def test_needed_capacity_in_blocks_tokens_and_bytes(small: Path) -> None:
    found = curve(small, hit_rates=[0.5, 0.6, 0.9], bytes_per_token=Fraction("3514.25"))
    # by block 0.5 of 12 is 6 blocks: 2 of capacity. 0.6 is 7.2: all 8, with 4. By token 0.5 of 45 is 22.5: 24, with 2.
    assert [(n.hit_rate, n.by, n.capacity_blocks, n.capacity_tokens, n.capacity_bytes) for n in found.all.needed] == [
        (0.5, "block", 2, 8, 28114),
        (0.5, "token", 2, 8, 28114),
        (0.6, "block", 4, 16, 56228),
        (0.6, "token", 4, 16, 56228),
        (0.9, "block", None, None, None),
        (0.9, "token", None, None, None),
    ]


def test_a_rate_that_is_met_exactly_is_met(tmp_path: Path) -> None:
    """7 of 100 blocks: 0.07 * 100 is a little more than 7 in floating point."""
    path = write(tmp_path / "t.jsonl", turn("a", 0, list(range(93)), 372), turn("b", 1, list(range(7)), 28))
    (by_block, _) = curve(path, hit_rates=[0.07]).all.needed
    assert by_block.capacity_blocks == 7


@pytest.mark.parametrize("apart", [1, 10**15])
def test_an_id_after_two_prefixes_is_two_blocks_and_is_told(tmp_path: Path, apart: int) -> None:
    one, two, nine = apart, 2 * apart, 9 * apart
    path = write(
        tmp_path / "t.jsonl", turn("a", 0, [one, nine], 8), turn("b", 1, [two, nine], 8), turn("c", 2, [nine], 4)
    )
    found = curve(path)
    assert (found.rule.repeated_ids, found.unique_blocks, found.all.hit_blocks_unbounded) == (1, 5, 0)


def test_a_trace_without_times_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", turn("a", 0, [1], 4), turn("b", 0, [1], 4))
    assert "the trace has no times" in curve(path).rule.requests


def test_a_prompt_shorter_than_a_block_has_none(tmp_path: Path) -> None:
    found = curve(write(tmp_path / "t.jsonl", turn("a", 0, [], 3), turn("b", 0, [], 3)), capacities_blocks=[5])
    assert (found.all.blocks, found.all.points[0].block_hit_rate, found.all.points[0].token_hit_rate) == (0, None, 0.0)


def test_capacities_that_are_chosen_rise_to_the_sufficient_one(small: Path) -> None:
    assert spread_capacities(0) == []
    chosen = spread_capacities(158_281)
    assert chosen[0] == 160
    assert chosen[-1] == 158_281
    assert chosen == sorted(set(chosen))
    fine = fine_curve_of(small)
    assert [point.capacity_blocks for point in fine.all.points] == [1, 2, 3, 4]


def fine_curve_of(path: Path) -> Measured:
    with open_workload(path) as trace:
        traffic = read_traffic(BlockedTrace(trace))
    return fine_curve(traffic, Asked(), measure(traffic, Asked()))


# --------------------------------------------------------------------------------------------------- public traces


@pytest.mark.parametrize("order", ["leaf-first", "root-first"])
def test_the_conversation_trace_of_mooncake(order: Order) -> None:
    reference = json.loads(data("reference", f"mooncake_conversation_{order}.json").read_text())
    rows = reference["rows"]
    capacities = [row["cap"] or UNBOUNDED for row in rows]
    path = data("mooncake", "conversation_trace.jsonl")
    found = curve(path, order=order, capacities_blocks=capacities)
    assert points(found) == [
        (capacity, row["hit_blocks"], row["hit_tokens"]) for capacity, row in zip(capacities, rows, strict=True)
    ]
    assert (found.all.requests, found.all.blocks) == (reference["requests"], reference["blocks"])
    assert found.unique_blocks == reference["unique_blocks"]
    assert found.rule.repeated_ids == 0
    warm = curve(path, order=order, capacities_blocks=capacities, warmup=0.5)
    for point, row in zip(warm.all.points, rows, strict=True):
        assert point.block_hit_rate == pytest.approx(row["warm50_block"], abs=1e-12)
        assert point.token_hit_rate == pytest.approx(row["warm50_token"], abs=1e-12)


def test_the_first_400_of_mooncake() -> None:
    reference = json.loads(data("reference", "mooncake_conversation_first400.json").read_text())
    capacities = [row["cap"] or UNBOUNDED for row in reference["rows"]]
    found = curve(
        data("mooncake", "conversation_first400.jsonl"), order=reference["order"], capacities_blocks=capacities
    )
    assert [hits for _, hits, _ in points(found)] == [row["hit_blocks"] for row in reference["rows"]]


def test_weka_traces_each_and_all_in_one_cache() -> None:
    for row in json.loads(data("reference", "weka_dev_lru.json").read_text()):
        whole = row["trace"].startswith("ALL")
        capacities = {key: UNBOUNDED if key == "inf" else int(key) for key in row if key == "inf" or key.isdigit()}
        found = curve(
            data("weka") if whole else data("weka", row["trace"]), capacities_blocks=list(capacities.values())
        )
        assert (found.all.requests, found.all.blocks) == (row["requests"], row["blocks"])
        assert [hits for _, hits, _ in points(found)] == [row[key]["hit_blocks"] for key in capacities], row["trace"]
        for point, key in zip(found.all.points, capacities, strict=True):
            assert point.token_hit_rate == pytest.approx(row[key]["token"], abs=5e-7)


def test_sub_agents_that_are_dated_by_their_end_run_elsewhere_in_a_replay() -> None:
    path = data("weka", "trace_0277.json")
    recorded, replay = curve(path, capacities_blocks=[2048]), curve(path, "replay", capacities_blocks=[2048])
    assert recorded.all.hit_blocks_unbounded == replay.all.hit_blocks_unbounded == 35139
    assert recorded.all.points[0].hit_blocks == 27937
    assert replay.all.points[0].hit_blocks > 34000
    assert "the times of a replay" in replay.rule.requests


# ------------------------------------------------------------------------------------------------ whole traces, random


@st.composite
def sessions(draw: st.DrawFn) -> list[list[tuple[float, int, list[int]]]]:
    """Sessions of turns: (seconds after the turn before, or the start; kept blocks; new ids)."""
    made = []
    for _ in range(draw(st.integers(1, 5))):
        turns, blocks = [], 0
        for _ in range(draw(st.integers(1, 5))):
            kept = draw(st.integers(0, blocks))
            new = draw(st.lists(st.integers(0, 4), max_size=4))
            turns.append((draw(st.sampled_from([0.0, 0.0, 0.5, 2.0, 7.25])), kept, new))
            blocks = kept + len(new)
        made.append(turns)
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sessions(),
    st.sampled_from(["leaf-first", "root-first"]),
    st.integers(1, 20),
    st.sampled_from([None, 0.5, 3.0]),
    st.sampled_from([0.0, 0.5]),
)
def test_a_trace_file_hits_what_an_lru_does(
    tmp_path: Path,
    made: list[list[tuple[float, int, list[int]]]],
    order: Order,
    capacity: int,
    ttl_s: float | None,
    warmup: float,
) -> None:
    rows, asked = [], []
    for number, turns in enumerate(made):
        now, chain = 0.0, list[int]()
        for at, (pause_s, kept, new) in enumerate(turns):
            now += pause_s
            chain = chain[:kept] + new
            tokens = max(len(chain) * 4 - at % 3, 1)  # whole, or with a last block that is not full
            asked.append((now, number, at, chain, tokens))
            rows.append(
                {"session_id": f"s{number}", "turn": at, "input_tokens": tokens, "keep_blocks": kept, "hash_ids": new}
                | ({"delay_s": pause_s} if at else {"start_s": pause_s})
            )
    asked.sort(key=lambda request: request[:3])
    cache: OrderedDict[tuple[int, ...], float] = OrderedDict()
    hits, hit_tokens = 0, 0
    for index, (now, _, _, chain, tokens) in enumerate(asked):
        heads = [tuple(chain[:k]) for k in range(1, len(chain) + 1)]
        found = 0
        while found < len(heads) and heads[found] in cache:
            if ttl_s is not None and now - cache[heads[found]] > ttl_s:
                break
            found += 1
        if index >= int(warmup * len(asked)):
            hits += found
            hit_tokens += min(found * 4, tokens)
        for head in heads[::-1] if order == "leaf-first" else heads:
            cache[head] = now
            cache.move_to_end(head)
            if len(cache) > capacity:
                cache.popitem(last=False)
    path = write(tmp_path / "random.jsonl", *rows)
    measured = curve(path, order=order, capacities_blocks=[capacity], ttl_s=ttl_s, warmup=warmup)
    assert points(measured) == [(capacity, hits, hit_tokens)]
