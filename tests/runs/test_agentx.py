"""Each rule broken on its own, in a run that keeps all the others."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.model import Clock, Phase, Record, RunInfo, Warning
from kvbench.runs.agentx import check

KEPT: dict[str, Any] = {
    "rules": "agentx",
    "time_scale": 1.0,
    "max_pause_s": 10.0,
    "salt": "tree",
    "duration_s": 900.0,
    "sessions": 4,
    "retries": 0,
    "output": "recorded",
    "max_in_flight": None,
}


def record(number: int, error: str | None = None, phase: Phase = "measure", wanted: int | None = 5) -> Record:
    return Record(
        request_id=str(number),
        session_id=str(number),
        turn=0,
        phase=phase,
        clock=Clock(scheduled=0, due=0),
        error_class=error,
        wanted_output_tokens=wanted,
    )


def reasons(records: list[Record] | None = None, **changes: Any) -> tuple[str, ...]:
    fields: dict[str, Any] = {
        "kvbench_version": "0",
        "run_id": "r",
        "name": "r",
        "status": "done",
        "started_at": "",
        "settings": KEPT | changes.pop("settings", {}),
        "endpoint": {"stream": True, "extra_body": {}, "limits": {"requests_per_minute": None, "in_flight": None}},
        "server": {"dialect": "vllm"},
    }
    found = check(RunInfo(**(fields | changes)), [record(0)] if records is None else records)
    assert found is not None
    assert found.name == "agentx"
    assert found.valid == (not found.reasons)
    return found.reasons


def test_a_run_that_keeps_to_all() -> None:
    assert reasons() == ()


def test_another_run_is_not_asked() -> None:
    info = RunInfo(kvbench_version="0", run_id="r", name="r", status="done", started_at="", settings={"rules": None})
    assert check(info, []) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"duration_s": 899.9}, "window 899.9 s < 900 s (--duration)"),
        ({"time_scale": 0.5}, "pauses were scaled by 0.5 (--time-scale)"),
        ({"max_pause_s": 60.0}, "pauses were capped at 60 s, not at 10 s (--max-pause)"),
        ({"salt": "run"}, "plays shared a cache (--salt run)"),
        ({"output": "free"}, "answers were not held to the trace's lengths (--output free)"),
        ({"retries": 2}, "failed requests were sent again (--retries 2)"),
        ({"max_in_flight": 4}, "requests were held back (--max-in-flight 4)"),
    ],
)
def test_an_option_that_overrides_a_rule(settings: dict[str, Any], reason: str) -> None:
    assert reasons(settings=settings) == (reason,)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ({"stream": False}, "answers were not streamed (stream = false in the endpoint's profile)"),
        (
            {"extra_body": {"ignore_eos": False}},
            "ignore_eos was overridden (extra_body of the endpoint's profile)",
        ),
        (
            {"extra_body": {"truncate_prompt_tokens": 100}},
            "lengths were overridden (extra_body of the endpoint's profile: truncate_prompt_tokens)",
        ),
        (
            {"limits": {"requests_per_minute": 60.0}},
            "requests were held back (limits.requests_per_minute = 60 in the endpoint's profile)",
        ),
    ],
)
def test_an_endpoints_profile_that_overrides_a_rule(endpoint: dict[str, Any], reason: str) -> None:
    assert reasons(endpoint=endpoint) == (reason,)


def test_without_a_field_for_it_ignore_eos_has_to_be_named() -> None:
    (reason,) = reasons(server={"dialect": "openai"})
    assert reason.startswith("ignore_eos was not sent")
    assert reasons(server={"dialect": "openai"}, endpoint={"extra_body": {"ignore_eos": True}}) == ()


def test_more_than_a_hundredth_of_the_turns_over_the_context() -> None:
    def course(over: int) -> list[Record]:
        fine = [record(i) for i in range(200 - over)]
        # neither of these two is a turn that was measured
        others = [record(300, "skipped"), record(301, phase="warmup")]
        return [*fine, *(record(400 + i, "context_overflow") for i in range(over)), *others]

    assert reasons(course(2)) == ()
    assert reasons(course(3)) == ("context overflow on 3 of 200 turns (1.5% > 1%)",)
    assert reasons([record(i, "server_error") for i in range(5)]) == (), "failures of other kinds do not count"


def test_a_run_that_was_cut_short() -> None:
    assert reasons(status="interrupted") == ("cancelled: the run's status is interrupted, not done",)
    assert reasons(status="started") == ("cancelled: the run's status is started, not done",)
    spent = (Warning(code="max_cost", message="m"),)
    assert reasons(warnings=spent) == ("cancelled: --max-cost stopped the run",)


def test_a_cache_that_was_not_warmed() -> None:
    records = [record(0), record(1, "reset", "warmup"), record(2, None, "warmup")]
    assert reasons(records) == ("1 of 2 warm-up turns failed, so the cache was not what the start points want",)


def test_nothing_measured_and_answers_without_a_length() -> None:
    assert reasons([record(0, phase="warmup")]) == ("no turn was measured",)
    assert reasons([record(0), record(1, wanted=None)]) == (
        "1 of 2 turns of the trace name no output length to hold the answer to",
    )
