"""Reports in llm-d's format, read back by the format's own package; figures of the fixture worked out by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llmd_benchmark_report import BenchmarkReportV02, import_benchmark_report
from pydantic import ValidationError
from tests.made_runs import make_run

from kvbench.analysis.llmd import llmd_report
from kvbench.analysis.summary import summarise
from kvbench.errors import RefusedError
from kvbench.render.jsonout import summary_json
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


def written(run_dir: Path, tmp_path: Path) -> Path:
    run = load_run(run_dir)
    summary = summarise(run)
    file = tmp_path / "report.json"
    file.write_bytes(msgspec.json.encode(llmd_report(run, summary, summary_json(summary, run_dir))))
    return file


def read(run_dir: Path, tmp_path: Path) -> BenchmarkReportV02:
    report = import_benchmark_report(str(written(run_dir, tmp_path)))
    assert isinstance(report, BenchmarkReportV02)
    return report


def changed(tmp_path: Path, **changes: Any) -> Path:
    copy = Path(shutil.copytree(FIXTURE, tmp_path / "run"))
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(info | changes))
    return copy


def test_figures_as_the_formats_own_reader_sees_them(tmp_path: Path) -> None:
    report = read(FIXTURE, tmp_path)
    aggregate = report.results.request_performance.aggregate
    # Six turns: four ok, one failed, one skipped after it.
    assert (aggregate.requests.total, aggregate.requests.failures, aggregate.requests.incomplete) == (5, 1, 0)
    # TTFT of the four: 0.04, 0.05, 0.1 and 0.2 s.
    ttft = aggregate.latency.time_to_first_token
    assert (ttft.units, ttft.mean, ttft.min, ttft.p50, ttft.max) == (
        "s",
        *map(pytest.approx, (0.0975, 0.04, 0.075, 0.2)),
    )
    # Several tokens come in one chunk there: the gaps are not between tokens.
    assert aggregate.latency.inter_token_latency is None
    sessions = report.results.session_performance.sessions
    assert (sessions.total, sessions.succeeded, sessions.failed) == (2, 1, 1)
    assert (sessions.total_events, sessions.total_events_completed, sessions.total_events_cancelled) == (6, 4, 1)
    (component,) = report.results.observability.components
    assert component.component_label == report.scenario.stack[0].metadata.label
    assert (component.aggregate.cache_hit_rate.units, component.aggregate.cache_hit_rate.mean) == ("percent", 64.8)
    engine = report.scenario.stack[0].standardized
    assert (engine.kind, engine.tool, engine.tool_version) == ("generic", "vLLM", "0.32.0")


def test_inter_token_latency_where_a_chunk_is_a_token(tmp_path: Path) -> None:
    latency = read(make_run(tmp_path, "run", 0), tmp_path).results.request_performance.aggregate.latency
    assert (latency.inter_token_latency.mean, latency.inter_token_latency.max) == (pytest.approx(0.01),) * 2


def test_all_that_a_run_has_beyond_the_format_is_in_it_too(tmp_path: Path) -> None:
    summary = summary_json(summarise(load_run(FIXTURE)), FIXTURE)
    extra = read(FIXTURE, tmp_path).results.observability.model_extra["kvbench"]
    del summary["run"]
    # Nulls (not reported), and numbers as small as 4e-06, come through as they are.
    assert extra == json.loads(msgspec.json.encode(summary))
    assert extra["own_error"]["stamp_bound_p99_s"] == 4e-6
    assert "suspended_s" in extra["own_error"]


def test_the_package_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    plain = json.loads(written(FIXTURE, tmp_path).read_text())
    plain["results"]["request_performance"]["kvbench"] = 1
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        BenchmarkReportV02(**plain)


def test_a_run_that_must_not_be_taken_at_its_word_says_so(tmp_path: Path) -> None:
    trust = {"verdict": "degraded", "reasons": ["send lag p99 900 ms"]}
    run = read(changed(tmp_path, status="interrupted", trust=trust), tmp_path).run
    assert run.keywords == ["incomplete", "degraded"]
    assert run.description == "INCOMPLETE (interrupted); degraded: send lag p99 900 ms; fixture -> tiny"


def test_a_run_that_broke_the_rules_it_was_made_by_says_so(tmp_path: Path) -> None:
    rules = {"name": "agentx", "valid": False, "reasons": ["window 3 s < 900 s (--duration)"]}
    run = read(changed(tmp_path, rules=rules), tmp_path).run
    assert run.keywords == ["agentx", "not-valid"]
    assert run.description == "not valid by the agentx rules: window 3 s < 900 s (--duration); fixture -> tiny"


def test_no_load_is_described_where_no_input_length_is_known(tmp_path: Path) -> None:
    copy = changed(tmp_path)
    lines = [json.loads(line) for line in (copy / "records.jsonl").read_text().splitlines()]
    for record in lines:
        record["usage"] = {}
    (copy / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    report = read(copy, tmp_path)
    assert report.scenario.load is None
    aggregate = report.results.request_performance.aggregate
    assert (aggregate.requests.input_length, aggregate.throughput.input_token_rate) == (None, None)
    assert report.results.observability.components is None


def test_text_of_any_kind(tmp_path: Path) -> None:
    name = "a\x00\x1b[31m]]>\u202e😀\u2028" + "x" * 100_000
    server = {"server": f"{name} 1.0", "model": name}
    report = read(changed(tmp_path, name=name, server=server), tmp_path)
    assert report.run.description == f"{name} -> {name}"
    assert report.scenario.stack[0].standardized.tool == name


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no turn that succeeded"):
        written(make_run(tmp_path, "run", 0, failed=48), tmp_path)
