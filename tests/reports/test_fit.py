"""The page of the fits' report says what was measured, and the measurements meet what is claimed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvbench.model import Estimate, FitReport, Refusal

REPORT = Path(__file__).parents[2] / "reports" / "fit"
Row = dict[str, Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(REPORT))
    return {name: importlib.import_module(name) for name in ("cases", "plan", "latency", "page", "run")}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Row]]:
    read: dict[str, list[Row]] = json.loads((REPORT / "results.json").read_text())
    return read


def of(results: dict[str, list[Row]], way: str, kind: str | None = None) -> list[Row]:
    return [row for row in results["cases"] if row["way"] == way and kind in (None, row["kind"])]


def held(rows: list[Row]) -> float:
    """Share of the figures whose interval holds the truth."""
    given = [row for row in rows if "value" in row]
    return sum(row["low"] <= row["truth"] <= row["high"] for row in given) / len(given)


def test_the_page_is_made_of_the_results(load: dict[str, ModuleType], results: dict[str, list[Row]]) -> None:
    assert load["page"].page(results) == (REPORT / "README.md").read_text()
    assert load["run"].lines_of(results) == (REPORT / "results.json").read_text()


def test_a_page_can_be_made_of_one_seed(load: dict[str, ModuleType]) -> None:
    row = {"way": "probe", "kind": "one LRU cache", "seed": 0, "truth": 100, "refused": ["why"]}
    page = load["page"].page({"cases": [row], "latency": []})
    assert "| capacity, by probe | 1 | 1 |  |  |  |" in page
    assert "1 of 1 were refused" in page


def test_one_lru_cache_is_measured_as_the_documentation_says(results: dict[str, list[Row]]) -> None:
    for way, most in (("probe", 0.02), ("replay", 0.01)):
        rows = of(results, way, "one LRU cache")
        given = [row for row in rows if "value" in row]
        assert len(rows) >= 50
        assert len(given) >= 0.98 * len(rows)
        assert all(abs(row["value"] / row["truth"] - 1) < most for row in given)
        assert {row["kind_of_interval"] for row in given} == {"bounds"}
        assert held(rows) == 1
        assert all(row["requests"] <= 250 for row in given if way == "probe")
    rows = of(results, "ttl", "a step")
    assert len(rows) >= 50
    assert all(abs(row["value"] / row["truth"] - 1) < 0.05 for row in rows)
    assert held(rows) == 1
    rules = of(results, "granularity")
    assert len(rules) >= 50
    assert all(row["right"] for row in rules)


def test_intervals_that_are_of_90_percent_hold_the_truth_about_as_often(results: dict[str, list[Row]]) -> None:
    rows = of(results, "interval")
    assert len(rows) >= 200
    assert sum("value" in row for row in rows) >= 0.9 * len(rows)
    assert {row["kind_of_interval"] for row in rows if "value" in row} == {"90%"}
    assert 0.85 <= held(rows) <= 0.97
    assert 0.85 <= held(of(results, "ttl", "a step with lapses")) <= 0.97


def test_speed_is_found_at_five_percent_of_noise(results: dict[str, list[Row]]) -> None:
    rows = results["latency"]
    assert len(rows) >= 50
    assert all(row["refused"] is None for row in rows)
    for name in ("prefill_s_per_token", "attention_s_per_token2"):
        terms = [row["terms"][name] for row in rows]
        assert sum(abs(term["error"]) < 0.03 for term in terms) >= 0.98 * len(terms)
        assert 0.85 <= sum(term["low"] <= 0 <= term["high"] for term in terms) / len(terms) <= 0.97


def test_what_is_not_one_lru_cache_is_refused(load: dict[str, ModuleType], results: dict[str, list[Row]]) -> None:
    for kind in load["plan"].MISFITS:
        for way in ("probe", "replay"):
            rows = of(results, way, kind)
            assert len(rows) >= 50, (way, kind)
            refused = sum("refused" in row and "beside" not in row for row in rows)
            assert refused >= 0.98 * len(rows), (way, kind)
            assert all(row["notes"] for row in rows if "refused" not in row), (way, kind)


def test_an_answer_is_a_figure_a_bound_or_a_refusal(load: dict[str, ModuleType]) -> None:
    figure = load["plan"].figure
    estimate = Estimate(name="x", value=101.0, low=99.0, high=103.0, unit="tokens", method="a 90% interval", n=7)
    row = figure(FitReport(runs=(), estimates=(estimate,)), "x")
    assert row == {
        "value": 101.0, "low": 99.0, "high": 103.0, "requests": 7, "notes": [], "kind_of_interval": "90%"
    }  # fmt: skip
    page = load["page"]
    assert [page.covered(row | {"truth": truth}) for truth in (98, 99, 103, 104)] == [False, True, True, False]
    assert round(page.error(row | {"truth": 100}), 9) == 0.01
    assert page.width(row | {"truth": 100}) == 0.04
    bound = Estimate(name="x", value=None, low=99.0, high=None, unit="tokens", method="", n=7)
    assert figure(FitReport(runs=(), estimates=(bound,), notes=("why",)), "x") == {"at_least": 99.0, "notes": ["why"]}
    bytes_ = Estimate(name="bytes_per_token", value=1.0, low=1.0, high=1.0, unit="", method="", n=1)
    refusal = Refusal(name="x", reason="because", experiment="")
    row = figure(FitReport(runs=(), estimates=(bytes_,), refusals=(refusal,)), "x")
    assert row == {"refused": ["because"], "beside": ["bytes_per_token"]}
    assert page.is_figure(row)


def test_each_kind_is_tried_as_often_as_asked(load: dict[str, ModuleType]) -> None:
    plan = load["plan"]
    cases = plan.all_cases(10, 40)
    assert len(set(cases)) == len(cases) == 10 * (2 + 2 * (1 + len(plan.MISFITS)) + 1) + 40
    assert sum(case.way == "interval" and case.kind == plan.SHARED for case in cases) == 20


def test_an_endpoint_is_asked_over_http(load: dict[str, ModuleType]) -> None:
    plan = load["plan"]
    row = plan.tried(plan.Case("probe", plan.ONE_LRU, 10_000))
    assert row["low"] <= row["truth"] <= row["high"]
    assert row["requests"] <= 250
