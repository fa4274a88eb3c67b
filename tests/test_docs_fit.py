"""docs/fit.md: its commands print what it shows, on runs against caches that are known."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.analysis.fit.capacity_runs import Blocks, probe
from tests.analysis.fit.test_bill import NOON, request, run_of
from tests.analysis.fit.test_restarts import start, stated
from tests.test_docs import assert_shown
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.runs.reader import Run
from kvbench.runs.writer import EVENTS_FILE, RECORDS_FILE, RUN_FILE

TEXT = (Path(__file__).parent.parent / "docs" / "fit.md").read_text()
SHOWN = re.findall(r"^```\n\$ kvbench (.*?)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
MEMORY = 200 * 1_002_240
"""200 of vLLM's blocks of V4-Flash: 256 tokens at 3,915 bytes; 1,740 of V4.1's, 128 tokens at 900."""


def save(run: Run, name: str, model: str | None = None) -> None:
    info = run.info if model is None else msgspec.structs.replace(run.info, server={"model": model})
    Path(name).mkdir()
    (Path(name) / RUN_FILE).write_bytes(msgspec.json.encode(info))
    for file, rows in ((RECORDS_FILE, run.records), (EVENTS_FILE, run.events)):
        (Path(name) / file).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        save(probe(Blocks(200, 256).serve, memory=MEMORY), "v4-flash", "v4-flash")
        save(probe(Blocks(1_740, 128).serve), "v4.1-flash", "v4.1-flash")
        for length in (4_096, 8_192, 16_384):
            run = start(length, stated(length, 81))
            info = msgspec.structs.replace(run.info, settings={"probe": "occupancy"})
            save(msgspec.structs.replace(run, info=info), f"started-{length}")
        save(run_of(request(NOON, 1_000_000, 790_000, 10_000)), "served")
    return where


def test_the_page_has_examples() -> None:
    assert len(SHOWN) == 4


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(runs: Path, monkeypatch: pytest.MonkeyPatch, command: str, shown: str) -> None:
    monkeypatch.chdir(runs)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert_shown(shown, result.stdout)
    for key in ("within", "off", "allocated_by_layout"):
        assert f"`{key}`" in TEXT
