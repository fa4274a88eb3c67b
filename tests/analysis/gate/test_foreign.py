"""Files in the shape that the tools' own writers give them; figures chosen so that each unit can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.gate.expression import parse_fail_if
from kvbench.analysis.gate.foreign import load_results
from kvbench.analysis.gate.judge import judge
from kvbench.analysis.metrics import BY_WORD
from kvbench.errors import InputError


def vllm(ttft_ms: float = 100.0, minute: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "date": f"20261130-10{minute:02d}00",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 200,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
        "duration": 10.0 + ttft_ms / 1e3,
        "completed": 200,
        "failed": 0,
        "total_input_tokens": 204_800,
        "total_output_tokens": 25_600,
        "request_throughput": 20.0,
        "output_throughput": 2560.0,
        "mean_ttft_ms": ttft_ms,
        "median_ttft_ms": ttft_ms - 5,
        "std_ttft_ms": 9.0,
        "p99_ttft_ms": 3 * ttft_ms,
        "mean_tpot_ms": 12.0,
    } | changes


SGLANG = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "server_info": {"model_path": "m"},
    "duration": 50.0,
    "completed": 100,
    "total_input_tokens": 1000,
    "total_output_tokens": 500,
    "output_throughput": 10.0,
    "mean_ttft_ms": 80.0,
    "median_ttft_ms": 70.0,
    "p99_ttft_ms": 200.0,
    "mean_e2e_latency_ms": 900.0,
    "errors": ["", "boom"] + [""] * 99,
    "ttfts": [0.04, 0.09],
}
AIPERF = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "time_to_first_token": {"unit": "ms", "avg": 110.0, "p50": 100.0, "p95": 190.0, "p99": 250.0},
    "request_latency": {"unit": "ms", "avg": 2000.0, "p50": 1900.0},
    "inter_token_latency": {"unit": "us", "avg": 12_000.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 800.0},
    "request_count": {"unit": "requests", "avg": 95.0},
    "error_request_count": {"unit": "requests", "avg": 5.0},
    "total_isl": {"unit": "tokens", "avg": 95_000.0},
    "total_osl": {"unit": "tokens", "avg": 9_500.0},
    "input_config": {"endpoint": {"type": "chat", "streaming": True}},
    "start_time": "2026-11-30T10:00:00",
    "was_cancelled": True,
}
GUIDELLM = {
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": {"type_": "constant", "rate": 4.0}, "backend": {"model": "m"}},
            "scheduler_metrics": {"start_time": 1_796_032_800.0},
            "metrics": {
                "request_totals": {"successful": 98, "errored": 2, "incomplete": 1, "total": 101},
                "time_to_first_token_ms": {"successful": {"mean": 90.0, "median": 80.0, "percentiles": {"p95": 170.0}}},
                "request_latency": {"successful": {"mean": 1.5, "median": 1.4, "percentiles": {"p95": 2.5}}},
                "prompt_token_count": {"successful": {"total_sum": 98_000.0}},
                "output_token_count": {"successful": {"total_sum": 9_800.0}},
            },
        }
    ]
}


def load(tmp_path: Path, record: Any, name: str = "result.json") -> Evidence:
    file = tmp_path / name
    file.write_text(json.dumps(record))
    (found,) = load_results(file)
    return found


def value(run: Evidence, word: str) -> float | None:
    metric, _, stat = word.partition(".")
    return run.value(BY_WORD[metric], stat or None)


@pytest.mark.parametrize(
    ("record", "source", "counts", "tokens", "values"),
    [
        (
            vllm(),
            "vllm bench serve",
            (200, 200, 0),
            (204_800, 25_600),
            {"ttft.mean": 0.1, "ttft.p50": 0.095, "ttft.p99": 0.3, "ttft.p95": None, "tpot.mean": 0.012, "errors": 0.0},
        ),
        (
            SGLANG,
            "SGLang bench_serving",
            (101, 100, 1),
            (1000, 500),
            {"ttft.geomean": 0.06, "e2e.mean": 0.9, "errors": 1 / 101, "output_throughput": 10.0},
        ),
        (
            AIPERF,
            "AIPerf",
            (None, 95, 5),
            (95_000, 9_500),
            {"ttft.p95": 0.19, "e2e.mean": 2.0, "tpot.mean": 0.012, "errors": 0.05, "ttft.geomean": None},
        ),
        (
            GUIDELLM,
            "GuideLLM",
            (None, 98, 2),
            (98_000, 9_800),
            {"ttft.p95": 0.17, "e2e.p50": 1.4, "errors": 0.02, "tpot.mean": None},
        ),
    ],
)
def test_each_tools_figures_in_seconds(
    tmp_path: Path,
    record: dict[str, Any],
    source: str,
    counts: tuple[int | None, int, int],
    tokens: tuple[int, int],
    values: dict[str, float | None],
) -> None:
    run = load(tmp_path, record)
    assert run.source == source
    assert (run.requested, run.completed, run.failed) == counts
    assert run.tokens == tokens
    for word, wanted in values.items():
        assert value(run, word) == (None if wanted is None else pytest.approx(wanted)), word


def test_what_makes_a_result_unusable(tmp_path: Path) -> None:
    assert load(tmp_path, AIPERF).problems == ("was cancelled",)


def pairs(tmp_path: Path, new_ms: float, **changes: Any) -> tuple[list[Evidence], list[Evidence]]:
    sides: tuple[list[Evidence], list[Evidence]] = ([], [])
    for i, place in enumerate("BNNBBNNBBN"):
        ms = (100.0 if place == "B" else new_ms) + 0.1 * i
        record = vllm(ms, i, **(changes if place == "N" else {}))
        sides[place == "N"].append(load(tmp_path, record, f"{i}.json"))
    return sides


def test_a_verdict_from_files(tmp_path: Path) -> None:
    gates = [parse_fail_if("ttft.mean>+3%"), parse_fail_if("errors>1%")]
    assert judge(*pairs(tmp_path, 100.0), gates).verdict == "pass"
    assert judge(*pairs(tmp_path, 110.0), gates).verdict == "fail"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"total_input_tokens": 102_400}, "input tokens differ"),
        ({"completed": 150}, "has 150 of 200 turns"),
        ({"request_rate": 4.0}, "workload.request_rate differs"),
        ({"date": None}, "--allow-order"),
    ],
)
def test_files_that_cannot_be_compared(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    judged = judge(*pairs(tmp_path, 100.0, **changes), [parse_fail_if("ttft.mean>+3%")])
    assert judged.verdict == "refused"
    assert any(said in reason for reason in judged.reasons), judged.reasons


def test_one_file_five_times_is_one_run(tmp_path: Path) -> None:
    base, _ = pairs(tmp_path, 100.0)
    copies = [load(tmp_path, vllm(100.0, 2 * i + 1), f"copy{i}.json") for i in range(5)]
    judged = judge(base, copies, [parse_fail_if("ttft.mean>+3%")], allow_order=True)
    assert any("every figure agrees" in reason for reason in judged.reasons)


def test_a_result_a_line(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(json.dumps(vllm(100.0 + i, i)) for i in range(3)) + "\n")
    assert [run.label for run in load_results(file)] == [f"{file}:{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize(
    "text", ["", "[]", "no json", '{"a": 1}', '{"benchmarks": []}', '{"completed": 1, "duration": 1}']
)
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        load_results(file)
    assert str(file) in error.value.message
