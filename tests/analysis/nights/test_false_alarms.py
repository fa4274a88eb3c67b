"""The table of docs/nightly.md: how often stored runs make a night fail though nothing changed, and what a second set
of runs takes away of it. Made with the gate's own functions."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from kvbench.analysis.gate.decide import outcomes, two_samples

NIGHT = 0.02
REPLICATES = 4000
DOCS = (Path(__file__).parents[3] / "docs" / "nightly.md").read_text()
ROWS = [
    tuple(float(number) for number in re.findall(r"[\d.]+", row))
    for row in re.findall(r"^\| \d%.*\|$", DOCS, re.MULTILINE)
]


def shares(run_sd: float, lasting: float, change: float) -> tuple[float, float]:
    """FAIL of the first set, and of both. lasting: the part of the night's variance that both sets share."""
    rng = np.random.default_rng(20261130)
    stored = rng.normal(0, NIGHT, (REPLICATES, 7, 1)) + rng.normal(0, run_sd, (REPLICATES, 7, 3))
    base = stored.reshape(REPLICATES, -1)[:, -20:]
    kept = rng.normal(0, NIGHT * math.sqrt(lasting), (REPLICATES, 1))
    failed = []
    for _ in range(2):
        moment = rng.normal(0, NIGHT * math.sqrt(1 - lasting), (REPLICATES, 1))
        new = math.log(change) + kept + moment + rng.normal(0, run_sd, (REPLICATES, 3))
        test = two_samples(base, new)
        failed.append(outcomes(test, test.p, math.log(1.03), math.log(1.05)) == "fail")
    return float(failed[0].mean()), float((failed[0] & failed[1]).mean())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]:g}%")
def test_the_table_holds(row: tuple[float, ...]) -> None:
    run_sd, first, another, lasts, low, high = row[0] / 100, *(share / 100 for share in row[1:6])
    # Three standard errors of a share near 5% are 0.010, near 50% 0.024.
    assert shares(run_sd, 0, 1)[0] == pytest.approx(first, abs=0.012)
    assert shares(run_sd, 0, 1)[1] == pytest.approx(another, abs=0.006)
    assert shares(run_sd, 1, 1)[1] == pytest.approx(lasts, abs=0.012)
    assert shares(run_sd, 0, 1.05)[1] == pytest.approx(low, abs=0.025)
    assert shares(run_sd, 1, 1.05)[1] == pytest.approx(high, abs=0.025)
    assert shares(run_sd, 0, 1.10)[1] >= row[6] / 100 - 0.015


def test_the_range_that_the_output_names_holds() -> None:
    assert len(ROWS) == 2
    assert all(4 <= row[1] <= 7.5 for row in ROWS)
