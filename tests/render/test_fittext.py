"""A fitted figure, a bound alone, or neither."""

from __future__ import annotations

import pytest

from kvbench.model import Check, Estimate, FitReport
from kvbench.render.fittext import fit_lines


@pytest.mark.parametrize(
    ("value", "low", "high", "told"),
    [
        (4096.0, 4000.0, 4200.0, "4,096 tokens (4,000 to 4,200)"),
        (4096.0, 4000.0, None, "4,096 tokens (at least 4,000)"),
        (4096.0, None, None, "4,096 tokens"),
        (None, 4000.0, 4200.0, "4,000 to 4,200 tokens"),
        (None, 4000.0, None, "at least 4,000 tokens"),
        (None, None, 4200.0, "at most 4,200 tokens"),
    ],
)
def test_figures_and_bounds(value: float | None, low: float | None, high: float | None, told: str) -> None:
    estimate = Estimate(name="capacity_tokens", value=value, low=low, high=high, unit="tokens", method="by hits", n=1)
    line = fit_lines(FitReport(runs=("r",), estimates=(estimate,)))[1]
    assert line.split(maxsplit=1) == ["capacity_tokens", told]


@pytest.mark.parametrize(("seen", "told"), [(1, "from 1 token on"), (2, "from 2 tokens on")])
def test_one_token_is_no_plural(seen: float, told: str) -> None:
    check = Check(name="total", verdict="confirmed", says="fine", n=3, detectable=seen, detectable_unit="tokens")
    assert fit_lines(FitReport(runs=("run",), checks=(check,)))[-1].endswith(told)
