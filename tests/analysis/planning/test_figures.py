"""A plan's figures, each worked out by hand in the test, through the object that `kvbench plan --json` prints."""

from __future__ import annotations

import doctest
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kvbench.analysis.planning import money
from kvbench.analysis.planning.traffic import observe
from kvbench.cli.plan import plan
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.bundled import resolve_trace
from kvbench.traces.native import open_trace

app = typer.Typer()
app.command("plan")(plan)

SMALL = """
[model]
bytes_per_token = 100
bytes_per_session = 0
[memory]
kv = 3000
[traffic]
trace = "trace.jsonl"
[[tier]]
name = "host"
bytes = 2000
bytes_per_s = 1000
[speed]
prefill_tokens_per_s = 10
decode_tokens_per_s = 2
tpot_s = 0.5
"""
LINES: list[dict[str, Any]] = [
    {"kvbench_trace": 1, "name": "small", "block_size": 10},
    {"session_id": "a", "turn": 0, "start_s": 0, "input_tokens": 30, "output_tokens": 4, "hash_ids": [1, 2, 3]},
    {"session_id": "a", "turn": 1, "delay_s": 100, "input_tokens": 40, "output_tokens": 4, "keep_blocks": 3}
    | {"hash_ids": [6]},
    {"session_id": "b", "turn": 0, "start_s": 50, "input_tokens": 20, "output_tokens": 4, "hash_ids": [4, 5]},
]
"""In time: a's 3 blocks, b's 2, then a's 3 again and one new. HBM of 3 blocks has one of a's left, the tail having gone
first; with two more blocks below it nothing is lost."""


def made(tmp_path: Path, profile: str) -> dict[str, Any]:
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    path = tmp_path / "plan.toml"
    path.write_text(profile)
    done = CliRunner().invoke(app, [str(path), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def asked(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("model", "sessions"),
    [
        ("deepseek-v4.1-flash", (335, 44)),
        ("deepseek-v4-flash", (86, 11)),
        ("deepseek-v3.2", (6, 0)),
        ("deepseek-v1", (0, 0)),
        ("kimi-k3", (17, 2)),
    ],
)
def test_sessions_that_fit_into_40_gb(model: str, sessions: tuple[int, int]) -> None:
    for context, expected in zip((131_072, 10**6), sessions, strict=True):
        found = asked("--model", model, "--kv-memory", "40e9", "--context", str(context))
        assert [row["per_rank"] for row in found["sessions"]] == [expected]
        if model == "kimi-k3":
            assert found["sessions"][0]["per_rank_without_fixed_bytes"] == (22 if context == 131_072 else 2)


def test_an_engines_pages_hold_fewer_sessions() -> None:
    """vLLM on Hopper: 1,800 B/token; 40e9 / (1,800 x 131,072 + 2,727,936) is 167.6."""
    found = asked("--model", "deepseek-v4.1-flash", "--kv-memory", "40e9", "--context", "131072")
    layouts = {each["layout"]: each["per_rank"] for each in found["sessions"][0]["by_layout"]}
    assert layouts["vLLM, Hopper: fp8_ds_mla, block 128"] == 167


def test_memory_is_what_is_left(tmp_path: Path) -> None:
    """80 GiB is 85,899,345,920 B."""
    found = made(
        tmp_path,
        '[memory]\nhbm = "80 GiB"\nweights = { experts = "30 GB", engram = 4e9 }\nactivations = 0\nreserve = "1.5 GB"\n'
        '[model]\nname = "llama-3-8b"\n[traffic]\ncontext = 8192',
    )
    assert found["memory"]["kv_bytes"] == 85_899_345_920 - 30_000_000_000 - 4_000_000_000 - 1_500_000_000
    assert [term["what"] for term in found["memory"]["derived_from"]] == [
        "HBM",
        "weights, experts",
        "weights, engram",
        "activations",
        "reserve",
    ]


def test_tensor_parallel_ranks_hold_less(tmp_path: Path) -> None:
    """8 KV heads over 8 ranks: 131,072 / 8 B a token on each; 40e9 / (16,384 x 8,192) is 298.02."""
    found = asked("--model", "llama-3-8b", "--tp", "8", "--kv-memory", "40e9", "--context", "8192")
    assert found["sessions"][0]["per_rank"] == 298


def test_hits_by_tier_and_what_restoring_takes(tmp_path: Path) -> None:
    found = made(tmp_path, SMALL)
    hbm, host = found["tiers"]
    assert (hbm["tokens"], host["tokens"]) == (30, 20)
    assert (hbm["hit_tokens"], host["hit_tokens"]) == (10, 20)
    assert hbm["token_hit_rate"] == 10 / 90
    assert host["token_hit_rate_with_those_above"] == 30 / 90
    assert host["requests"] == 1
    assert host["restore_s_per_request"] == pytest.approx(20 * 100 / 1000 / 3)
    assert [row["token_hit_rate"] for row in found["eviction"]] == pytest.approx([30 / 90, 10 / 90, 30 / 90])
    assert [row["input_price_per_million"] for row in found["eviction"]] == [[], [], []]
    assert [row["prefill_s"] for row in found["eviction"]] == pytest.approx([2.0, 80 / 3 / 10, 2.0])
    assert found["rule"]["order"] == "leaf-first"
    assert found["rule"]["ceiling_token_hit_rate"] == 30 / 90


def test_the_bound_on_a_trace_leaves_pauses_out(tmp_path: Path) -> None:
    """Computed 60 of 90 tokens: 2 s of prefill a request; answers 4 tokens: 2 s of decode; restored in 2/3 s.

    100 B x 34 tokens, the mean context, are more than 3,000 B: no session fits. Into 8,000 B two do, each there for
    2 + 4 x 0.5 s; and then nothing is restored.
    """
    none = made(tmp_path, SMALL)
    assert none["sessions"][0]["tokens"] == 34
    assert none["throughput"]["disaggregated"] == {"requests_per_s": 0.0, "binds": "sessions"}
    found = made(tmp_path, SMALL.replace("kv = 3000", "kv = 8000"))["throughput"]
    assert found["sessions"] == 2
    assert found["residence_s"] == pytest.approx(2 + 2)
    assert {bound["name"]: bound["requests_per_s"] for bound in found["bounds"]} == pytest.approx(
        {"prefill": 0.5, "decode": 0.5, "sessions": 0.5}
    )
    assert found["colocated"] == {
        "requests_per_s": pytest.approx(0.25),
        "binds": "prefill and decode, prefill the more",
    }


def test_a_slow_tier_binds(tmp_path: Path) -> None:
    """20 tokens of 100 B at 10 B/s are 200 s, on one request of three; sessions are no bound where tpot is not said."""
    slow = SMALL.replace("bytes_per_s = 1000", "bytes_per_s = 10").replace("tpot_s = 0.5", "")
    found = made(tmp_path, slow)
    for way in ("disaggregated", "colocated"):
        assert found["throughput"][way]["requests_per_s"] == pytest.approx(3 / 200)
        assert found["throughput"][way]["binds"] == "restoring from host"
    assert any("tpot_s" in each["needs"] for each in found["not_computed"])


def test_replay_after_a_pause(tmp_path: Path) -> None:
    """Only a's second request pauses (100 s) behind a prefix that is there: 8 of its 30 cached tokens come again."""
    found = made(tmp_path, SMALL + "[replay]\ntokens = 8\nwindow_ttl_s = 99\n")
    assert found["replay"]["share_of_requests"] == pytest.approx(1 / 3)
    assert found["replay"]["seconds_per_request"] == pytest.approx(8 / 3 / 10)
    assert found["request"]["computed_tokens"] == pytest.approx(68 / 3)
    none = made(tmp_path, SMALL + "[replay]\ntokens = 8\nwindow_ttl_s = 100\n")
    assert none["replay"]["tokens_per_request"] == 0
    half = made(tmp_path, SMALL + "[replay]\ntokens = 8\nwindow_lost = 0.5\n")
    assert half["replay"]["tokens_per_request"] == pytest.approx(4 / 3)


def test_attention_reads_what_stands_before(tmp_path: Path) -> None:
    """b (u c + u^2 / 2): 450 for 30 tokens, 200 for 20, 10 x 30 + 50 for the last; all over 10 tokens a second."""
    found = made(tmp_path, SMALL.replace("[speed]", "[speed]\nattention_s_per_token2 = 0.01"))
    assert found["request"]["prefill_s"] == pytest.approx((60 / 10 + 0.01 * (450 + 200 + 350)) / 3)


def test_what_the_trace_costs(tmp_path: Path) -> None:
    """60 tokens missed at 3, 30 hit at 0.3, 12 of output at 15, for a million: 369 millionths."""
    prices = '[prices]\ncurrency = "USD"\nmiss = 3\nhit = 0.3\noutput = 15\nwanted = 2.1\n'
    found = made(tmp_path, SMALL + prices)
    assert {each["what"]: each["phases"][0]["cost"] for each in found["costs"]} == {
        "request": "0.000123",
        "session": "0.0001845",
        "task (a session with its sub-agents)": "0.0001845",
    }
    assert found["costs"][0]["phases"][0]["cost_uncached"] == "0.00015"
    assert found["needed"]["hit_rate"] == pytest.approx(1 / 3)
    assert found["needed"]["capacity_tokens"] == 50
    assert found["needed"]["capacity_bytes"] == 5000
    prices_each = [row["input_price_per_million"][0]["price"] for row in found["eviction"]]
    assert prices_each == ["2.1", "2.7", "2.1"]  # 10 of 90 hit: 3 - 2.7 / 9
    dearer = made(tmp_path, SMALL + prices.replace("2.1", "2.0"))
    assert dearer["needed"]["capacity_tokens"] is None


def test_a_waiting_session_of_v41_keeps_no_window_and_one_of_k3_its_state(tmp_path: Path) -> None:
    trace = '[traffic]\ntrace = "trace.jsonl"\n'
    v41 = made(tmp_path, f'{trace}[model]\nname = "deepseek-v4.1-flash"\n[memory]\nkv = 1e9\nrunning = 3')
    assert v41["tiers"][0]["tokens"] == (10**9 - 3 * 2_727_936) // 890
    k3 = made(tmp_path, f'{trace}[model]\nname = "kimi-k3"\n[memory]\nkv = 1e9')
    assert k3["tiers"][0]["tokens"] == int(1e9 // (13_824 + 449_372_160 / 34))


def test_v41_replays_every_hit_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    given = ("--model", "deepseek-v4.1-flash", "--kv-memory", "40e9", "--context", "131072")
    found = asked(*given, "--new-tokens", "2000", "--output", "500")
    assert found["request"]["computed_tokens"] == 2_128
    assert any("every hit" in note for note in found["notes"])


WORK = "[traffic]\nnew_tokens = {new}\noutput_tokens = {out}\n[speed]\nprefill_tokens_per_s = 18_700\n"


def test_colocated_against_disaggregated(tmp_path: Path) -> None:
    found = made(tmp_path, WORK.format(new=2_000, out=500) + "decode_tokens_per_s = 5_000")["throughput"]
    assert round(found["disaggregated"]["requests_per_s"], 2) == 9.35
    assert found["disaggregated"]["binds"] == "prefill"
    assert round(found["colocated"]["requests_per_s"], 1) == 4.8


def test_a_measured_run(tmp_path: Path) -> None:
    """16K in, 256 out, nothing cached: 1.142 requests/s were measured, prefill alone gives 1.141."""
    found = made(tmp_path, WORK.format(new=16_384, out=256) + "decode_tokens_per_s = 1e9")["throughput"]
    assert round(found["disaggregated"]["requests_per_s"], 3) == 1.141


SESSIONS = """
[model]
bytes_per_token = 100
bytes_per_session = 0
[memory]
kv = 1_000_000
[traffic]
context = 1000
new_tokens = 100
output_tokens = 100
turns = 5
pause_s = 4
[speed]
prefill_tokens_per_s = 1000
decode_tokens_per_s = 1000
tpot_s = 0.01
"""


def test_sessions_that_stay_bind_and_one_too_many_waits(tmp_path: Path) -> None:
    """10 sessions, each with a request every 4 + 0.1 + 100 x 0.01 s; five of them, and one of ten ends every 2.55 s."""
    found = made(tmp_path, SESSIONS)
    assert found["throughput"]["residence_s"] == pytest.approx(5.1)
    assert found["throughput"]["colocated"] == {"requests_per_s": pytest.approx(10 / 5.1), "binds": "sessions"}
    assert found["pressure"]["reject"] == pytest.approx({"session_s": 25.5, "wait_s": 2.55})
    assert found["pressure"]["evict"]["recompute_s"] == 1.0
    assert found["pressure"]["break_even_bytes_per_s"] == 100_000


def test_a_tier_holds_sessions_that_pause(tmp_path: Path) -> None:
    """90 more below HBM: 100 in all. So nine of ten requests restore their 800 tokens, in 0.5 + 80,000 B / 1 MB/s."""
    tier = '[[tier]]\nname = "host"\nbytes = 9e6\nbytes_per_s = 1e6\nlatency_s = 0.5\n'
    found = made(tmp_path, SESSIONS + tier)
    bounds = {bound["name"]: bound["requests_per_s"] for bound in found["throughput"]["bounds"]}
    assert bounds["sessions"] == pytest.approx(100 / (5.1 + 0.9 * 0.58))
    assert bounds["running sessions"] == pytest.approx(10 / (1.1 + 0.9 * 0.58))
    assert bounds["restoring from host"] == pytest.approx(1 / (0.9 * 0.08))
    assert found["throughput"]["disaggregated"]["binds"] == "running sessions"
    (offload,) = found["pressure"]["offload"]
    assert offload["restore_s"] == pytest.approx(0.5 + 0.1)
    assert offload["sessions"] == 90


def test_the_cost_of_a_session_whose_prompts_grow(tmp_path: Path) -> None:
    """Prompts of 500 to 900 tokens: 3,500 in all, of which all but the first and 4 x 100 are hit: 2,600. Out: 500."""
    prices = '[prices]\ncurrency = "CNY"\nmiss = 10\nhit = 1\noutput = 20\n'
    found = made(tmp_path, SESSIONS + prices)
    session = found["costs"][1]
    assert session["input_tokens"] == 3_500
    assert session["phases"][0]["cost"] == "0.0216"  # 900 x 10 + 2,600 x 1 + 500 x 20
    assert found["pressure"]["evict"]["price"] == [{"when": "always", "cost": "0.009"}]
    assert doctest.testmod(money).failed == 0


TASK = "[task]\ninput_tokens = 1_200_000\noutput_tokens = 15_000\nhit_rate = 0.96\n"


def test_a_task_of_k3(tmp_path: Path) -> None:
    prices = '[prices]\nbook = "together"\nmodel = "kimi-k3"\nat = 2026-11-30\nwanted = 0.408\n'
    found = made(tmp_path, TASK + prices)
    assert found["prices"]["phases"] == [{"when": "always", "miss": "3", "hit": "0.3", "output": "15"}]
    (phase,) = found["costs"][0]["phases"]
    assert (phase["cost"], phase["cost_uncached"]) == ("0.7146", "3.825")
    assert phase["input_price_per_million"] == "0.408"
    assert found["needed"]["hit_rate"] == 0.96


def test_a_task_of_v41_off_peak_and_at_peak(tmp_path: Path) -> None:
    found = made(
        tmp_path, TASK + '[prices]\nbook = "deepseek"\nmodel = "deepseek-flash"\nat = 2026-11-30\ncurrency = "USD"'
    )
    costs = {
        phase["when"]: (float(phase["cost"]), float(phase["cost_uncached"])) for phase in found["costs"][0]["phases"]
    }
    assert round(costs["off-peak"][0], 3) == 0.020
    assert round(costs["off-peak"][1], 3) == 0.189
    assert round(costs["peak"][0], 3) == 0.039


def test_hits_of_each_request_are_those_of_a_cache_that_evicts_tails_first() -> None:
    path = resolve_trace("agent-trace.jsonl")
    with open_trace(path) as opened:
        observed = observe(opened)
        chains = [(request.input_tokens, chain) for request, chain in BlockedTrace(opened, times="recorded").in_order()]
    for capacity in (7, 100, 700):
        cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
        hits = []
        for tokens, chain in chains:
            prefixes = [(at, block) for at, block in enumerate(chain)]
            found = next((at for at, prefix in enumerate(prefixes) if prefix not in cache), len(prefixes))
            hits.append(min(found * observed.block_size, tokens))
            for prefix in reversed(prefixes):
                cache[prefix] = None
                cache.move_to_end(prefix)
                if len(cache) > capacity:
                    cache.popitem(last=False)
        assert observed.hit_tokens(capacity).tolist() == hits
        assert sum(hits) > 0


def test_hits_of_each_request_add_up_to_the_curve() -> None:
    with open_trace(resolve_trace("agent-trace.jsonl")) as opened:
        observed = observe(opened)
    capacities = [0, 1, 100, 400, 1_600, 10_000]
    points = observed.measured(capacities).all.points
    for capacity, point in zip(capacities, points, strict=True):
        assert int(observed.hit_tokens(capacity).sum()) == point.hit_tokens
    assert (observed.hit_tokens(None) == observed.hit_tokens(10_000)).all()
    assert observed.sessions == 18
    assert np.isnan(observed.pause_s).sum() == 18
    assert observed.live_sessions == 12


def test_a_tier_beyond_all_measure_hits_what_an_unbounded_cache_does(tmp_path: Path) -> None:
    huge = SMALL.replace("bytes_per_token = 100", "bytes_per_token = 0.001").replace("bytes = 2000", "bytes = 1e16")
    found = made(tmp_path, huge)
    assert found["tiers"][1]["tokens"] == 10**19
    assert found["tiers"][1]["token_hit_rate_with_those_above"] == 30 / 90
