"""The page of the fits' report says what was measured, and the measurements meet what is claimed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

REPORT = Path(__file__).parent.parent.parent / "reports" / "fit"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_report", REPORT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_made_of_the_results() -> None:
    results = json.loads((REPORT / "results.json").read_text())
    assert module().page(results) == (REPORT / "README.md").read_text()


def test_an_answer_is_held_against_the_truth() -> None:
    measured = module().measured
    estimate = {"name": "capacity_tokens", "value": 101.0, "low": 99.0, "high": 103.0, "n": 7}
    case = measured({"estimates": [estimate], "refusals": []}, 100)
    assert (round(case["error"], 9), case["covered"], case["width"], case["requests"]) == (0.01, True, 0.04, 7)
    bound = measured({"estimates": [estimate | {"value": None}], "refusals": []}, 100)
    assert bound == {"refused": ["a bound"]}


def test_the_published_figures_are_as_near_as_the_documentation_says() -> None:
    results = json.loads((REPORT / "results.json").read_text())
    assert all(abs(case["error"]) < 0.02 and case["covered"] for case in results["probe"])
    assert all(abs(case["error"]) < 0.01 for case in results["replay"] if "error" in case)
