"""The examples of docs/predict.md, run."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.cli.conftest import Kvbench, kvbench
from tests.test_docs import ROOT, blocks

__all__ = ["kvbench"]


def test_the_examples_give_what_is_shown(kvbench: Kvbench, tmp_path: Path) -> None:
    found = blocks((ROOT / "docs" / "predict.md").read_text())
    shown = {command: found[at + 1] for at, command in enumerate(found) if command.startswith("kvbench ")}
    assert len(shown) == 2
    for commands, lines in shown.items():
        for command in commands.splitlines():
            run = next((tmp_path / "seven").iterdir()) if "seven/RUN" in command else Path()
            done = kvbench(*shlex.split(command.replace("seven/RUN", str(run)))[1:])
            assert done.returncode in ((0, 3) if command.startswith("kvbench run") else (0,)), done.stderr
        for line in lines.splitlines():
            assert line.strip() == "..." or line in done.stdout.splitlines(), done.stdout
