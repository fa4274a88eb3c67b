"""docs/sim.md: its tables are the code's, its examples run, and what it names exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.cli.conftest import environment

from kvbench.sim.process import SimProcess
from kvbench.sim.reference import renewed
from kvbench.sim.settings import parse_settings, settable
from kvbench.sim.truth import Truth

PAGE = (Path(__file__).parents[2] / "docs" / "sim.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("kvbench ")]


def test_the_tables_are_as_the_code_has_them() -> None:
    assert renewed(PAGE) == PAGE, "run `make docs`"
    for name in settable():
        assert PAGE.count(f"| `{name}` |") in (1, 2), name


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("kvbench run ")])
def test_the_runs_run(command: str, tmp_path: Path) -> None:
    words = [*shlex.split(command)[1:], "--duration", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    assert " ok, 0 failed" in done.stdout


def test_the_example_of_an_endpoint_starts_and_every_path_of_the_page_is_there() -> None:
    [command] = [shlex.split(line) for line in COMMANDS if line.startswith("kvbench sim ")]
    settings = parse_settings([word for word in command if "=" in word])
    with SimProcess.start(command[2], settings=settings) as vllm, SimProcess.start("deepseek-api") as deepseek:
        for method, path in re.findall(r"^\| `(GET|POST) (/[a-z/_]+)` \|", PAGE, re.MULTILINE):
            where = deepseek.url if path == "/user/balance" else vllm.url
            body = {"prompt": "x"} if method == "POST" else None
            assert httpx.request(method, where + path, json=body, trust_env=False).status_code == 200, path


def test_every_field_of_the_truth_and_every_setting_named_exists() -> None:
    told = PAGE[PAGE.index("A line of truth has") : PAGE.index("## Where it may be wrong")]
    for field in msgspec.structs.fields(Truth):
        assert f"`{field.name}`" in told, field.name
    switches = PAGE[PAGE.index("## Where it may be wrong") : PAGE.index("## Parameters")]
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", switches))
    assert named <= settable().keys()
    assert {name for name in settable() if name.startswith("fault_")} <= named
