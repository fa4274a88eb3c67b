from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvbench.runs.writer as writer_module
from kvbench.errors import FailedError, UsageError
from kvbench.model import Clock, Expectation, Record, RunInfo, Usage
from kvbench.runs.lock import is_locked, lock_run
from kvbench.runs.reader import load_run, status_text
from kvbench.runs.writer import RunWriter, new_run_id

INFO = RunInfo(kvbench_version="0", run_id="", name="demo", status="started", started_at="")


def record(name: str, **fields: object) -> Record:
    clock = Clock(scheduled=0, due=0, sent=5, chunks=[7, 9])
    return Record(request_id=name, session_id="s", turn=0, clock=clock, **fields)  # type: ignore[arg-type]


def test_written_rows_come_back(tmp_path: Path) -> None:
    expected = Expectation(rule="block 32", input_tokens=100, floor=64, ceiling=96)
    with RunWriter.create(tmp_path, INFO) as writer:
        writer.record(record("a", usage=Usage(input_tokens=100, cached_tokens=96)))
        writer.record(record("b", attempt=1, error_class="reset"))
        writer.event("lag", 12, lag_ns=3)
        writer.trace_lines(b'{"kvbench_trace": 1}\n{"x": 1}')
        writer.trace_lines(b"")
        writer.expectation("a", 0, expected)
        writer.update(RunInfo(**{**_fields(writer.info), "status": "done"}))
    run = load_run(writer.dir)
    assert run.info.status == "done"
    assert run.info.run_id == writer.dir.name
    assert run.records == [
        record("a", usage=Usage(input_tokens=100, cached_tokens=96), expectation=expected),
        record("b", attempt=1, error_class="reset"),
    ]
    assert run.events == [{"kind": "lag", "at_ns": 12, "lag_ns": 3}]
    assert run.warnings == []
    assert (writer.dir / "trace.jsonl").read_bytes() == b'{"kvbench_trace": 1}\n{"x": 1}\n'
    assert sorted(p.name for p in writer.dir.iterdir()) == [
        "events.jsonl",
        "expectations.jsonl",
        "records.jsonl",
        "run.json",
        "trace.jsonl",
    ]


def _fields(info: RunInfo) -> dict[str, object]:
    return {name: getattr(info, name) for name in info.__struct_fields__}


def test_each_row_is_in_the_file_as_soon_as_it_is_recorded(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path, INFO) as writer:
        writer.record(record("a"))
        assert json.loads((writer.dir / "records.jsonl").read_text())["request_id"] == "a"


@pytest.mark.parametrize("name", ["../../x", "a/b\\c", "..", "", "-rf", "x\0y\n", "né " * 40, ".hidden"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    assert re.fullmatch(r"\d{8}T\d{6}Z-[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{6}", new_run_id(name))
    with RunWriter.create(tmp_path / "runs", RunInfo(**{**_fields(INFO), "name": name})) as writer:
        assert writer.dir.parent == tmp_path / "runs"
        assert load_run(writer.dir).info.name == name


@pytest.mark.parametrize("run_id", ["../x", "a/b", ".", "a b"])
def test_a_run_id_that_is_a_path_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match="run id"):
        RunWriter.create(tmp_path, RunInfo(**{**_fields(INFO), "run_id": run_id}))


def test_never_overwrites(tmp_path: Path) -> None:
    RunWriter.create(tmp_path, RunInfo(**{**_fields(INFO), "run_id": "one"})).close()
    with pytest.raises(UsageError, match="never overwrites"):
        RunWriter.create(tmp_path, RunInfo(**{**_fields(INFO), "run_id": "one"}))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        RunWriter.create(tmp_path / "file", INFO)


def test_second_writer_is_told_who_holds_the_run(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path, INFO) as writer:
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            lock_run(writer.dir)
        assert is_locked(writer.dir)
        assert status_text(writer.info, writer.dir) == "running"
    assert not is_locked(writer.dir)
    assert status_text(writer.info, writer.dir).startswith("INCOMPLETE")


def test_lone_surrogates_are_escaped_visibly(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path, INFO) as writer:
        writer.record(record("a", output_text="x\ud83dy \U0001f600", usage_raw={"k\udc00": ["\udfff"]}))
    row = json.loads((writer.dir / "records.jsonl").read_bytes().decode("utf-8"))
    assert row["output_text"] == "x\\ud83dy \U0001f600"
    assert row["usage_raw"] == {"k\\udc00": ["\\udfff"]}
    assert load_run(writer.dir).records[0].clock == record("a").clock


def _child(code: str, directory: Path) -> subprocess.Popen[str]:
    body = textwrap.dedent("""
        import sys
        from pathlib import Path
        from kvbench.errors import KvbenchError
        from kvbench.model import Clock, Record, RunInfo
        from kvbench.runs.writer import RunWriter
        info = RunInfo(kvbench_version="0", run_id="child", name="n", status="started", started_at="")
        def record(i):
            return Record(request_id=str(i), session_id="s", turn=i, clock=Clock(scheduled=0, due=0, chunks=[1] * 50))
    """) + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", body, str(directory)], stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_loses_no_row_it_had_recorded(tmp_path: Path) -> None:
    child = _child(
        """
        writer = RunWriter.create(Path(sys.argv[1]), info)
        for i in range(10**9):
            writer.record(record(i))
            if i % 100 == 99:
                print(i, flush=True)
        """,
        tmp_path,
    )
    assert child.stdout is not None
    told = -1
    for line in child.stdout:
        told = int(line)
        if told >= 499:
            os.kill(child.pid, signal.SIGKILL)
            break
    for line in child.stdout:
        told = int(line)
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    run = load_run(tmp_path / "child")
    assert len(run.records) > told >= 499
    assert [r.turn for r in run.records] == list(range(len(run.records)))
    assert status_text(run.info, run.path).startswith("INCOMPLETE")


def test_a_full_disk_stops_with_4_and_leaves_a_valid_run(tmp_path: Path) -> None:
    # A limit on the size of files makes write() come up short, then fail, just as a full disk does.
    child = _child(
        """
        import resource
        writer = RunWriter.create(Path(sys.argv[1]), info)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        codes = []
        for i in range(100):
            try:
                writer.record(record(i))
            except KvbenchError as error:
                codes.append(error.exit_code)
                print(i, error.exit_code, error.message, flush=True)
                if len(codes) == 2:
                    break
        writer.close()
        """,
        tmp_path,
    )
    out, _ = child.communicate()
    assert child.returncode == 0
    first, second = out.splitlines()
    at, code, message = first.split(" ", 2)
    assert code == "4"
    assert "records.jsonl: cannot write: File too large" in message
    assert second.split(" ", 1)[0] == str(int(at) + 1), "a writer that failed must go on failing"
    run = load_run(tmp_path / "child")
    assert [r.turn for r in run.records] == list(range(int(at)))
    assert 5 < len(run.records) < 40
    assert run.warnings == []


def test_run_json_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    child = _child(
        """
        import resource
        writer = RunWriter.create(Path(sys.argv[1]), info)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            writer.update(info)
        except KvbenchError as error:
            print(error.exit_code)
        writer.close()
        """,
        tmp_path,
    )
    out, _ = child.communicate()
    assert out == "4\n"
    assert load_run(tmp_path / "child").info.status == "started"
    assert not (tmp_path / "child" / "run.json.tmp").exists()


def test_rows_are_synced_by_a_timer_and_a_disk_that_loses_them_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SYNC_INTERVAL_S", 0.005)
    synced: list[str] = []
    broken = threading.Event()
    real = os.fsync

    def fsync(fd: int) -> None:
        if broken.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(f"{threading.current_thread().name} {os.readlink(f'/proc/self/fd/{fd}')}")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    writer = RunWriter.create(tmp_path, INFO)
    try:
        writer.record(record("a"))
        wanted = f"kvbench-run-sync {writer.dir / 'records.jsonl'}"
        until(lambda: wanted in synced)
        broken.set()
        writer.record(record("b"))
        until(lambda: writer._failure is not None)
        with pytest.raises(FailedError, match="Input/output error"):
            writer.record(record("c"))
    finally:
        broken.clear()
        writer.close()
    assert [r.request_id for r in load_run(writer.dir).records] == ["a", "b"]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)
