"""docs/billing.md: its command prints what it shows, on the files it shows; its map and its names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.analysis.billing.findings import SAYS
from kvbench.cli.main import app
from kvbench.prices.invoices.mapped import load_map

TEXT = (Path(__file__).parent.parent / "docs" / "billing.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_command_prints_what_is_shown_and_writes_its_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`...` stands for lines left out."""
    (tmp_path / "usage.jsonl").write_text(block("jsonl"))
    (tmp_path / "amount.csv").write_text(block("csv"))
    monkeypatch.chdir(tmp_path)
    (command, shown) = re.findall(r"^```\n\$ kvbench (.*?)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[0]
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 1, result.output
    for part in shown.split("...\n"):
        assert part in result.stdout
    letter = (tmp_path / "dispute.md").read_text()
    for said in (
        "USD 0.000147",
        "1,000 tokens",
        "2026-10-15T12:00:00Z to 2026-10-15T13:00:00Z",
        "hit 0.003",
        "official",
    ):
        assert said in letter
    assert len(letter.splitlines()) < 40


def test_the_column_map_loads(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(block("toml"))
    assert load_map(tmp_path / "map.toml").kinds["Cached input"] == "hit"


def test_every_fault_is_on_the_page() -> None:
    assert [kind for kind in SAYS if f"`{kind}`" not in TEXT] == []
