from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.gate.decide import enough, holm, one_sample, outcomes, share_bounds, two_samples


def test_a_t_test_by_hand() -> None:
    # means 0 and 2, variances 1 and 1, pooled sd 1, se sqrt(2/3): t = 2 / 0.81650 = 2.4495 on 4 degrees of freedom.
    # One-sided p of 2.4495: t^2 / (4 + t^2) = 0.6, so p = (1 - sqrt(0.6) (1 + 0.4 / 2)) / 2
    test = two_samples(np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    assert float(test.p) == pytest.approx((1 - 0.6**0.5 * 1.2) / 2)
    assert (float(test.estimate), float(test.sd)) == (2.0, 1.0)
    # the t quantile of 0.95 on 4 degrees of freedom: 2.131847
    assert float(test.upper) == pytest.approx(2 + 2.131847 * (2 / 3) ** 0.5, abs=1e-6)
    assert float(test.lower) == pytest.approx(2 - 2.131847 * (2 / 3) ** 0.5, abs=1e-6)


def test_rows_are_tests_of_their_own() -> None:
    rng = np.random.default_rng(3)
    base, new = rng.normal(size=(7, 5)), rng.normal(size=(7, 6))
    many = two_samples(base, new)
    for i in range(7):
        one = two_samples(base[i], new[i])
        assert [float(part) for part in one] == pytest.approx([float(part[i]) for part in many])


def test_unequal_numbers_with_unequal_spread_are_tested_apart() -> None:
    base = np.linspace(-0.01, 0.01, 20)
    new = np.array([-2.0, 0.1, 2.5])
    test = two_samples(base, new)
    assert bool(test.welch)
    assert float(test.p) == stats.ttest_ind(new, base, equal_var=False, alternative="greater").pvalue
    same = two_samples(base, new / 300)
    assert not bool(same.welch)
    assert float(same.p) == stats.ttest_ind(new / 300, base, alternative="greater").pvalue
    assert not bool(two_samples(base[:3], new).welch), "equal numbers are safe to pool"


def test_runs_without_spread_are_exact() -> None:
    base = np.full(5, 0.907)
    same, fell = two_samples(base, base.copy()), two_samples(base, base + 0.05)
    assert (float(same.p), float(same.upper)) == (1.0, 0.0)
    assert (float(fell.p), float(fell.lower), float(fell.upper)) == (0.0, pytest.approx(0.05), pytest.approx(0.05))
    one = one_sample(np.full(3, 2.0), 3.0)
    assert (float(one.p), float(one.upper)) == (1.0, 2.0)


def test_a_sample_against_a_limit() -> None:
    # mean 2, sd 1, se 1/sqrt(3): t = 1.7320 on 2 degrees of freedom; p = (1 - t / sqrt(2 + t^2)) / 2
    test = one_sample(np.array([1.0, 2.0, 3.0]), 1.0)
    assert float(test.p) == pytest.approx((1 - (3 / 5) ** 0.5) / 2)
    assert float(test.upper) == pytest.approx(2 + 2.919986 / 3**0.5, abs=1e-6)


def test_no_failure_is_not_no_share() -> None:
    # P(none of n) = (1 - share)^n: 0.95 one-sided
    assert share_bounds(0, 200, 0.01) == (1.0, pytest.approx(1 - 0.05 ** (1 / 200)))
    assert share_bounds(2, 2, 0.5) == (pytest.approx(0.25), 1.0)


def test_holm_by_hand() -> None:
    # sorted .01 .02 .04: times 3, 2, 1 = .03 .04 .04; no smaller than the one before, and at most 1
    assert holm(np.array([0.04, 0.01, 0.02])).tolist() == pytest.approx([0.04, 0.03, 0.04])
    assert holm(np.array([[0.9, 0.8], [0.5, 0.001]])).tolist() == [[1.0, 1.0], [0.5, 0.002]]


@pytest.mark.parametrize(("n_base", "n_new", "tells"), [(5, 5, True), (4, 4, False), (20, 3, True), (100, 2, False)])
def test_how_many_runs_can_tell_anything(n_base: int, n_new: int, tells: bool) -> None:
    assert enough(n_base, n_new) is tells


def test_three_verdicts() -> None:
    base = np.zeros((4, 5)) + np.array([-0.01, -0.005, 0, 0.005, 0.01])
    new = base + np.array([[0.1], [0.0], [0.035], [0.045]])
    found = outcomes(two_samples(base, new), np.array([0.0, 0.4, 0.02, 0.0]), threshold=0.03, pass_bound=0.05)
    # se 0.005, t quantile 1.86: bounds 0.109 0.009 0.044 0.054
    assert found.tolist() == ["fail", "pass", "pass", "fail"]
    wide = outcomes(two_samples(base * 5, base * 5 + 0.02), np.array(0.2), threshold=0.03, pass_bound=0.05)
    assert wide.tolist() == ["inconclusive"] * 4
