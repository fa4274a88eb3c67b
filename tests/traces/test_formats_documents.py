"""The examples in the documents on formats are converted, and say what the documents say they do."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.imported import taken_for

from kvbench.errors import InputError
from kvbench.traces.formats import FORMAT_NAMES
from kvbench.traces.importing import open_workload

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {
    section.partition("\n")[0]: section
    for name in ("formats.md", "formats-logs.md")
    for section in re.split(r"^## ", (DOCS / name).read_text(), flags=re.MULTILINE)[1:]
}


@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_becomes_what_the_document_says(tmp_path: Path, name: str) -> None:
    """The first block of a section is a file, the second its report."""
    assert name in FORMAT_NAMES
    (kind, text), (_, report) = re.findall(r"^```(\w+)\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)[:2]
    path = tmp_path / f"example.{kind}"
    path.write_text(text)
    assert taken_for(path) == name
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.sentences() == report.splitlines()


JUNK: list[Any] = [None, True, -1, 1.5, 2**70, "", "x", [], {}, [1], {"a": 1}, [{}], [[]], -5e9, {"type": "text"}]
USED = ("answer_lines", "prompt_lines", "setting_lines", "usage_lines", "answers", "prompts", "same_response")


def damaged(value: Any, rng: random.Random, rate: float) -> Any:
    """`value` with parts of it replaced or left out."""
    if rng.random() < rate:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {name: damaged(each, rng, rate) for name, each in value.items() if rng.random() > rate / 2}
    if isinstance(value, list):
        return [damaged(each, rng, rate) for each in value if rng.random() > rate / 3]
    return value


def damaged_text(kind: str, text: str, rng: random.Random) -> str:
    rate = rng.choice([0.01, 0.05, 0.2])
    if kind == "json":
        return json.dumps(damaged(json.loads(text), rng, rate))
    lines = text.splitlines()
    if kind == "csv":
        cells = [[str(damaged(cell, rng, rate)) for cell in line.split(",")] for line in lines]
        return "\n".join(",".join(row) for row in cells)
    lines = [json.dumps(damaged(json.loads(line), rng, rate)) for line in lines]
    if rng.random() < 0.3:
        rng.shuffle(lines)
    whole = "\n".join(lines)
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole


@pytest.mark.parametrize("name", SECTIONS)
def test_a_damaged_file_is_read_or_refused_and_nothing_is_lost_in_silence(tmp_path: Path, name: str) -> None:
    kind, text = re.findall(r"^```(\w+)\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)[0]
    path = tmp_path / f"example.{kind}"
    read = 0
    for seed in range(25):
        path.write_text(damaged_text(kind, text, random.Random(seed)))
        refused = report = None
        try:
            with open_workload(path, format=name) as opened:
                report = opened.imported
        except InputError as error:
            refused = str(error)
        if refused is not None:
            assert refused.startswith(str(path))
            continue
        assert report is not None
        whole = report.sessions if report.unit in ("conversation", "session line") else report.turns
        used = sum(report.notes.get(code, 0) for code in USED) or whole
        assert used + sum(n for code, n in report.dropped.items() if code != "no_calls") == report.units
        read += 1
    assert read > 1
