"""docs/plan.md: its profiles load, its commands print what it shows, and every field of a profile is in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.test_docs import assert_shown
from typer.testing import CliRunner

from kvbench.analysis.planning import fields
from kvbench.cli.main import app

TEXT = (Path(__file__).parent.parent / "docs" / "plan.md").read_text()
SHOWN = re.findall(r"^```\n\$ kvbench (.*?)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PROFILES = re.findall(r"^```toml\n# (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_has_examples() -> None:
    assert [command for command, _ in SHOWN][1:] == [f"plan {name}" for name, _ in PROFILES]
    assert len(SHOWN) == 4


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in PROFILES:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.exit_code == 0
    assert_shown(shown, result.stdout)


@pytest.mark.parametrize("table", [value for value in vars(fields).values() if isinstance(value, type)])
def test_every_field_is_named(table: type) -> None:
    if table.__module__ == fields.__name__ and issubclass(table, msgspec.Struct):
        for name in table.__struct_fields__:
            assert re.search(rf"\b{name}\b", TEXT), name
