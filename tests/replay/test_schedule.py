"""Times worked out by hand from the rules; nothing sleeps."""

from __future__ import annotations

import itertools
import statistics

import pytest

from kvbench.errors import UsageError
from kvbench.replay.schedule import Arrival, arrivals, backoff_ns, due_ns
from kvbench.replay.settings import RunSettings

S = 1_000_000_000


def test_a_turn_is_due_its_scaled_pause_after_all_it_waits_for_has_ended() -> None:
    assert due_ns([5 * S], 2.0, RunSettings()) == 7 * S
    assert due_ns([5 * S, 9 * S, 1 * S], 2.0, RunSettings(time_scale=0.5)) == 10 * S
    assert due_ns([5 * S], 300.0, RunSettings(time_scale=0.0)) == 5 * S


def test_a_pause_is_capped_before_it_is_scaled() -> None:
    assert due_ns([0], 300.0, RunSettings(time_scale=0.1, max_pause_s=20)) == 2 * S
    assert due_ns([0], 10.0, RunSettings(time_scale=2, max_pause_s=20)) == 20 * S


def test_roots_arrive_in_trace_time_counted_from_the_earliest() -> None:
    got = list(arrivals([30.0, 10.0, 10.0], RunSettings(time_scale=0.5)))
    assert got == [Arrival(1, 0, 0), Arrival(2, 0, 0), Arrival(0, 0, 10 * S)]


def test_a_constant_rate_spaces_roots_evenly_in_wall_time_whatever_the_time_scale() -> None:
    got = list(arrivals([0.0, 100.0, 5.0], RunSettings(rate=4, rate_shape="constant", time_scale=0.01)))
    assert got == [Arrival(0, 0, 0), Arrival(1, 0, S // 4), Arrival(2, 0, S // 2)]


def test_a_poisson_rate_is_reproducible_by_seed_and_has_the_mean_asked_for() -> None:
    settings = RunSettings(rate=4, seed=3)
    one, two = list(arrivals([0.0] * 4000, settings)), list(arrivals([0.0] * 4000, settings))
    assert one == two
    assert one != list(arrivals([0.0] * 4000, RunSettings(rate=4, seed=4)))
    gaps = [(b.at_ns or 0) - (a.at_ns or 0) for a, b in itertools.pairwise(one)]
    # exponential: mean and standard deviation are both 0.25 s; 4,000 gaps give the mean to about 1.6%
    assert statistics.mean(gaps) / S == pytest.approx(0.25, rel=0.06)
    assert statistics.stdev(gaps) / S == pytest.approx(0.25, rel=0.08)


def test_a_fixed_number_of_live_trees_takes_them_in_file_order_once() -> None:
    assert list(arrivals([7.0, 3.0], RunSettings(sessions=5))) == [Arrival(0, 0, None), Arrival(1, 0, None)]


@pytest.mark.parametrize("settings", [RunSettings(sessions=2, duration_s=9), RunSettings(rate=2, duration_s=9)])
def test_with_a_duration_trees_are_used_again_under_a_new_cycle(settings: RunSettings) -> None:
    got = list(itertools.islice(arrivals([7.0, 3.0], settings), 5))
    assert [(a.index, a.cycle) for a in got] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_trace_time_with_a_duration_uses_each_tree_once() -> None:
    assert len(list(arrivals([0.0, 1.0], RunSettings(duration_s=9)))) == 2


def test_no_pauses_keeps_eight_trees_live_unless_told_otherwise() -> None:
    assert RunSettings(time_scale=0).live_trees == 8
    assert RunSettings(time_scale=0, sessions=3).live_trees == 3
    assert RunSettings(time_scale=0, rate=1.0).live_trees is None
    assert RunSettings().live_trees is None


def test_a_retry_waits_what_the_server_asks_for_or_doubles_and_never_over_a_minute() -> None:
    assert [backoff_ns(k, None) / S for k in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_ns(0, 7.0) == 7 * S
    assert backoff_ns(0, 86_400.0) == 60 * S
    assert backoff_ns(3, 0.0) == 0


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (RunSettings(time_scale=-1), "--time-scale"),
        (RunSettings(time_scale=float("nan")), "--time-scale"),
        (RunSettings(max_pause_s=-0.1), "--max-pause"),
        (RunSettings(rate=0), "--rate"),
        (RunSettings(sessions=0), "--sessions"),
        (RunSettings(duration_s=0), "--duration"),
        (RunSettings(warmup=-1), "--warmup"),
        (RunSettings(max_in_flight=0), "--max-in-flight"),
        (RunSettings(retries=-1), "--retries"),
        (RunSettings(rate=1, sessions=1), "--rate and --sessions"),
        (RunSettings(rate_shape="constant"), "--rate-shape"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(settings: RunSettings, names: str) -> None:
    with pytest.raises(UsageError, match=names):
        settings.check()
