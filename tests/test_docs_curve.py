"""The examples of docs/curve.md, run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.cli.conftest import Kvbench, kvbench
from tests.test_docs import ROOT, blocks

__all__ = ["kvbench"]

TEXT = (ROOT / "docs" / "curve.md").read_text()


def test_the_examples_give_what_is_shown(kvbench: Kvbench, tmp_path: Path) -> None:
    found = blocks(TEXT)
    commands = [block.strip() for block in found if block.startswith("kvbench ")]
    assert len(commands) == 3
    for at, command in enumerate(found):
        if not command.startswith("kvbench "):
            continue
        done = kvbench(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        shown = found[at + 1] if at + 1 < len(found) and not found[at + 1].startswith("kvbench ") else ""
        for line in shown.splitlines():
            assert line.strip() == "..." or line in done.stdout.splitlines(), line
    assert [group["group"] for group in json.loads(done.stdout)["groups"]] == ["roots", "sub-agents"]
