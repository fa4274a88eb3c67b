"""Whatever a reader counts has a sentence: the codes are found in the readers' source, not by running into them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvbench.traces import formats
from kvbench.traces.formats import FORMATS, Format
from kvbench.traces.import_report import ImportReport
from kvbench.traces.importing import COMMON_NOTES as COMMON

FOLDER = Path(formats.__file__).parent
MODULES = sorted(path for path in FOLDER.rglob("*.py"))


def codes(path: Path) -> set[str]:
    """notes["code"], dropped["code"], drop("code", ...) and drop="code" in a module."""
    return set(_codes(ast.parse(path.read_text())))


def _codes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            name = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if name.lstrip("_") in ("notes", "dropped"):
                yield from _text(node.slice)
        elif isinstance(node, ast.Call):
            if getattr(node.func, "attr", "") == "drop":
                yield from _text(node.args[0])
            for keyword in node.keywords:
                if keyword.arg == "drop":
                    yield from _text(keyword.value)


def _text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def home(format: Format) -> Path:
    """The module of a format's converter."""
    made = format.converter
    while isinstance(made, partial):
        made = made.func
    return FOLDER / f"{made.__module__.rpartition('.')[2]}.py"


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_format_has_a_sentence_for_each_code_of_its_own(format: Format) -> None:
    assert home(format) in MODULES
    said = COMMON.keys() | format.notes.keys()
    for other in FORMATS:
        if home(other) == home(format):
            said |= other.notes.keys()
    assert codes(home(format)) <= said


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_what_formats_share_is_said_by_one_of_them_at_least(path: Path) -> None:
    said = COMMON.keys() | {code for format in FORMATS for code in format.notes}
    assert codes(path) <= said


def test_the_codes_are_found() -> None:
    found = {code for path in MODULES for code in codes(path)}
    assert len(found) > 40
    assert {"renamed", "empty_subagent", "joined", "no_object"} <= found


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_sentence_has_its_count_once_and_is_right_for_one_and_for_many(format: Format) -> None:
    """A plural with its count behind it ("sub-agents: 1") is right for both; a bare "1 sub-agents" is not."""
    for sentence in (COMMON | format.notes).values():
        assert sentence.count("{n}") == 1
        for number in ("1", "1,234"):
            assert f": {number}" in sentence.format(n=number)


def test_counts_are_right_for_one_and_for_many() -> None:
    one = ImportReport(format="f", files=1, unit="row", units=1, sessions=1, turns=1, sub_agents=1)
    many = ImportReport(format="f", files=2, unit="row", units=1234, sessions=2, turns=2, sub_agents=2)
    assert one.sentences() == ["f: 1 row; 1 session (1 sub-agent among them), 1 turn"]
    assert many.sentences() == ["f: 1,234 rows in 2 files; 2 sessions (2 sub-agents among them), 2 turns"]
