"""Result files that the tools themselves wrote, against the simulated endpoint; what the gate does not read is cut out.

vLLM 0.32.0, SGLang 0.5.23, AIPerf 0.13.0, GuideLLM 0.8.1. 30 requests of 8 output tokens one after another; `failed`:
12 requests, two at a time, to an endpoint that takes one. vllm-new: its prefill is 20% slower, made in turn with base.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.gate.expression import parse_fail_if
from kvbench.analysis.gate.foreign import load_results
from kvbench.analysis.gate.judge import judge
from kvbench.analysis.metrics import BY_WORD

RESULTS = Path(__file__).parents[2] / "fixtures" / "results"


def load(name: str) -> Evidence:
    (found,) = load_results(RESULTS / name)
    return found


def value(run: Evidence, word: str) -> float | None:
    metric, _, stat = word.partition(".")
    return run.value(BY_WORD[metric], stat or None)


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@pytest.mark.parametrize(
    ("name", "source", "tokens", "values"),
    [
        # 42,360: counted by the server, as its tokenizer is another than the client's (1,000 a prompt).
        ("vllm-base-0.json", "vllm bench serve", (42_360, 240), {"ttft.mean": 0.164596584, "hit_rate": None}),
        ("sglang.jsonl", "SGLang bench_serving", (30_000, 240), {"hit_rate": None}),
        # Its own mean over the requests of profile_export.jsonl; tokens as the server counts them.
        ("aiperf.json", "AIPerf", (23_368, 240), {"ttft.mean": 0.1055404856, "ttft.geomean": None, "hit_rate": 0.0}),
        # Worked out from its 30 requests, each a conversation of one.
        ("guidellm.json", "GuideLLM", (26_228, 240), {"ttft.geomean": 0.1162281692, "ttft.p95": 0.1459646225,
                                                      "hit_rate": 0.0}),
    ],
)  # fmt: skip
def test_a_result_as_its_tool_writes_it(
    name: str, source: str, tokens: tuple[int, int], values: dict[str, float | None]
) -> None:
    run = load(name)
    assert (run.source, run.requested, run.completed, run.failed) == (source, 30, 30, 0)
    assert run.tokens == tokens
    assert run.problems == ()
    for word, wanted in values.items():
        assert value(run, word) == (None if wanted is None else pytest.approx(wanted, rel=1e-6)), word
    assert all(value(run, f"{word}.{stat}") for word in ("ttft", "tpot", "e2e") for stat in ("mean", "p50", "p95"))
    # 8 tokens: the first, and seven gaps.
    mean = {word: value(run, f"{word}.mean") or 0.0 for word in ("ttft", "tpot", "e2e")}
    if source != "AIPerf":  # It counts the tokens of the text again: 219.
        assert mean["e2e"] == pytest.approx(mean["ttft"] + 7 * mean["tpot"], rel=5e-3)


@pytest.mark.parametrize("name", ["vllm-base-0.json", "sglang.jsonl"])
def test_the_geometric_mean_of_their_lists(name: str) -> None:
    assert value(load(name), "ttft.geomean") == pytest.approx(
        geomean(json.loads((RESULTS / name).read_text())["ttfts"]), rel=1e-9
    )


@pytest.mark.parametrize(
    ("name", "ok"),
    [("vllm-failed.json", 1), ("sglang-failed.jsonl", 2), ("aiperf-failed.json", 2), ("guidellm-failed.json", 2)],
)
def test_failures_as_their_tools_count_them(name: str, ok: int) -> None:
    run = load(name)
    assert (run.requested, run.completed, run.failed) == (12, ok, 12 - ok)
    assert value(run, "errors") == (12 - ok) / 12
    # A failed request has a TTFT of 0 in some lists: it is none.
    assert (value(run, "ttft.mean") or 0) > 0.02


def test_a_rate_without_a_limit_is_no_json_and_is_read() -> None:
    assert "Infinity" in (RESULTS / "sglang.jsonl").read_text()
    assert load("sglang.jsonl").facts["workload.request_rate"] == "Infinity"


@pytest.mark.parametrize(("expr", "verdict"), [("ttft.geomean>+3%", "fail"), ("ttft.mean>+30%", "pass")])
def test_a_slower_server_by_vllms_own_benchmark(expr: str, verdict: str) -> None:
    sides = [[load(f"vllm-{side}-{i}.json") for i in range(5)] for side in ("base", "new")]
    judged = judge(sides[0], sides[1], [parse_fail_if(expr)])
    assert (judged.verdict, judged.reasons) == (verdict, [])
    # 20% more for the prefill of 1,412 tokens a prompt on average: of 165 ms some 28.
    assert judged.gates[0]["ratio"] == pytest.approx(1.19, abs=0.04)
