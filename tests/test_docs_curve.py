"""The examples of docs/curve.md and docs/info.md, run."""

from __future__ import annotations

import json
import shlex

import pytest
from tests.cli.conftest import Kvbench, kvbench
from tests.test_docs import ROOT, blocks

__all__ = ["kvbench"]


@pytest.mark.parametrize(("page", "commands"), [("curve.md", 3), ("info.md", 1)])
def test_the_examples_give_what_is_shown(kvbench: Kvbench, page: str, commands: int) -> None:
    found = blocks((ROOT / "docs" / page).read_text())
    assert sum(block.startswith("kvbench ") for block in found) == commands
    for at, command in enumerate(found):
        if not command.startswith("kvbench "):
            continue
        done = kvbench(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        shown = found[at + 1] if at + 1 < len(found) and not found[at + 1].startswith("kvbench ") else ""
        for line in shown.splitlines():
            assert line.strip() == "..." or line in done.stdout.splitlines(), line
        if "--by kind" in command:
            assert [group["group"] for group in json.loads(done.stdout)["groups"]] == ["roots", "sub-agents"]
