from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.traces.curve.dominance import earlier_greater


def brute(keys: list[int], weights: list[int], *, or_equal: bool) -> list[int]:
    sums = []
    for j, key in enumerate(keys):
        before = zip(keys[:j], weights, strict=False)
        sums.append(sum(weight for other, weight in before if other > key or (or_equal and other == key)))
    return sums


@pytest.mark.parametrize("or_equal", [False, True])
def test_by_hand(or_equal: bool) -> None:
    keys, weights = np.array([3, 1, 3, 0, 1]), np.array([10, 20, 30, 40, 50])
    found = earlier_greater(keys, weights, or_equal=or_equal)
    assert found.tolist() == ([0, 10, 10, 60, 60] if or_equal else [0, 10, 0, 60, 40])


@given(st.data(), st.integers(0, 60), st.booleans(), st.sampled_from([9, 1 << 28]))
def test_any_points(data: st.DataObject, n: int, or_equal: bool, heaviest: int) -> None:
    keys = data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    weights = data.draw(st.lists(st.integers(0, heaviest), min_size=n, max_size=n))
    found = earlier_greater(np.array(keys, np.int64), np.array(weights, np.int64), or_equal=or_equal)
    assert found.tolist() == brute(keys, weights, or_equal=or_equal)


@pytest.mark.parametrize("or_equal", [False, True])
@pytest.mark.parametrize("distinct", [3, 5000, 10**9])
def test_several_blocks_of_time(or_equal: bool, distinct: int) -> None:
    rng = np.random.default_rng(1)
    n = 13_000  # three blocks of 4,096 and a part of one
    keys, weights = rng.integers(0, distinct, n), rng.integers(0, 500, n)
    found = earlier_greater(keys, weights, or_equal=or_equal)
    some = rng.integers(0, n, 200)
    for j in some.tolist():
        earlier = keys[:j] >= keys[j] if or_equal else keys[:j] > keys[j]
        assert found[j] == weights[:j][earlier].sum()


@settings(max_examples=5)
@given(st.integers(0, 2**32))
def test_large_blocks_are_the_same(seed: int) -> None:
    """Above 2^25 points blocks are larger; the parts they are solved by, alone."""
    from kvbench.traces.curve import dominance

    rng = np.random.default_rng(seed)
    rank = rng.permutation(16384).astype(np.int32)
    weights = rng.integers(0, 500, 16384)
    found = dominance._rows(rank[None, :], weights[None, :])[0]
    assert found.tolist() == earlier_greater(rank.astype(np.int64), weights).tolist()
