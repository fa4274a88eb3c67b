"""The cliff on traces whose working sets are known, against an LRU cache of the test's own."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvbench.analysis.predicting.cliff import cliff_of
from kvbench.analysis.predicting.hits import ordered
from kvbench.analysis.predicting.load import Load
from kvbench.analysis.predicting.target import Target, target_of_trace
from kvbench.errors import RefusedError
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload

SIZE = 16


def target(path: Path, sessions: Iterable[list[list[int]]]) -> Target:
    """sessions: of each turn its blocks' ids; a turn has a token more than they hold."""
    lines: list[dict[str, object]] = [{"kvbench_trace": 1, "name": "made", "block_size": SIZE}]
    for number, turns in enumerate(sessions):
        for turn, ids in enumerate(turns):
            line = {"session_id": f"s{number}", "turn": turn, "input_tokens": len(ids) * SIZE, "output_tokens": 1}
            lines.append(line | {"hash_ids": ids} | ({"delay_s": 1.0} if turn else {"start_s": float(number)}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_workload(path) as opened:
        return target_of_trace(BlockedTrace(opened))


def test_sessions_that_fit_are_counted(tmp_path: Path) -> None:
    """Eight sessions of ten blocks that are sent ten times: 35 blocks hold three, and in turns a fourth pushes out each
    before it comes again. All but the last block can be hit."""
    made = target(tmp_path / "t.jsonl", ([list(range(100 * n, 100 * n + 10))] * 10 for n in range(1, 9)))
    cliff = cliff_of(made, Load(sessions=2), 35 * SIZE)
    assert cliff.sessions_held == 3
    assert cliff.falls_at == 4
    by = {point.sessions: point for point in cliff.points}
    assert by[3].hit_rate == pytest.approx(9 * 9 / 100)
    assert by[3].ceiling == pytest.approx(9 * 9 / 100)
    assert by[8].hit_rate < 0.1
    assert cliff.present.sessions == 2
    assert not cliff.present.falls
    assert 19 * SIZE <= cliff.present.needed_tokens <= 20 * SIZE
    assert 39 * SIZE <= by[4].needed_tokens <= 40 * SIZE


def test_a_cache_that_holds_all_has_no_cliff(tmp_path: Path) -> None:
    made = target(tmp_path / "t.jsonl", ([list(range(100 * n, 100 * n + 10))] * 3 for n in range(1, 5)))
    cliff = cliff_of(made, Load(sessions=4), 1000 * SIZE)
    assert cliff.falls_at is None
    assert cliff.sessions_held == cliff.sessions_tried == 4
    assert cliff_of(made, Load(sessions=1), 5 * SIZE).sessions_held is None


@pytest.mark.parametrize("capacity", [40, 80, 160])
@pytest.mark.parametrize("live", [1, 3, 8])
def test_hits_are_those_of_an_lru_cache_in_the_same_order(tmp_path: Path, capacity: int, live: int) -> None:
    rng = random.Random(capacity * live)
    fresh = iter(range(1000, 10**6))
    shared = list(range(1, 8))
    sessions = []
    for _ in range(10):
        turns = [[*shared, *(next(fresh) for _ in range(rng.randint(2, 10)))]]
        for _ in range(rng.randint(1, 6)):
            turns.append([*turns[-1], *(next(fresh) for _ in range(rng.randint(1, 6)))])
        sessions.append(turns)
    made = target(tmp_path / "t.jsonl", sessions)
    order, _, cached = ordered(
        made, Load(sessions=live, max_in_flight=1), capacity * SIZE, lambda cached: cached * 0 + 0.01
    )
    flat = [ids for turns in sessions for ids in turns]
    held: OrderedDict[tuple[int, ...], None] = OrderedDict()
    for at in order.rank.argsort():
        chain = [tuple(flat[at][: n + 1]) for n in range(len(flat[at]))]
        hit = next((n for n, block in enumerate(chain[:-1]) if block not in held), len(chain) - 1)
        assert cached[at] == hit * SIZE
        for block in reversed(chain):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)


def test_lengths_alone_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    header = {"kvbench_trace": 1, "name": "lengths", "block_size": SIZE, "prefixes": "unknown"}
    line = {"session_id": "s", "turn": 0, "start_s": 0.0, "input_tokens": 16, "output_tokens": 1, "hash_ids": [1]}
    path.write_text(json.dumps(header) + "\n" + json.dumps(line) + "\n")
    with open_workload(path) as opened, pytest.raises(RefusedError, match="lengths alone"):
        target_of_trace(BlockedTrace(opened))


def test_the_load_that_was_asked_about_has_a_row(tmp_path: Path) -> None:
    made = target(tmp_path / "t.jsonl", ([list(range(100 * n, 100 * n + 10))] * 3 for n in range(1, 9)))
    points = cliff_of(made, Load(sessions=7), 1000 * SIZE).points
    assert [point.sessions for point in points] == [1, 2, 3, 4, 6, 7, 8]
