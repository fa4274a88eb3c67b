"""The examples in the documents on formats are converted, and say what the documents say they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvbench.traces.formats import FORMAT_NAMES
from kvbench.traces.importing import open_workload, sniff

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
    assert sniff(path) == name
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.sentences() == report.splitlines()
