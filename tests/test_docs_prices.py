"""docs/prices.md: its commands print what it shows, on the file it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.test_docs import assert_shown
from typer.testing import CliRunner

from kvbench.analysis.pricing.findings import SAYS
from kvbench.cli.main import app

TEXT = (Path(__file__).parent.parent / "docs" / "prices.md").read_text()
BLOCKS = re.findall(r"^```\n(\$ kvbench .*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = [pair for block in BLOCKS for pair in re.findall(r"^\$ kvbench (.*?)\n(.*?)(?=^\$ |\Z)", block, re.M | re.S)]


def test_the_page_has_examples() -> None:
    assert len(SHOWN) == 5


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    (usage,) = re.findall(r"^```jsonl\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "usage.jsonl").write_text(usage)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert_shown(shown, result.stdout)


def test_the_names_it_gives_exist() -> None:
    assert {"boundary", "output_open"} <= SAYS.keys()
