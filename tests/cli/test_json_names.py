"""`--json` where a file's name is no UTF-8: its bytes are escaped, and no command ends in a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app

NAME = os.fsdecode(b"t\xff.jsonl")
TURN = {"session_id": "s", "turn": 0, "input_tokens": 64, "output_tokens": 1, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("info", ()),
        ("validate", ()),
        ("curve", ("--capacity-blocks", "4")),
        ("convert", ("out.jsonl",)),
    ],
)
def test_a_name_that_is_no_utf8_is_escaped(
    command: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [{"kvbench_trace": 1, "name": "t", "block_size": 64}, TURN]
    Path(NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["trace", command, NAME, *more, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert os.fsencode(json.loads(done.stdout)["trace"]).endswith(b"t\xff.jsonl")
