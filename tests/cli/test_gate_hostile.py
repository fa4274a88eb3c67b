"""Text that a server, a tool or a file system could have said, through the whole command into every output."""

from __future__ import annotations

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import xmlschema
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.cli.conftest import Kvbench
from tests.made_runs import make_abba

FIXTURES = Path(__file__).parents[1] / "fixtures"
SCHEMA = xmlschema.XMLSchema(str(FIXTURES / "junit.xsd"))
SAID = '\x00\x07\x1b[31m]]> <script>|`x`\r\n::error::no\n# HELP evil\u2028\u202e🧨 %0A\\ " \ufffe'
OUTPUTS = ("--junit", "gate.xml", "--markdown", "gate.md", "--openmetrics", "gate.om", "--github", "--json")


def check(kvbench: Kvbench, tmp_path: Path, *words: object) -> list[str]:
    """The reasons, after every output was read by a parser of its own and quotes nothing that drives anything."""
    summary = tmp_path / "summary.md"
    summary.write_text("")
    done = kvbench(*words, *OUTPUTS, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    reasons: list[str] = json.loads(done.stdout)["reasons"]
    root = ET.parse(tmp_path / "gate.xml").getroot()
    SCHEMA.validate(root)
    assert len(root.findall(".//error")) == 1
    families = list(text_string_to_metric_families((tmp_path / "gate.om").read_text()))
    assert {family.name for family in families} >= {"kvbench_verdict", "kvbench_gate_verdict"}
    assert not any("evil" in family.name for family in families)
    table = (tmp_path / "gate.md").read_text()
    assert summary.read_text() == table
    assert summary.stat().st_size < 1024 * 1024
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {10}
    assert "<script>" not in table
    # One line a reason, each one command.
    annotations = done.stderr.splitlines()
    assert len(annotations) == len(reasons)
    assert all(line.startswith("::error title=kvbench gate refused::") for line in annotations)
    shown = kvbench(*words).stdout
    for text in (table, done.stderr, shown, (tmp_path / "gate.om").read_text(), (tmp_path / "gate.xml").read_text()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028\u202e]", text)
    return reasons


def test_what_a_server_says(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 5, server={"server": SAID, "model": SAID * 20_000}, endpoint={"url": SAID})
    words = ("gate", "new-*", "--baseline", "base-*", "--fail-if", "ttft.geomean>+3%")
    reasons = check(kvbench, tmp_path, *words)
    assert {reason.partition(" differs")[0] for reason in reasons} == {
        *("endpoint.dialect", "endpoint.url", "server.model", "server.server")
    }


def test_names_of_files(kvbench: Kvbench, tmp_path: Path) -> None:
    names = [SAID.replace("\x00", "").replace("/", "") + ".json", "no utf-8 \udcff.json"]
    for i, name in enumerate(names):
        shutil.copy(FIXTURES / "results" / f"vllm-base-{i}.json", os.fsencode(tmp_path / name))
    # A comma would make two names of it.
    reasons = check(kvbench, tmp_path, "gate", *names, *names, "--slo", "errors<5%")
    assert reasons == [f"{name} is given twice: each run counts once" for name in names]
