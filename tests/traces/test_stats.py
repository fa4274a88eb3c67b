"""Numbers of a trace, against values worked out by hand and by brute force."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.public_traces import data

from kvbench.traces.importing import open_workload
from kvbench.traces.native import open_trace
from kvbench.traces.stats import TraceStats, trace_stats


def stats(tmp_path: Path, *lines: dict[str, Any], ttl_s: float = 300.0) -> TraceStats:
    path = tmp_path / "by-hand.jsonl"
    header = {"kvbench_trace": 1, "block_size": 10}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    with open_trace(path) as trace:
        return trace_stats(trace, ttl_s=ttl_s)


def test_a_tree_with_text(tmp_path: Path) -> None:
    user = [{"role": "user", "content": "x" * 40}]
    found = stats(
        tmp_path,
        {"prefix": "p", "messages": [{"role": "system", "content": "s" * 400}]},
        {"prefix": "unused", "tools": [{}]},
        {"session_id": "a", "turn": 0, "start_s": 2, "prefix": "p", "append": user, "output_tokens": 5},
        {"session_id": "b", "turn": 0, "parent": {"session_id": "a", "turn": 0}, "delay_s": 1, "append": user},
        {"session_id": "c", "turn": 0, "parent": {"session_id": "b", "turn": 0}, "delay_s": 4, "append": user},
        {"session_id": "b", "turn": 1, "delay_s": 2, "append": user, "recorded": {"e2e_s": 10}, "model": "m"},
        {"session_id": "a", "turn": 1, "delay_s": 3, "after": ["b", "c"], "append": user, "output_tokens": 7},
        ttl_s=2.5,
    )
    totals = found.totals
    assert totals.name == "by-hand"
    assert (totals.sessions, totals.roots, totals.sub_agents, totals.depth) == (3, 1, 2, 3)
    assert (totals.turns, totals.joins) == (5, 1)
    assert totals.input_tokens is None
    assert totals.input_tokens_estimated == 110 + 10 + 10 + 20 + 120
    assert totals.longest_context_tokens_estimated == 120
    assert (totals.output_tokens, totals.turns_without_output_tokens) == (12, 3)
    # lengths 10, 10, 20, 110, 120
    lengths = totals.input_length_tokens
    assert (lengths.n, lengths.mean, lengths.min, lengths.p50, lengths.max) == (5, 54, 10, 20, 120)
    assert (totals.output_length_tokens.n, totals.output_length_tokens.p50) == (2, 6)
    assert (totals.growth_tokens.n, totals.growth_tokens.mean, totals.shrinking_turns) == (2, 10, 0)
    # pauses 1, 2, 3, 4: p95 lies 0.85 of the way from 3 to 4
    pause = totals.pause_s
    assert (pause.n, pause.p50, pause.p95, pause.max) == (4, 2.5, pytest.approx(3.85), 4.0)
    assert (totals.pauses_beyond_ttl, totals.ttl_s) == (2, 2.5)
    # a.0 at 2, b.0 at 3, b.1 at 5 until 15, c.0 at 7; a.1 at 15 + 3
    assert totals.span_s == 18.0
    assert [(use.name, use.sessions, use.tokens_estimated) for use in totals.shared_prompts] == [
        ("p", 1, 100),
        ("unused", 0, 1),
    ]
    assert totals.models == ("m",)
    # live: a 2..18, b 3..15, c at 7
    live = found.load.live_sessions
    assert live is not None
    assert (live.peak, live.mean) == (3, (16 + 12) / 16)
    assert found.load.in_flight is None, "most answers have no duration"
    assert found.tokens == "estimated at 4 characters a token, without the chat template"


HASHED = [
    {"session_id": "h", "turn": 0, "input_tokens": 25, "hash_ids": [1, 2, 3], "output_tokens": 5},
    {"session_id": "h", "turn": 1, "delay_s": 8, "input_tokens": 30, "keep_blocks": 2, "hash_ids": [4]},
    {"session_id": "i", "turn": 0, "start_s": 4, "input_tokens": 40, "hash_ids": [1, 2, 5, 6], "output_tokens": 10},
    {"session_id": "i", "turn": 1, "delay_s": 16, "input_tokens": 20, "keep_blocks": 1, "hash_ids": [7]},
    {"session_id": "j", "turn": 0, "start_s": 6, "input_tokens": 20, "hash_ids": [1, 9]},
]


def test_a_trace_of_block_ids_has_exact_lengths(tmp_path: Path) -> None:
    totals = stats(tmp_path, *HASHED[:2]).totals
    assert (totals.input_tokens, totals.input_tokens_estimated) == (55, None)
    assert (totals.longest_context_tokens, totals.longest_context_tokens_estimated) == (30, None)
    assert (totals.output_tokens, totals.turns_without_output_tokens) == (5, 1)


def test_the_ceiling(tmp_path: Path) -> None:
    found = stats(tmp_path, *HASHED)
    ceiling = found.ceiling
    # in order of time: h0 none of 3, i0 2 of 4, j0 1 of 2, h1 2 of 3, i1 1 of 2
    assert (ceiling.hit_blocks, ceiling.blocks, found.unique_blocks) == (6, 14, 8)
    assert (ceiling.block_hit_rate, ceiling.token_hit_rate) == (6 / 14, 60 / 135)
    assert (ceiling.hit_tokens, ceiling.input_tokens) == (60, 135)
    assert ceiling.own_token_hit_rate == (20 + 10) / 135, "h1 keeps 2 blocks, i1 one"
    assert ceiling.eligible_hit_rate == (20 + 10) / (25 + 5 + 40 + 10)
    assert (found.totals.growth_tokens.mean, found.totals.shrinking_turns) == ((5 - 20) / 2, 1)


def test_it_is_one_how_a_line_names_what_its_session_had(tmp_path: Path) -> None:
    whole = [
        {"session_id": "a", "turn": 0, "input_tokens": 20, "hash_ids": [1, 2]},
        {"session_id": "a", "turn": 1, "input_tokens": 30, "hash_ids": [1, 2, 3]},
    ]
    kept = [whole[0], {**whole[1], "keep_blocks": 2, "hash_ids": [3]}]
    found = stats(tmp_path, *whole).ceiling
    assert found.own_token_hit_rate == 20 / 50
    assert found == stats(tmp_path, *kept).ceiling


def test_what_sessions_share(tmp_path: Path) -> None:
    sharing = stats(tmp_path, *HASHED).sharing
    # id 1 is in three sessions and sent 5 times; id 2 in two (h twice, i once) and sent 3 times; of 14 in all
    assert (sharing.pieces, sharing.blocks, sharing.sent_blocks, sharing.share) == (2, 2, 8, 8 / 14)
    first, second = sharing.top
    assert (first.depth_blocks, first.blocks, first.tokens, first.sessions, first.requests) == (0, 1, 10, 3, 5)
    assert (second.depth_blocks, second.blocks, second.sessions, second.requests) == (1, 1, 2, 3)
    assert (first.session_id, second.session_id) == ("h", "h")
    assert (first.share, second.share) == (5 / 14, 3 / 14)


def test_load_over_time(tmp_path: Path) -> None:
    load = stats(tmp_path, *HASHED, ttl_s=5).load
    # h lives from 0 to 8, i from 4 to 20, j at 6
    assert load.live_sessions is not None
    assert (load.live_sessions.peak, load.live_sessions.mean) == (3, (8 + 16) / 20)
    # 5 s of each touch: 3 blocks from 0; at 4 also 5 and 6; at 5 id 3 goes; 9 joins at 6; h1 at 8 brings 4; at 9 go 5
    # and 6, at 11 id 9, at 13 all; i1 at 20
    assert load.working_set_blocks.peak == 6  # 1 2 5 6 9 4 from 8 to 9
    mean = (3 * 4 + 5 * 1 + 4 * 1 + 5 * 2 + 6 * 1 + 4 * 2 + 3 * 2) / 20
    assert load.working_set_blocks.mean == pytest.approx(mean)
    first, *_, last = load.intervals
    assert (first.from_s, first.requests, first.live_sessions_peak, first.working_set_blocks_peak) == (0, 1, 1, 3)
    assert (last.to_s, last.requests, last.live_sessions_peak, last.working_set_blocks_peak) == (20, 1, 1, 2)
    assert len(load.intervals) == 48
    assert sum(interval.requests for interval in load.intervals) == 5


def test_load_of_answers_with_durations(tmp_path: Path) -> None:
    turn = {"turn": 0, "input_tokens": 10, "hash_ids": [1]}
    load = stats(
        tmp_path,
        {"session_id": "a", "start_s": 0, "recorded": {"e2e_s": 4}, **turn},
        {"session_id": "b", "start_s": 3, "recorded": {"e2e_s": 5}, **turn},
    ).load
    assert load.in_flight is not None
    assert (load.in_flight.peak, load.in_flight.mean) == (2, (4 + 5) / 8)
    assert load.in_flight == load.live_sessions


def test_a_session_has_one_request_in_flight_at_a_time(tmp_path: Path) -> None:
    def turn(number: int, e2e_s: float) -> dict[str, Any]:
        recorded = {"e2e_s": e2e_s}
        return {"session_id": "a", "turn": number, "input_tokens": 10, "hash_ids": [1], "recorded": recorded}

    load = stats(tmp_path, turn(0, 0.1), turn(1, 0.2), turn(2, 0.5)).load
    assert load.in_flight is not None
    assert (load.in_flight.peak, load.in_flight.mean) == (1, pytest.approx(1.0))
    other = {**turn(0, 0.0), "session_id": "b", "start_s": 0.1}
    load = stats(tmp_path, turn(0, 0.1), turn(1, 0.2), other).load
    assert load.in_flight is not None
    assert load.in_flight.peak == 2, "an answer that takes no time is there at its moment"


def test_a_pause_of_the_ttl_keeps_the_working_set(tmp_path: Path) -> None:
    # starts at 1.1 and 1.8, in floats more than 0.7 apart
    turn = {"session_id": "a", "input_tokens": 10}
    later = [{"turn": number, "delay_s": 0.7, "hash_ids": [1], **turn} for number in range(1, 20)]
    load = stats(tmp_path, {"turn": 0, "start_s": 1.1, "hash_ids": [1], **turn}, *later, ttl_s=0.7).load
    assert (load.working_set_blocks.peak, load.working_set_blocks.mean) == (1, pytest.approx(1.0))


def test_a_single_moment_has_no_load(tmp_path: Path) -> None:
    load = stats(tmp_path, {"session_id": "a", "turn": 0, "input_tokens": 10, "hash_ids": [1]}).load
    assert load.live_sessions is None
    assert (load.working_set_blocks.peak, load.working_set_blocks.mean) == (1, None)
    assert [(i.from_s, i.to_s, i.requests, i.working_set_blocks_peak) for i in load.intervals] == [(0, 0, 1, 1)]


def test_public_conversations_by_brute_force() -> None:
    path = data("mooncake", "conversation_first400.jsonl")
    rows = sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["timestamp"])
    with open_workload(path) as trace:
        found = trace_stats(trace, ttl_s=20)
    owners: dict[int, int] = {}
    for row in rows:
        for block in row["hash_ids"]:
            owners[block] = owners.get(block, 0) + 1
    shared = {block: count for block, count in owners.items() if count > 1}
    assert (found.sharing.blocks, found.sharing.sent_blocks) == (len(shared), sum(shared.values()))
    assert found.ceiling.hit_blocks == sum(shared.values()) - len(shared)
    last: dict[int, float] = {}
    peak = 0
    for at, row in enumerate(rows):
        now = row["timestamp"]
        last |= dict.fromkeys(row["hash_ids"], now)
        if at + 1 == len(rows) or rows[at + 1]["timestamp"] > now:
            peak = max(peak, sum(now - touched < 20_000 for touched in last.values()))
    assert found.load.working_set_blocks.peak == peak
