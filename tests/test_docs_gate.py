"""The examples of docs/gate.md, run on made-up runs; its list of metrics held against the table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.cli.conftest import Kvbench, kvbench
from tests.made_runs import make_abba
from tests.test_docs import ROOT, blocks

from kvbench.analysis.metrics import BY_WORD, STATISTICS

__all__ = ["kvbench"]
PAGE = (ROOT / "docs" / "gate.md").read_text()


def test_the_examples_run(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 6)
    commands = [line for block in blocks(PAGE) for line in block.splitlines()]
    assert len(commands) == 5
    for command in commands:
        done = kvbench(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr + done.stdout
        if command.endswith("--json"):
            json.loads(done.stdout)
        elif " gate " in command:
            assert done.stdout.splitlines()[-1] == "verdict: PASS"


def test_every_metric_is_listed() -> None:
    (many,) = [line for line in PAGE.splitlines() if line.startswith("| with `.geomean`")]
    (one,) = [line for line in PAGE.splitlines() if line.startswith("| one value")]
    for metric in BY_WORD.values():
        assert (f"`{metric.word}`" in many) is metric.many
        assert (f"`{metric.word}`" in one) is not metric.many
    assert all(f"`.{stat}`" in many for stat in STATISTICS)
