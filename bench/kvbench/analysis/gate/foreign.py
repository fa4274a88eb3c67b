"""Results of other benchmark tools as evidence: vllm bench serve, AIPerf, GuideLLM, SGLang's bench_serving.

Their files hold figures and few requests, so a comparison is refused for less: what a run was asked for, its tokens and
its failures are checked where the file says them. Tried on files that the tools wrote: vLLM 0.32.0, SGLang 0.5.23,
AIPerf 0.13.0 (JSON export schema 1.4) and GuideLLM 0.8.1 (report version 2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.gate.evidence import Evidence, flatten, moment
from kvbench.analysis.metrics import Metric
from kvbench.errors import InputError

Json = dict[str, Any]
FORMATS = (
    "vllm bench serve --save-result, AIPerf's profile_export_aiperf.json, GuideLLM's benchmarks.json, SGLang's JSONL"
)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


@dataclass(frozen=True)
class _Result:
    """What a tool's file says. values: by metric's word and statistic ("ttft.p95"), in the metric's unit."""

    source: str
    values: Mapping[str, float | None]
    facts: Mapping[str, Any]
    requested: int | None
    completed: int | None
    failed: int | None
    tokens: tuple[int | None, int | None]
    started_at: datetime | None = None
    problems: tuple[str, ...] = ()


def load_results(path: Path) -> list[Evidence]:
    """Each result of a file, one a file or one a line. InputError for a file that is none, or of no known tool."""
    found = []
    for label, record in _records(path):
        reader = _reader(record)
        if reader is None:
            raise InputError("a result of no tool that is known", path=label, hint=f"known are {FORMATS}")
        found += [_evidence(label, record, result) for result in reader(record)]
    if not found:
        raise InputError("holds no result", path=path, hint=f"known are {FORMATS}")
    return found


def _records(path: Path) -> Iterator[tuple[str, Json]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    try:
        whole = _decoded(data)
    except (ValueError, RecursionError):
        # Or an object a line.
        lines = [line for line in data.split(b"\n") if line.strip()]
    else:
        yield str(path), _object(whole, path, None)
        return
    for number, line in enumerate(lines, start=1):
        try:
            found = _decoded(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}", path=path, line=number) from None
        yield f"{path}:{number}", _object(found, path, number)


def _decoded(data: bytes) -> Any:
    """Python's own writers leave Infinity and NaN, which JSON has not, where a rate is without a limit: as text then,
    so that none is taken for a number. Raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data, parse_constant=str)


def _object(value: Any, path: Path, line: int | None) -> Json:
    if not isinstance(value, dict):
        raise InputError("not a JSON object", path=path, line=line, hint=f"known are {FORMATS}")
    return value


def _reader(record: Json) -> Callable[[Json], list[_Result]] | None:
    if isinstance(record.get("benchmarks"), list):
        return _guidellm
    if "aiperf_version" in record or isinstance(record.get("request_latency"), dict):
        return _aiperf
    if "completed" in record and "duration" in record:
        return _sglang if "server_info" in record or "dataset_name" in record else _vllm
    return None


def _evidence(label: str, record: Json, result: _Result) -> Evidence:
    def value(metric: Metric, stat: str | None) -> float | None:
        if metric.word == "errors":
            turns = (result.completed or 0) + (result.failed or 0)
            return None if result.failed is None or not turns else result.failed / turns
        return result.values.get(f"{metric.word}.{stat}" if stat else metric.word)

    figures = {name: figure for name, figure in result.values.items() if figure is not None}
    if not figures:
        raise InputError("has no figure that can be judged", path=label)
    return Evidence(
        label=label,
        source=result.source,
        started_at=result.started_at,
        ended_at=None,
        facts=flatten({"tool": result.source, "workload": dict(result.facts)}),
        value=value,
        requested=result.requested,
        completed=result.completed,
        failed=result.failed,
        tokens=result.tokens,
        # One mark for all: two results in which every figure is the same are one.
        marks=frozenset({hash((result.completed, tuple(sorted(figures.items()))))}),
        problems=result.problems,
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


def _at(value: Any, *path: str | int) -> Any:
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _flat(record: Json, names: Mapping[str, str]) -> dict[str, float | None]:
    """mean_ttft_ms, median_ttft_ms, p99_ttft_ms ... of vLLM and SGLang, in seconds."""
    values = {}
    for word, theirs in names.items():
        for stat, prefixes in (
            ("mean", ("mean",)),
            ("p50", ("median", "p50")),
            *((p, (p,)) for p in ("p90", "p95", "p99")),
        ):
            told = [
                number for prefix in prefixes if (number := _number(record.get(f"{prefix}_{theirs}_ms"))) is not None
            ]
            values[f"{word}.{stat}"] = told[0] / 1e3 if told else None
    ttfts = record.get("ttfts")
    if isinstance(ttfts, list):
        logs = [math.log(number) for ttft in ttfts if (number := _number(ttft))]
        # Each request counts the same: these files know no sessions.
        values["ttft.geomean"] = math.exp(sum(logs) / len(logs)) if logs else None
    return values


def _vllm(record: Json) -> list[_Result]:
    facts = (
        "backend",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "ramp_up_strategy",
    )
    date = record.get("date")
    try:
        # Local time without a zone, of the end; files of one machine are in order by it.
        at = datetime.strptime(str(date), "%Y%m%d-%H%M%S").replace(tzinfo=UTC) if date else None
    except ValueError:
        at = None
    values = _flat(record, {"ttft": "ttft", "tpot": "tpot", "icl": "itl", "e2e": "e2el"})
    return [
        _Result(
            "vllm bench serve",
            values | {"output_throughput": _number(record.get("output_throughput"))},
            {name: record.get(name) for name in facts},
            _count(record.get("num_prompts")),
            _count(record.get("completed")),
            _count(record.get("failed")),
            (_count(record.get("total_input_tokens")), _count(record.get("total_output_tokens"))),
            at,
        )
    ]


def _sglang(record: Json) -> list[_Result]:
    facts = (
        "backend",
        "dataset_name",
        "request_rate",
        "max_concurrency",
        "sharegpt_output_len",
        "random_input_len",
        "random_output_len",
        "random_range_ratio",
    )
    errors = record.get("errors")
    values = _flat(record, {"ttft": "ttft", "tpot": "tpot", "icl": "itl", "e2e": "e2e_latency"})
    return [
        _Result(
            "SGLang bench_serving",
            values | {"output_throughput": _number(record.get("output_throughput"))},
            {name: record.get(name) for name in facts} | {"model": _at(record, "server_info", "model_path")},
            len(errors) if isinstance(errors, list) else None,
            _count(record.get("completed")),
            sum(1 for error in errors if error) if isinstance(errors, list) else None,
            (_count(record.get("total_input_tokens")), _count(record.get("total_output_tokens"))),
        )
    ]


def _aiperf(record: Json) -> list[_Result]:
    values: dict[str, float | None] = {}
    for word, theirs in (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency"), ("e2e", "request_latency")):
        stats = record.get(theirs)
        scale = _SECONDS.get(str(_at(stats, "unit")).lower())
        for stat, name in (("mean", "avg"), *((p, p) for p in ("p50", "p90", "p95", "p99"))):
            number = _number(_at(stats, name))
            values[f"{word}.{stat}"] = None if number is None or scale is None else number * scale
    config = record.get("input_config")
    names = ("datasets", "concurrency", "request_rate", "request_count", "num_dataset_entries")
    problems = []
    if record.get("was_cancelled"):
        problems.append("was cancelled")
    if record.get("is_complete") is False:
        problems.append(f"is not complete: {record.get('incomplete_reason') or 'no reason given'}")
    values["output_throughput"] = _number(_at(record, "output_token_throughput", "avg"))
    cached = _number(_at(record, "overall_usage_prompt_cache_read_pct", "avg"))
    values["hit_rate"] = None if cached is None else cached / 100
    return [
        _Result(
            "AIPerf",
            values,
            {
                "endpoint_type": _at(config, "endpoint", "type"),
                "streaming": _at(config, "endpoint", "streaming"),
                "models": _at(config, "models", "items") or _at(config, "model_names"),
                "phases": _at(config, "phases"),
                **{name: _at(config, name) for name in names},
            },
            _phases_requests(_at(config, "phases")),
            _count(_at(record, "request_count", "avg")),
            # Left out of the export where there was none.
            _count(_at(record, "error_request_count", "avg")) or 0,
            # The server's own count where it reports one: text counted again may have another length.
            (_aiperf_tokens(record, "prompt", "total_isl"), _aiperf_tokens(record, "completion", "total_osl")),
            _utc(record.get("start_time")),
            tuple(problems),
        )
    ]


def _aiperf_tokens(record: Json, theirs: str, counted_again: str) -> int | None:
    told = _count(_at(record, f"total_usage_{theirs}_tokens", "avg"))
    return told if told is not None else _count(_at(record, counted_again, "avg"))


def _phases_requests(phases: Any) -> int | None:
    """What the measured phases were to send; None where one ends by time or sessions."""
    measured = [phase for phase in phases or () if _at(phase, "kind") != "warmup"]
    counts = [_count(_at(phase, "requests")) for phase in measured]
    return sum(count or 0 for count in counts) if counts and None not in counts else None


def _guidellm(record: Json) -> list[_Result]:
    """One result a benchmark of the file; a sweep has several, of different rates, which the facts tell apart."""
    results = []
    for benchmark in record["benchmarks"]:
        metrics = _at(benchmark, "metrics")
        totals = _at(metrics, "request_totals")
        values: dict[str, float | None] = {}
        for word, theirs, scale in (
            ("ttft", "time_to_first_token_ms", 1e-3),
            ("tpot", "inter_token_latency_ms", 1e-3),
            ("e2e", "request_latency", 1.0),
        ):
            stats = _at(metrics, theirs, "successful")
            for stat, where in (
                ("mean", ("mean",)),
                ("p50", ("median",)),
                *((p, ("percentiles", p)) for p in ("p90", "p95", "p99")),
            ):
                number = _number(_at(stats, *where))
                values[f"{word}.{stat}"] = None if number is None else number * scale
        values["output_throughput"] = _number(_at(metrics, "output_tokens_per_second", "successful", "mean"))
        values |= _guidellm_requests(_at(benchmark, "requests", "successful"), _count(_at(totals, "successful")))
        strategy = _at(benchmark, "config", "strategy")
        names = ("type_", "rate", "streams", "max_concurrency")
        tokens = [_at(metrics, f"{kind}_token_count", "successful", "total_sum") for kind in ("prompt", "output")]
        start = _number(_at(benchmark, "scheduler_metrics", "start_time"))
        results.append(
            _Result(
                "GuideLLM",
                values,
                {name: _at(strategy, name) for name in names}
                | {
                    "model": _at(benchmark, "config", "backend", "model"),
                    "data": _at(record, "config", "spec", "data"),
                },
                _count(_at(benchmark, "config", "constraints", "max_requests", "args", "count")),
                _count(_at(totals, "successful")),
                _count(_at(totals, "errored")),
                (_count(tokens[0]), _count(tokens[1])),
                None if start is None else datetime.fromtimestamp(start, UTC),
            )
        )
    return results


def _guidellm_requests(requests: Any, successful: int | None) -> dict[str, float | None]:
    """What only the requests themselves tell; nothing where the file holds a sample of them."""
    if not isinstance(requests, list) or not requests or len(requests) != successful:
        return {}
    logs: dict[Any, list[float]] = {}
    for request in requests:
        if ttft_ms := _number(_at(request, "time_to_first_token_ms")):
            conversation = _at(request, "info", "conversation_id") or _at(request, "request_id")
            logs.setdefault(conversation, []).append(math.log(ttft_ms / 1e3))
    means = [sum(each) / len(each) for each in logs.values()]
    cached, given = ([_number(_at(request, f"{kind}_tokens")) for request in requests] for kind in ("cached", "prompt"))
    told = None not in cached and None not in given and sum(filter(None, given)) > 0
    return {
        "ttft.geomean": math.exp(sum(means) / len(means)) if means else None,
        "hit_rate": sum(filter(None, cached)) / sum(filter(None, given)) if told else None,
    }


def _utc(value: Any) -> datetime | None:
    """ISO 8601; AIPerf writes local time without a zone, which orders files of one machine."""
    text = value if isinstance(value, str) else None
    return moment(text) or (moment(f"{text}+00:00") if text else None)
