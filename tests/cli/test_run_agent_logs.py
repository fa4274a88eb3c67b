"""`kvbench run` on a file of each format that docs/formats-logs.md describes, over real HTTP: its own examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench

from kvbench.sim.process import SimProcess

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats-logs.md").read_text()
EXAMPLES = {
    name: (kind, text, report)
    for name, kind, text, report in re.findall(
        r"^## (\S+)\n.*?^```(\w+)\n(.*?)^```\n\n```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
    )
}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("tiny") as process:
        yield process


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_log_of_each_format_runs(kvbench: Kvbench, sim: SimProcess, tmp_path: Path, name: str) -> None:
    kind, text, report = EXAMPLES[name]
    path = tmp_path / f"example.{kind}"
    path.write_text(text)
    done = kvbench("run", path, "--endpoint", sim.url, "--time-scale", "0", "--model", "tiny", "--json")
    assert done.returncode in (0, 3), done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    turns = re.search(r"(\d+) turns?$", report.splitlines()[0])
    assert turns is not None
    assert (got["turns"], got["requests"]["ok"]) == (int(turns[1]), int(turns[1])), done.stderr
    rows = [json.loads(line) for line in (tmp_path / got["run"] / "records.jsonl").read_text().splitlines()]
    assert all(row["usage"]["output_tokens"] == row["wanted_output_tokens"] for row in rows)
    if "block size" in report:
        assert got["prompt_lengths"]["exact_turns"] == got["turns"]
