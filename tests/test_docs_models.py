"""docs/models.md: its commands print what it shows, and its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.test_docs import assert_shown
from typer.testing import CliRunner

from kvbench.analysis.models.architectures import ARCHITECTURES, WRAPPERS
from kvbench.cli.main import app

TEXT = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
SHOWN = re.findall(r"^```\n\$ kvbench (.*?)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_has_examples() -> None:
    assert len(SHOWN) == 5


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(command: str, shown: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == (1 if "--trace" in command else 0)
    assert_shown(shown, result.stdout)


def test_the_python_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(code, {})


def test_every_known_architecture_is_named() -> None:
    for kind in (ARCHITECTURES.keys() - WRAPPERS.values()) | WRAPPERS.keys() | {"kimi_linear"}:
        assert re.search(rf"\b{kind}\b", TEXT), kind
