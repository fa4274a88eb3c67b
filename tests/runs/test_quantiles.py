from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.runs.quantiles import quantile, quantiles


def test_linear_interpolation_by_hand() -> None:
    # Ranks of 0.1 .. 0.5 are 0, 1, 2, 3, 4; p95 is rank 3.8, so 0.4 + 0.8 * 0.1; p99 is rank 3.96.
    figure = quantiles([0.5, 0.1, 0.4, 0.2, 0.3])
    assert (figure.n, figure.failures_as_inf) == (5, None)
    assert figure.p50 == pytest.approx(0.3)
    assert figure.p95 == pytest.approx(0.48)
    assert figure.p99 == pytest.approx(0.496)
    assert figure.mean == pytest.approx(0.3)


def test_no_values_is_not_zero() -> None:
    figure = quantiles([])
    assert (figure.n, figure.p50, figure.p95, figure.p99, figure.mean) == (0, None, None, None, None)


def test_failures_count_as_infinite() -> None:
    # 1, 2, 3, inf: the median is rank 1.5 = 2.5; p95 is rank 2.85, between 3 and +inf.
    figure = quantiles([3.0, 1.0, 2.0], failures=1)
    assert (figure.n, figure.p50, figure.p95, figure.failures_as_inf) == (4, 2.5, None, 1)
    assert figure.mean is None


def test_a_rank_on_a_finite_value_below_infinity_stays_finite() -> None:
    assert quantile([1.0, 2.0, math.inf], 0.5) == 2.0
    assert quantile([1.0, math.inf, math.inf], 0.75) == math.inf


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_agrees_with_numpy(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)
