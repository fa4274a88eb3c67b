"""How often stored runs make a night fail though nothing changed, as docs/nightly.md and the output say it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvbench.analysis.gate.judge import STORED_NOTE

ROOT = Path(__file__).parents[3]
REPORT = ROOT / "reports" / "gate"
RESULTS = json.loads((REPORT / "results.json").read_text())["stored"]
DOCS = (ROOT / "docs" / "nightly.md").read_text()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(REPORT))
    return importlib.import_module("run"), importlib.import_module("simulate")


def test_the_table_is_the_reports(modules: tuple[ModuleType, ModuleType]) -> None:
    run, _ = modules
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| \d%.*\|$", DOCS, re.MULTILINE)
    ]
    assert rows == [run.stored_row(row) for row in RESULTS]
    assert len(rows) == 2


def test_the_range_that_the_output_names_holds() -> None:
    first = [share["first"] for row in RESULTS for name, share in row.items() if name.endswith("A/A")]
    assert (round(min(first) * 100), round(max(first) * 100)) == (5, 7)
    for text in (STORED_NOTE, DOCS, (ROOT / "docs" / "gate.md").read_text()):
        assert "5 to 7% of nights" in " ".join(text.split())


@pytest.mark.parametrize("row", RESULTS, ids=lambda row: f"{row['run_sd']:.0%}")
def test_the_rates_are_those_of_the_gate(
    modules: tuple[ModuleType, ModuleType], row: dict[str, dict[str, float]]
) -> None:
    _, simulate = modules
    rng = np.random.default_rng(20261130)
    for when, lasting in (("another", 0.0), ("lasts", 1.0)):
        for change, effect, off in (("A/A", 1.0, 0.012), ("+5%", 1.05, 0.025)):
            found = simulate.stored(rng, 4000, row["run_sd"], lasting=lasting, effect=effect)
            # Three standard errors of a share near 5% are 0.010, near 50% 0.024.
            assert found["confirmed"] == pytest.approx(row[f"{when}, {change}"]["confirmed"], abs=off)


def test_one_night_for_both_sides_is_no_false_alarm(modules: tuple[ModuleType, ModuleType]) -> None:
    """Worked out without the simulation: where nights do not differ, 20 + 3 runs fail as often as the design says."""
    _, simulate = modules
    found = simulate.stored(np.random.default_rng(1), 20_000, 0.02, lasting=1.0, night_sd=0.0)
    assert found["first"] == pytest.approx(0.0057, abs=0.002)
