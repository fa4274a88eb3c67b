"""The gate's report: its page is what its results say, its limits hold, and its simulation is that of the gate."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

HERE = Path(__file__).parents[2] / "reports" / "gate"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("run")


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("simulate")


def test_the_page_is_made_from_the_results_and_every_limit_holds(report: ModuleType) -> None:
    results = json.loads((HERE / "results.json").read_text())
    assert report.render(results) == (HERE / "README.md").read_text()
    checks = report.checks(results)
    assert len(checks) >= 18
    assert [check["what"] for check in checks if not check["holds"]] == []
    assert min(results["run_replicates"], results["request_replicates"]) >= 2000


def test_the_exact_power_stands_beside_the_simulated(report: ModuleType) -> None:
    """At +5% and 5 + 5 it is 79.6%, not 80: P(estimate beyond threshold and critical t), integrated on a grid."""
    se, df = 0.02 * math.sqrt(2 / 5), 8
    spreads = np.linspace(0.001, 4, 40_001)
    density = stats.chi.pdf(spreads * math.sqrt(df), df) * math.sqrt(df)
    needed = np.maximum(math.log(1.03), stats.t.isf(0.01, df) * se * spreads)
    exact = float(np.trapezoid(density * stats.norm.sf((needed - math.log(1.05)) / se), spreads))
    assert exact == pytest.approx(0.79615, abs=1e-5)
    page = (HERE / "README.md").read_text()
    assert f"79.84%, exact {exact:.2%}" in page
    results = json.loads((HERE / "results.json").read_text())
    for row in results["designs"]:
        if row["gates"] == 1 and row["n"][0] == row["n"][1]:
            error = 3.5 * math.sqrt(max(row["fail"], 1e-4) * (1 - row["fail"]) / results["run_replicates"])
            assert report.exact(tuple(row["n"]), row["effect"]) == pytest.approx(row["fail"], abs=error + 1e-4)


def test_a_rate_beyond_its_limit_is_found(report: ModuleType) -> None:
    results = json.loads((HERE / "results.json").read_text())
    for row in results["designs"]:
        row["family_fail"] = 0.02
    beyond = [check["what"] for check in report.checks(results) if not check["holds"]]
    assert len(beyond) == 8
    assert "**beyond**" in report.render(results)


def test_the_simulated_rates_are_those_of_the_gate(simulate: ModuleType) -> None:
    rng = np.random.default_rng(1)
    same, worse = (simulate.cell(rng, 20_000, 5, 5, effect=effect) for effect in (1.0, 1.05))
    # worked out by the noncentral t: three standard errors
    assert worse["fail"] == pytest.approx(0.796, abs=0.009)
    assert worse["pass"] <= 0.05
    assert same["fail"] <= 0.01
    lopsided = simulate.cell(rng, 4000, 5, 5, add=simulate.drift("BBBBBNNNNN", 0.04))
    turned = simulate.cell(rng, 4000, 5, 5, add=simulate.drift("BNNBBNNBBN", 0.04))
    assert lopsided["fail"] > 0.08 > 0.01 > turned["fail"]


def test_a_queue_without_noise_is_that_of_the_textbook(simulate: ModuleType) -> None:
    """Without arrivals close to each other there is no wait, and TTFT is service: its effect is seen as it is."""
    rng = np.random.default_rng(2)
    session = np.zeros((40, simulate.SESSIONS))
    base, _ = simulate.requests(rng, session, 5, effect=1.0, utilisation=1e-9, run_sd=0.0)
    new, _ = simulate.requests(rng, session, 5, effect=1.1, utilisation=1e-9, run_sd=0.0)
    assert new.mean() - base.mean() == pytest.approx(math.log(1.1), abs=0.005)
    assert base.mean() == pytest.approx(0.01 * math.log(3), abs=0.005)
    loaded, _ = simulate.requests(rng, session, 5, effect=1.0, utilisation=0.5, run_sd=0.0)
    assert loaded.mean() > base.mean() + 0.2


def test_over_http_what_is_slower_fails_and_what_is_unchanged_does_not() -> None:
    """By the gate on runs made by hand, and by a whole night."""
    results = json.loads((HERE / "results.json").read_text())
    for name in ("http", "nights"):
        unchanged, slower = results[name]
        assert slower["verdict"] == "fail"
        # 10% of the prefill, which is nearly all of the TTFT.
        assert 1.07 < slower["ratio"] < 1.10
        assert unchanged["verdict"] in ("pass", "inconclusive")
        assert unchanged["reasons"] == slower["reasons"] == []
    codes = {"pass": 0, "fail": 1, "inconclusive": 3}
    assert [row["exit_code"] for row in results["nights"]] == [codes[row["verdict"]] for row in results["nights"]]
