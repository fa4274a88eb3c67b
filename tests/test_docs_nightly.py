"""docs/nightly.md: its specs load, and the shell of its workflow and its cron line is run against simulated servers."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import environment
from tests.short_trace import write_short_trace

from kvbench.analysis.nights.spec import load_spec
from kvbench.analysis.nights.verdict import early_refusals
from kvbench.cli.nightly import _halves
from kvbench.replay.night import Bench, make_runs

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "nightly.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def reference() -> str:
    return (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("text", blocks("toml")[:2], ids=["sides", "history"])
def test_a_spec_loads(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nightly.toml"
    path.write_text(text)
    spec, goals = load_spec(path)
    assert goals.gates
    assert _halves(spec, path)["candidate"].before_run == "./switch.sh candidate"


def test_the_simulated_night_is_one_that_the_gate_takes(tmp_path: Path) -> None:
    """Of one run a side, on a shorter trace: what differs is what is declared."""
    path = tmp_path / "nightly.toml"
    path.write_text(blocks("toml")[2])
    write_short_trace(tmp_path / "chat.jsonl", sessions=1)
    spec, goals = load_spec(path)
    halves = _halves(spec, path)
    bench = Bench(spec.trace, tmp_path, tmp_path, 60.0)
    made = {run.side: tmp_path / run.run for run in make_runs(bench, halves, ["base", "candidate"], confirming=False)}
    assert spec.treatment == ("endpoint.simulated",)
    reasons = early_refusals(made["base"], made["candidate"], goals)
    assert [text for text in reasons if "degraded" not in text] == []


SWITCH = """#!/bin/sh
set -e
[ "$(cat side 2>/dev/null)" = "$1" ] && exit 0
[ -f pid ] && kill "$(cat pid)" && while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
case $1 in base) set -- "$1" 0.03 131072;; *) set -- "$1" 0.06 65536;; esac
rm -f url
{python} -m kvbench sim --port {port} --set prefill_base_s=$2 --set max_model_len=$3 > url 2> sim.log &
echo $! > pid
while [ ! -s url ]; do kill -0 "$(cat pid)" || exit 9; sleep 0.05; done
echo "$1" > side
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Path]:
    """A directory as the workflow's checkout leaves it: spec, trace, switch.sh and an installed kvbench."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = blocks("toml")[0].replace("8000", str(port)).replace("time_scale = 0.2", "time_scale = 0.0")
    spec = spec.replace('"agent-trace.jsonl"', '"short.jsonl"').replace("sessions = 8", "sessions = 1")
    (tmp_path / "nightly.toml").write_text(spec.replace('"server.server"', '"server.max_model_len=65536"'))
    write_short_trace(tmp_path / "short.jsonl")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for path, text in (
        (tmp_path / "switch.sh", SWITCH.format(python=shlex.quote(sys.executable), port=port)),
        (tmp_path / ".venv" / "bin" / "kvbench", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvbench "$@"\n'),
    ):
        path.write_text(text)
        path.chmod(0o755)
    yield tmp_path
    if (tmp_path / "pid").exists():
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def shell(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(
        words, cwd=cwd, env=environment() | env, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_workflows_steps_run_and_find_a_slower_server(bench: Path) -> None:
    """Each side's server is started by its hook, on one port: 30 ms to begin a prefill, and 60 ms."""
    workflow = yaml.safe_load(blocks("yaml")[0])
    steps = {step.get("name"): step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step}
    assert list(steps) == ["Install", "Judge", "History"]
    summary = bench / "step.md"
    judged = shell(steps["Judge"], bench, GITHUB_STEP_SUMMARY=str(summary))
    (night,) = [path for path in (bench / "nights").iterdir() if path.is_dir()]
    told = json.loads((night / "gate.json").read_text())
    sides = [run["side"][0] for run in told["runs"] if not run["repeated"]]
    assert "".join(sides) == "bccbbccbbc", judged.stderr
    if any("degraded" in reason for reason in told["reasons"]):
        pytest.skip("the machine is too busy to measure on")
    assert judged.returncode == 1, judged.stderr
    verdicts = {gate["expr"]: gate["verdict"] for gate in told["gates"]}
    assert verdicts == {"ttft.geomean>+3%": "fail", "hit_rate<-0.02": "pass", "ttft.p95<2s": "pass"}
    # 30 ms more on some 45 ms; the rest of the TTFT is the same.
    assert told["gates"][0]["new"] - told["gates"][0]["base"] == pytest.approx(0.03, abs=0.02)
    assert "❌ fail" in summary.read_text()
    assert "::error title=kvbench gate ttft.geomean>+3%25::" in judged.stderr
    assert ET.parse(bench / "gate.xml").getroot().get("failures") == "1"
    assert {path.name for path in night.iterdir()} == {
        *("night.json", "runs", "gate.json", "junit.xml", "summary.md", "gate.om", "hooks.log")
    }
    drawn = shell(steps["History"], bench)
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout.count(": 1 night, 5 runs") == 2
    assert (bench / "nights.html").stat().st_size > 1000


def test_the_cron_line_tells_the_team_what_went_wrong(bench: Path) -> None:
    (line,) = blocks("crontab")[0].splitlines()
    command = line.split(maxsplit=5)[5].replace("/srv/bench", str(bench))
    # An unescaped % is a newline to cron.
    assert "%" not in command
    (bench / "switch.sh").write_text("#!/bin/sh\necho no such image >&2\nexit 7\n")
    (bench / "mail").write_text('#!/bin/sh\necho "$@" > mailed\n')
    (bench / "mail").chmod(0o755)
    done = shell(command, bench, PATH=f"{bench}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (bench / "mailed").read_text() == "-s kvbench: exit code 4 team@example.com\n"
    said = (bench / "tonight.log").read_text()
    assert "base.before_run ended with exit code 7: ./switch.sh base\nno such image" in said
    assert "Traceback" not in said


def test_the_unit_runs_a_command_that_exists() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(blocks("ini")[0])
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[1:3] == ["nightly", "nightly.toml"]
    section = reference().partition("## kvbench nightly\n")[2].partition("\n## ")[0]
    for option in {*re.findall(r"--[a-z]+", unit["Service"]["ExecStart"]), "--junit", "--markdown", "--github"}:
        assert f"{option} " in section, option
