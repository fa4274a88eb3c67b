from __future__ import annotations

import numpy as np
import pytest

from kvbench.analysis.compare.resample import changes_of, mean_change


def test_many_sessions_give_the_normal_interval() -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(0, 1, (400, 1))
    new = base + 0.1 + rng.normal(0, 0.2, (400, 1))
    low, high = mean_change(base, new)
    mean, half = float((new - base).mean()), 1.96 * float((new - base).std()) / 20
    assert low is not None
    assert high is not None
    assert (low, high) == (pytest.approx(mean - half, abs=0.002), pytest.approx(mean + half, abs=0.002))
    # Drawn apart, the sessions' own spread, which both sides share, would make it five times as wide.
    assert high - low < 0.05


def test_runs_are_drawn_where_there_are_several() -> None:
    base = np.zeros((50, 4))
    new = np.zeros((50, 4)) + np.array([-0.3, -0.1, 0.1, 0.3])
    low, high = mean_change(base, new)
    assert low is not None
    assert high is not None
    # no session differs from another, so all of the interval is the runs': sd 0.2236 / sqrt(4), 1.96 times
    assert (low, high) == (pytest.approx(-0.22, abs=0.04), pytest.approx(0.22, abs=0.04))


def test_few_sessions_have_no_interval() -> None:
    assert mean_change(np.zeros((4, 1)), np.ones((4, 1))) == (None, None)
    few = [[np.array([1.0])] * 4]
    assert changes_of((few, few), lambda drawn: np.array([drawn.mean()]), paired=True) is None


def test_a_figure_of_what_is_drawn_together_does_not_move() -> None:
    rng = np.random.default_rng(4)
    sessions = [rng.normal(size=n) for n in (3, 1, 5, 2, 4, 9)]
    shifted = [values + 2 for values in sessions]

    def figures(drawn: np.ndarray) -> np.ndarray:
        return np.quantile(drawn, [0.5, 0.9])

    together = changes_of(([sessions], [shifted]), figures, paired=True)
    assert together == [(pytest.approx(2), pytest.approx(2))] * 2
    apart = changes_of(([sessions], [shifted]), figures, paired=False)
    assert apart is not None
    (low, high), _ = apart
    assert low is not None
    assert high is not None
    assert high - low > 0.1
