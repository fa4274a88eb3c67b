from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.gate.decide import outcomes, two_samples
from kvbench.analysis.gate.power import fail_power, pass_power, runs_for_share, runs_needed, runs_needed_for_value

THRESHOLD, BOUND = math.log(1.03), math.log(1.05)


@pytest.mark.parametrize(("n_base", "n_new"), [(5, 5), (20, 3)])
def test_without_a_threshold_it_is_the_noncentral_t(n_base: int, n_new: int) -> None:
    df = n_base + n_new - 2
    shift = BOUND / (0.02 * math.sqrt(1 / n_base + 1 / n_new))
    wanted = stats.nct.sf(stats.t.isf(0.01, df), df, shift)
    assert fail_power(n_base, n_new, 0.02, BOUND, threshold=-1.0) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("sd", [0.01, 0.02, 0.05])
def test_against_the_gate_itself(sd: float) -> None:
    rng = np.random.default_rng(5)
    base, new = rng.normal(0, sd, (20_000, 5)), rng.normal(0, sd, (20_000, 5))
    worse, same = two_samples(base, new + BOUND), two_samples(base, new)
    failed = (outcomes(worse, worse.p, THRESHOLD, BOUND) == "fail").mean()
    passed = (outcomes(same, same.p, THRESHOLD, BOUND) == "pass").mean()
    # three standard errors of 20,000 replicates, and an alarm that is no PASS
    assert failed == pytest.approx(fail_power(5, 5, sd, BOUND, threshold=THRESHOLD), abs=0.011)
    assert passed == pytest.approx(pass_power(5, 5, sd, pass_bound=BOUND), abs=0.011)


def test_runs_needed_is_the_smallest_number() -> None:
    def suffices(n: int, alpha: float) -> bool:
        return fail_power(n, n, 0.03, BOUND, threshold=THRESHOLD, alpha=alpha) >= 0.8

    for alpha in (0.01, 0.01 / 3):
        n = runs_needed(0.03, threshold=THRESHOLD, pass_bound=BOUND, alpha=alpha)
        assert n is not None
        assert suffices(n, alpha)
        assert not suffices(n - 1, alpha)


def test_too_much_noise_is_said_as_none() -> None:
    assert runs_needed(1.0, threshold=THRESHOLD, pass_bound=BOUND) is None
    assert runs_needed(0.0, threshold=THRESHOLD, pass_bound=BOUND) == 5, "what 5 + 5 can tell, 4 + 4 cannot"


def test_runs_for_a_value() -> None:
    assert runs_needed_for_value(0.0, 0.1) == 3
    n = runs_needed_for_value(0.1, 0.05)
    assert n is not None
    power = [stats.nct.sf(stats.t.ppf(0.95, m - 1), m - 1, 0.5 * math.sqrt(m)) for m in (n - 1, n)]
    assert power[0] < 0.8 <= power[1]


def test_runs_for_a_share_without_a_case() -> None:
    # 0.99^n < 0.05 from 299 turns on
    assert runs_for_share(0.0, 40, 0.01) == 8
    assert runs_for_share(0.02, 40, 0.01) == 1
