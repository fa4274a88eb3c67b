"""What is given, what is a floor and what is refused, on models and traces that are known."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.analysis.fit.latency_runs import Sent, formula, run_of
from tests.analysis.predicting.test_cliff import SIZE, target

from kvbench.analysis.fit.ttft import Latency, latency_of
from kvbench.analysis.predicting.load import Load
from kvbench.analysis.predicting.predict import Model, predict
from kvbench.analysis.predicting.target import Target
from kvbench.model import Predicted

BASE_S, TOKEN_S, SQUARE_S = 0.05, 1e-3, 1e-7
ALONE = Load(sessions=2, max_in_flight=1)


def latency(longest: int, noise: float = 0.0) -> Latency:
    """50 ms and 1 ms an uncached token, fitted to prompts of 16 tokens to `longest`."""
    rng = random.Random(1)
    sent = []
    for i in range(120):
        u, c = round(16 * (longest / 16) ** rng.random()), 0 if i % 3 else rng.randint(0, longest)
        ttft = formula(u, c, base=BASE_S, token=TOKEN_S, square=SQUARE_S) * rng.lognormvariate(0, noise)
        sent.append(Sent(f"cell{i % 40}", u, c, ttft))
    found = latency_of(run_of(sent))
    assert isinstance(found, Latency)
    return found


def model(timed: Latency | None, low: float, value: float | None) -> Model:
    return Model((low, value, value), timed, 0.0, 0.0, ())


@pytest.fixture
def made(tmp_path: Path) -> Target:
    """Four sessions of ten blocks that are sent five times; all but the last block can be hit."""
    return target(tmp_path / "t.jsonl", ([list(range(100 * n, 100 * n + 10))] * 5 for n in range(1, 5)))


def run(what: Target, how: Model, load: Load) -> Predicted:
    return predict("fitted", how, what, load, load.told, observed=False)


def test_one_request_at_a_time_is_predicted_by_hand(made: Target) -> None:
    """Of each session one prompt of 160 tokens, then four with 16 uncached after 144."""
    found = run(made, model(latency(400), 1000 * SIZE, 1000 * SIZE), ALONE)
    hit, p50, p95 = found.figures
    assert hit.value == pytest.approx(4 * 144 / (5 * 160))
    again, cold = (formula(u, c, base=BASE_S, token=TOKEN_S, square=SQUARE_S) for u, c in ((16, 144), (160, 0)))
    assert p50.value == pytest.approx(again, rel=0.01)
    assert p95.value == pytest.approx(cold, rel=0.01)
    assert p50.observed is None
    assert not found.refusals


def test_a_pool_that_is_too_small_hits_nothing(made: Target) -> None:
    hit, p50, _ = run(made, model(latency(400), 10 * SIZE, 10 * SIZE), ALONE).figures
    assert hit.value == 0
    assert p50.value == pytest.approx(formula(160, 0, base=BASE_S, token=TOKEN_S, square=SQUARE_S), rel=0.01)


def test_times_with_requests_beside_each_other_are_floors(made: Target) -> None:
    found = run(made, model(latency(400), 1000 * SIZE, 1000 * SIZE), Load(sessions=4, time_scale=0.0))
    hit, p50, _ = found.figures
    assert hit.value is not None
    assert (p50.value, p50.high) == (None, None)
    assert p50.low is not None
    assert any("TTFT is a floor" in note for note in found.notes)


def test_a_capacity_known_from_below_alone_is_enough_only_where_nothing_is_lost(made: Target) -> None:
    enough = run(made, model(None, 40 * SIZE, None), ALONE)
    assert enough.figures[0].value == pytest.approx(4 * 144 / (5 * 160))
    short = run(made, model(None, 12 * SIZE, None), ALONE)
    assert not short.figures
    assert "lost nothing" in short.refusals[0].reason


def test_lengths_far_from_those_fitted_are_refused(tmp_path: Path) -> None:
    """Up to 200 tokens at 5% noise: what a pair of tokens costs hardly shows, and is most of a prompt of 32,000."""
    far = target(tmp_path / "t.jsonl", ([list(range(3000 * n, 3000 * n + 2000))] for n in range(1, 5)))
    found = run(far, model(latency(200, noise=0.05), 10**6 * SIZE, 10**6 * SIZE), ALONE)
    assert [figure.name for figure in found.figures] == ["hit_rate"]
    assert "do not tell how long these take" in found.refusals[0].reason
