"""What a newcomer reads first fits a terminal of 80 columns."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app


@pytest.mark.parametrize("group", ["", "trace", "probe"])
def test_no_command_is_described_with_half_a_sentence(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*group.split(), "--help"], terminal_width=80).stdout
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert len(commands) > 5
    assert [line for line in commands if line.endswith("...")] == []
