from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.model import RunInfo
from kvbench.runs.reader import load_run, resolve_run, status_text

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "runs" / "one"))


def test_schema_1_is_read_as_it_was_written() -> None:
    run = load_run(FIXTURE)
    assert run.info.schema_version == 1
    assert (run.info.status, run.info.name, run.info.seed) == ("done", "fixture", 7)
    assert len(run.records) == 8
    assert run.warnings == []
    assert [event["kind"] for event in run.events] == ["metrics", "lag", "retry", "metrics"]
    first = run.records[1]
    assert (first.request_id, first.clock.sent, first.clock.chunks[:2]) == (
        "q1",
        1_001_000_000,
        [1_201_000_000, 1_221_000_000],
    )
    assert (first.usage.input_tokens, first.usage.cached_tokens) == (1000, 0)
    assert first.expectation is not None
    assert (first.expectation.rule, first.expectation.floor, first.expectation.ceiling) == ("block 32", 0, 0)
    assert run.records[4].expectation is None


def test_torn_last_line_is_dropped_with_a_warning(run_dir: Path) -> None:
    file = run_dir / "records.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[0][:-40])
    run = load_run(run_dir)
    assert len(run.records) == 8
    assert [w.code for w in run.warnings] == ["torn_line"]
    assert "records.jsonl:9" in run.warnings[0].message
    assert run.warnings[0].advice


@pytest.mark.parametrize("name", ["records.jsonl", "events.jsonl", "expectations.jsonl"])
def test_torn_middle_line_names_file_and_line(run_dir: Path, name: str) -> None:
    file = run_dir / name
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:20] + b"\n"
    file.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=rf"{name}:2: broken row") as caught:
        load_run(run_dir)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "line", [b"[" * 200_000 + b"\n", b'{"turn": ' + b"9" * 5000 + b"}\n", b"\xff\xfe\n", b"null\n", b"\n"]
)
def test_hostile_rows_name_the_line(run_dir: Path, line: bytes) -> None:
    file = run_dir / "records.jsonl"
    file.write_bytes(file.read_bytes() + line)
    with pytest.raises(InputError, match=r"records\.jsonl:9"):
        load_run(run_dir)


def test_newer_schema_is_refused(run_dir: Path) -> None:
    file = run_dir / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 2}))
    with pytest.raises(InputError, match="version 2; this kvbench reads 1 to 1"):
        load_run(run_dir)


def test_missing_files_are_named(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "events.jsonl").unlink()
    (run_dir / "expectations.jsonl").unlink()
    run = load_run(run_dir)
    assert run.events == []
    assert all(record.expectation is None for record in run.records)
    (run_dir / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"records\.jsonl"):
        load_run(run_dir)
    (run_dir / "run.json").unlink()
    with pytest.raises(InputError, match=r"no run\.json"):
        load_run(run_dir)
    with pytest.raises(InputError, match=r"no run\.json"):
        load_run(tmp_path / "nowhere")


def test_run_json_that_is_something_else(run_dir: Path) -> None:
    (run_dir / "run.json").write_text('{"hello": 1}')
    with pytest.raises(InputError, match=r"run\.json: not a run description"):
        load_run(run_dir)


@pytest.mark.parametrize(
    ("status", "text"),
    [("done", "done"), ("interrupted", "INCOMPLETE (interrupted)"), ("failed", "INCOMPLETE (failed)")],
)
def test_every_status_but_done_is_incomplete(tmp_path: Path, status: str, text: str) -> None:
    info = RunInfo(kvbench_version="0", run_id="x", name="x", status=status, started_at="")  # type: ignore[arg-type]
    assert status_text(info, tmp_path) == text


def test_a_run_is_named_by_path_or_by_id(run_dir: Path) -> None:
    base = run_dir.parent
    assert resolve_run(str(run_dir)) == run_dir
    assert resolve_run(str(run_dir / "records.jsonl")) == run_dir
    assert resolve_run("one", base) == run_dir
    with pytest.raises(InputError, match="no run directory") as caught:
        resolve_run("two", base)
    assert caught.value.hint is not None
    assert "kvbench runs" in caught.value.hint
