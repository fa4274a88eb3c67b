"""docs/agentx.md: its command and its spec are taken as written, and what it shows of a run is what a run shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from msgspec.structs import replace
from tests.cli.conftest import Kvbench, kvbench  # noqa: F401
from tests.runs.test_agentx import reasons, record

from kvbench.analysis.nights.spec import load_spec
from kvbench.analysis.summary import summarise
from kvbench.cli.nightly import _halves
from kvbench.model import RulesCheck
from kvbench.render.terminal import summary_lines
from kvbench.runs.reader import load_run

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "agentx.md").read_text()


def blocks(language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_command_runs(kvbench: Kvbench) -> None:  # noqa: F811
    words = shlex.split(blocks()[0].partition(">")[0])[1:]
    words[words.index("--endpoint") + 1] = "sim"
    done = kvbench(*words, "--duration", "2")
    assert done.returncode == 3, done.stderr
    got = json.loads(done.stdout)
    assert (got["rules"], got["valid"]) == ("agentx", False)
    assert got["invalid_reasons"][0] == "window 2 s < 900 s (--duration)"
    assert got["warmup_turns"] >= 12, "of 16 trees most are under way"


def test_the_spec_makes_runs_by_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "nightly.toml"
    path.write_text(blocks("toml")[0])
    spec, _ = load_spec(path)
    arguments = _halves(spec, path)["candidate"].arguments
    assert arguments[-4:] == ("--rules", "agentx", "--sessions", "16")


def test_what_it_shows_of_a_run_is_what_a_run_shows() -> None:
    course = [record(i, "context_overflow" if i < 14 else None) for i in range(1120)]
    found = reasons(course, settings={"duration_s": 300.0})
    run = load_run(ROOT / "tests" / "fixtures" / "run-schema-1")
    rules = RulesCheck(name="agentx", valid=False, reasons=found)
    lines = summary_lines(replace(summarise(run), rules=rules), "next")
    shown = [f"{line.label:<11}{line.text}" if line.label else line.text for line in lines]
    at = next(i for i, text in enumerate(shown) if text.startswith("rules"))
    assert blocks()[1].splitlines() == shown[at : at + 3]


def test_every_option_it_names_exists() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text()
    for option in set(re.findall(r"--[a-z][a-z-]+", TEXT)):
        assert f"{option} " in reference, option
