"""docs/synth.md describes every field of a recipe, and its examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.cli.conftest import Kvbench

from kvbench.traces.importing import validate_workload
from kvbench.traces.synth import fields
from kvbench.traces.synth.dice import Draw
from kvbench.traces.synth.load import bundled_recipes, load_recipe
from kvbench.traces.synth.recipe import synthesis

TEXT = (Path(__file__).parents[2] / "docs" / "synth.md").read_text()


BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [block for name, block in BLOCKS if name == language]


def test_every_field_of_a_recipe_is_described() -> None:
    kinds = [kind for kind in vars(fields).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    assert len(kinds) >= 18
    names = {field.encode_name for kind in [*kinds, Draw] for field in msgspec.structs.fields(kind)}
    described = {part for code in re.findall(r"`([^`]+)`", PROSE) for part in re.findall(r"\w+", code)}
    assert names - described == set()


def test_every_bundled_recipe_is_described() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE)) >= set(bundled_recipes())


def test_the_recipes_shown_make_traces(tmp_path: Path) -> None:
    shown = blocks("toml")
    assert len(shown) == 2
    for recipe in shown:
        (tmp_path / "r.toml").write_text(recipe)
        with (tmp_path / "r.jsonl").open("wb") as out:
            made = synthesis(load_recipe(tmp_path / "r.toml"), "r").write(out.write)
        found = validate_workload(tmp_path / "r.jsonl")
        assert (found.errors, found.warnings, found.turns) == ((), (), made.turns)


@pytest.mark.parametrize("block", range(len(blocks(""))))
def test_the_commands_shown_work(kvbench: Kvbench, tmp_path: Path, block: int) -> None:
    for command in blocks("")[block].splitlines():
        program, *words = shlex.split(command)
        assert program == "kvbench"
        if words[0] == "run":
            continue  # tests/cli runs what synth makes
        done = kvbench(*words)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout
