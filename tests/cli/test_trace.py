"""`kvbench trace` as a process of its own: output, JSON, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import environment
from typer.testing import CliRunner

from kvbench.cli.trace import app
from kvbench.errors import InputError

GOOD = [
    '{"kvbench_trace": 1, "name": "g"}',
    '{"session_id": "a", "turn": 0, "append": [{"role": "user", "content": "12345678"}], "output_tokens": 5}',
    '{"session_id": "a", "turn": 1, "delay_s": 2.5, "append": [{"role": "user", "content": "1234"}], '
    '"output_tokens": 6}',
]


def write(tmp_path: Path, lines: list[str]) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_good_trace_is_valid(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = CliRunner().invoke(app, ["validate", path])
    assert result.exit_code == 0
    assert result.stdout == f"{path}: valid, 1 session, 2 turns\n"
    result = CliRunner().invoke(app, ["validate", path, "--json"])
    shown = json.loads(result.stdout)
    assert (shown["valid"], shown["sessions"], shown["turns"], shown["errors"]) == (True, 1, 2, [])


def test_all_problems_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path, [*GOOD, '{"session_id": "a", "turn": 5, "append": []}', "{", '{"session_id": "b", "turn": 0}']
    )
    result = CliRunner().invoke(app, ["validate", path])
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}:4", f"{path}:5", f"{path}:6", path]
    assert lines[-1] == f"{path}: cannot be run: 3 errors listed above"
    result = CliRunner().invoke(app, ["validate", path, "--json"])
    assert result.exit_code == 2
    shown = json.loads(result.stdout)
    assert not shown["valid"]
    assert [(error["line"], error["field"]) for error in shown["errors"]] == [(4, "turn"), (5, None), (6, None)]


def test_warnings_and_repairs_are_shown_and_do_not_fail(tmp_path: Path) -> None:
    path = write(tmp_path, [*GOOD, "", '{"session_id": "b", "turn": 0, "append": [{"role": "oracle", "content": ""}]}'])
    result = CliRunner().invoke(app, ["validate", path])
    assert result.exit_code == 0
    assert f'{path}:5: warning: append[0].role: unusual role "oracle"' in result.stdout
    assert f"{path}: blank lines skipped: 1" in result.stdout
    assert "valid, 2 sessions, 3 turns, 1 warning" in result.stdout


def test_info_counts_and_labels_estimates(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = CliRunner().invoke(app, ["info", path])
    assert result.exit_code == 0
    assert "input      5 tokens over all turns, longest context 3 (estimated at 4 characters a token" in result.stdout
    assert "output     11 tokens" in result.stdout
    result = CliRunner().invoke(app, ["info", path, "--json"])
    shown = json.loads(result.stdout)
    assert (shown["sessions"], shown["turns"], shown["output_tokens"]) == (1, 2, 11)
    assert (shown["input_tokens"], shown["input_tokens_estimated"]) == (None, 5)
    assert (shown["pause_s"]["n"], shown["pause_s"]["p50"], shown["pause_s"]["max"]) == (1, 2.5, 2.5)


def test_info_of_the_bundled_workload_by_name() -> None:
    result = CliRunner().invoke(app, ["info", "agent-trace.jsonl", "--json"])
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert (shown["name"], shown["sessions"], shown["roots"], shown["sub_agents"]) == ("agent-demo", 18, 13, 5)


@pytest.mark.parametrize("command", ["info", "validate"])
def test_a_missing_trace_is_an_input_error(command: str) -> None:
    result = CliRunner().invoke(app, [command, "nowhere.jsonl"])
    assert isinstance(result.exception, InputError)
    assert "nowhere.jsonl" in result.exception.message


def test_info_refuses_a_bad_trace_with_its_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["info", write(tmp_path, [*GOOD, "{}"])])
    assert isinstance(result.exception, InputError)
    assert result.exception.line == 4


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = "import sys, kvbench.cli.trace; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"msgspec", "numpy", "httpx", "pandas"}.isdisjoint(done.stdout.split())
    assert isinstance(app, typer.Typer)


def weka(tmp_path: Path) -> Path:
    path = tmp_path / "w.json"
    nested = {"t": 0, "type": "n", "model": "small", "in": 70, "out": 3, "hash_ids": [9], "api_time": 1.0}
    requests = [
        {"t": 0, "type": "s", "model": "big", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 4.0},
        {"t": 9, "type": "subagent", "agent_id": "x", "duration_ms": 4500, "requests": [nested]},
        {"t": 12, "type": "s", "model": "big", "in": 200, "out": 0, "hash_ids": [1, 2, 3], "api_time": 4.0},
    ]
    path.write_text(json.dumps({"id": "w", "block_size": 64, "hash_id_scope": "local", "requests": requests}))
    return path


def test_a_published_trace_is_described_with_how_it_was_read(tmp_path: Path) -> None:
    path = weka(tmp_path)
    result = CliRunner().invoke(app, ["info", str(path)])
    assert result.exit_code == 0
    assert "sessions   2: 1 root, 1 sub-agent, depth 2" in result.stdout
    assert "import     weka: 1 trace; 2 sessions (1 sub-agent among them), 3 turns" in result.stdout
    assert "import     times inside sub-agents: relative in 1" in result.stdout
    assert "import     requests without output tokens: 1" in result.stdout
    shown = json.loads(CliRunner().invoke(app, ["info", str(path), "--json"]).stdout)
    assert (shown["trace"], shown["input_tokens"], shown["output_tokens"]) == (str(path), 400, 13)
    assert shown["import"]["nested_t"] == {"relative": 1}
    assert shown["import"]["notes"] == {"joined": 1, "zero_output": 1}
    shown = json.loads(CliRunner().invoke(app, ["info", str(path), "--json", "--nested-t", "absolute"]).stdout)
    assert shown["import"]["nested_t"] == {"absolute": 1}


def test_a_published_trace_is_validated_with_its_requests_named(tmp_path: Path) -> None:
    path = weka(tmp_path)
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"{path}: valid, 2 sessions, 3 turns"
    path.write_text(json.dumps(json.loads(path.read_text().replace("[9]", "[9, 8]")), indent=2))
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 2
    assert f"{path}: requests[1].requests[0].hash_ids: 2 block ids for 70 input tokens of block" in result.stdout
    shown = json.loads(CliRunner().invoke(app, ["validate", str(path), "--json"]).stdout)
    assert (shown["valid"], shown["errors"][0]["line"]) == (False, 0)


def test_a_reader_that_has_left_is_no_error(tmp_path: Path) -> None:
    """As `kvbench trace info | head -1` has it, where head ends first."""
    gone, ours = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "kvbench", "trace", "info", "agent-trace.jsonl"]
    done = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False)
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
