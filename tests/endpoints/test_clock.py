from __future__ import annotations

import time

import pytest

from kvbench.endpoints import clock as clock_module
from kvbench.endpoints.clock import RunClock


def test_counts_monotonic_ns_from_the_start() -> None:
    before = time.monotonic_ns()
    clock = RunClock.start()
    after = time.monotonic_ns()
    assert before <= clock.origin_ns <= after
    first, second = clock.now_ns(), clock.now_ns()
    assert 0 <= first <= second


def test_a_realtime_reading_falls_between_monotonic_readings_around_it() -> None:
    clock = RunClock.start()
    for _ in range(100):
        before = clock.now_ns()
        realtime = time.time_ns()
        after = clock.now_ns()
        assert before - clock.uncertainty_ns <= realtime - clock.realtime_shift_ns <= after + clock.uncertainty_ns


def test_a_step_of_the_wall_clock_is_seen_with_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunClock.start()
    assert abs(clock.check_step()) < 0.0005
    true_time_ns = time.time_ns
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: true_time_ns() + 2_000_000_000)
    assert clock.check_step() == pytest.approx(2.0, abs=0.0005)
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: true_time_ns() - 500_000_000)
    assert clock.check_step() == pytest.approx(-0.5, abs=0.0005)
