"""`kvbench gate` writes its verdict for machines."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.cli.conftest import Kvbench
from tests.made_runs import make_abba

WORDS = ("gate", "new-*", "--baseline", "base-*", "--fail-if", "ttft.geomean>+3%", "--fail-if", "tpot.geomean>+3%")


def test_one_verdict_in_every_form(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 6, ttft=1.2)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    files = ("--junit", "gate.xml", "--markdown", "gate.md", "--openmetrics", "gate.om", "--github", "--json")
    done = kvbench(*WORDS, *files, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 1, done.stderr
    ratio = json.loads(done.stdout)["gates"][0]["ratio"]
    suite = ET.parse(tmp_path / "gate.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    table = (tmp_path / "gate.md").read_text()
    assert summary.read_text() == f"before\n{table}"
    families = {f.name: f for f in text_string_to_metric_families((tmp_path / "gate.om").read_text())}
    assert families["kvbench_gate_ratio"].samples[0].value == ratio == pytest.approx(1.2, rel=0.02)
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert error.startswith("::error title=kvbench gate ttft.geomean>+3%25::")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--junit", "none/gate.xml"), "there is no directory none"),
        (("--junit", "gate.out", "--openmetrics", "./gate.out"), "--junit writes the same file"),
        (("--markdown", "runs"), "is a directory"),
        (("--github",), "GITHUB_STEP_SUMMARY is not set"),
    ],
)
def test_what_cannot_be_written_is_said_first(
    kvbench: Kvbench, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    make_abba(tmp_path / "runs", 1)
    done = kvbench(*WORDS, *words, env={"GITHUB_STEP_SUMMARY": ""})
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
