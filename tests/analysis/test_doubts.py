from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvbench.analysis.summary import summarise
from kvbench.model import Clock, Expectation, OwnError, Record, RunInfo, Usage, Warning
from kvbench.runs.reader import Run

MS = 1_000_000
CLOCK = Clock(
    scheduled=0,
    due=0,
    upload_start=1 * MS,
    sent=1 * MS,
    first_token=100 * MS,
    last_token=200 * MS,
    end=201 * MS,
    chunks=[100 * MS, 150 * MS, 200 * MS],
    stamp="kernel",
    first_token_bound_ns=1000,
)
USAGE = Usage(input_tokens=100, cached_tokens=64, output_tokens=3)


def warnings_of(
    *changes: dict[str, object], events: list[dict[str, object]] | None = None, **info: object
) -> dict[str, Warning]:
    records = [
        Record(**{"request_id": str(i), "session_id": str(i), "turn": 0, "clock": CLOCK, "usage": USAGE, **change})  # type: ignore[arg-type]
        for i, change in enumerate(changes)
    ]
    fields = {"kvbench_version": "0", "run_id": "r", "name": "r", "status": "done", "started_at": "", **info}
    run = Run(info=RunInfo(**fields), records=records, events=events or [], warnings=[], path=Path("r"))  # type: ignore[arg-type]
    found = summarise(run).warnings
    assert all(warning.advice for warning in found)
    return {warning.code: warning for warning in found}


def test_a_clean_run_has_none() -> None:
    assert warnings_of({}, {"wanted_output_tokens": 3}) == {}


@pytest.mark.parametrize(
    ("code", "words", "changes"),
    [
        ("failed_turns", "1 of 2 turns failed", [{}, {"error_class": "reset"}]),
        ("cached_not_reported", "1 of 2 turns", [{}, {"usage": Usage(input_tokens=9, output_tokens=3)}]),
        ("sums_are_floors", "1 of 2 attempts reported no usage", [{}, {"error_class": "truncated", "usage": Usage()}]),
        ("nothing_measured", "no measured turn succeeded", [{"error_class": "refused"}]),
        ("usage_not_believed", "cached > prompt", [{"usage": Usage(output_tokens=3, problem="cached > prompt")}]),
        ("hits_unexpected", "1 below, 0 above", [{"expectation": Expectation(rule="block 32", floor=96, ceiling=96)}]),
        ("sent_again", "1 of 2 requests were sent twice", [{}, {"clock": replace(CLOCK, retried_stale=True)}]),
        ("output_length", "wants 4 output tokens, the endpoint gave 3", [{"wanted_output_tokens": 4}]),
        ("no_first_token", "1 of 1 turns", [{"clock": Clock(scheduled=0, due=0, upload_start=1, sent=1, end=9)}]),
        (
            "coalesced_chunks",
            "8 output tokens came in 3 chunks",
            [{"usage": Usage(input_tokens=9, cached_tokens=0, output_tokens=8)}],
        ),
    ],
)
def test_each_doubt_has_its_numbers(code: str, words: str, changes: list[dict[str, object]]) -> None:
    found = warnings_of(*changes)
    assert code in found
    assert words in found[code].message


def test_one_percent_of_failures_is_let_pass() -> None:
    assert "failed_turns" not in warnings_of(*[{}] * 99, {"error_class": "reset"})


@pytest.mark.parametrize("stamp", ["loop", "mixed"])
def test_a_coarse_clock_is_named(stamp: str) -> None:
    assert "coarse_clock" in warnings_of({}, own_error=OwnError(stamp=stamp))  # type: ignore[arg-type]


def test_turns_held_back_by_limits_but_not_by_the_client() -> None:
    late = {"clock": Clock(scheduled=0, due=0, limit_wait_ns=2000 * MS, upload_start=2000 * MS, sent=2000 * MS)}
    assert "left 2.0 s after their schedule" in warnings_of(late)["held_back"].message
    slow_client = {"clock": Clock(scheduled=0, due=0, upload_start=2000 * MS, sent=2000 * MS)}
    assert "held_back" not in warnings_of(slow_client), "that is send lag, and it is judged as such"


def test_warnings_of_the_run_come_first_and_once() -> None:
    seen = Warning(code="x", message="seen while it ran", advice="look")
    assert list(warnings_of({"error_class": "reset"}, warnings=(seen, seen))) == [
        "x",
        "nothing_measured",
        "failed_turns",
    ]


def test_an_incomplete_run_says_why() -> None:
    assert "disk full" in warnings_of({}, status="failed", failure="disk full")["incomplete"].message


def test_a_run_that_ended_before_its_expected_hits_were_worked_out_says_so() -> None:
    assert "no_expectation" in warnings_of({}, status="interrupted")
    assert "no_expectation" not in warnings_of({})


def test_a_refused_request_is_no_missing_usage() -> None:
    changes = {"error_class": "rate_limited", "http_status": 429, "usage": Usage()}
    assert "sums_are_floors" not in warnings_of({}, changes)


@pytest.mark.parametrize(
    ("answered", "others"),
    [
        ("deepseek-flash", None),
        ("deepseek-v4-flash", None),
        ("deepseek-flash-2026-10-17", None),
        ("deepseek-v4-pro", "deepseek-v4-pro"),
        ("tiny", "tiny"),
    ],
)
def test_an_answer_by_another_model_is_named(answered: str, others: str | None) -> None:
    server = {"model": "deepseek-flash", "models": ["deepseek-flash", "deepseek-v4-flash"]}
    found = warnings_of({"response_model": "deepseek-flash"}, {"response_model": answered}, server=server)
    assert (others is None) == ("other_model" not in found)
    assert others is None or found["other_model"].message.endswith(f": {others}")


def test_answers_without_a_token_are_not_called_unstreamed() -> None:
    nothing = {
        "clock": Clock(scheduled=0, due=0, upload_start=1, sent=1, end=9),
        "usage": Usage(input_tokens=9, cached_tokens=0, output_tokens=0),
    }
    found = warnings_of({}, nothing)
    assert found["empty_answers"].message.startswith("1 of 2 answers")
    assert "no_first_token" not in found


def test_jobs_that_the_end_of_a_window_cut() -> None:
    def cut(done: int, of: int, **info: object) -> Warning | None:
        changes = [{"session_id": str(i), "root_id": str(i)} for i in range(of)]
        # a sub-agent's first turn, and a root that began in its midst: no jobs that began in the window
        changes += [{"session_id": "0.x", "root_id": "0"}, {"session_id": "late", "root_id": "late", "turn": 3}]
        events = [{"kind": "tree_ended", "root_id": str(i), "complete": i < done} for i in range(of)]
        return warnings_of(*changes, events=events, **info).get("jobs_cut")  # type: ignore[arg-type]

    assert cut(9, 10, settings={"duration_s": 60.0}) is None
    found = cut(8, 10, settings={"duration_s": 60.0})
    assert found is not None
    assert found.message == "the end of the window cut 2 of 10 jobs that began in it"
    assert found.advice == "job figures are of those that ended, the shorter ones; a longer --duration cuts fewer"
    none = cut(0, 1, settings={"duration_s": 60.0})
    assert none is not None
    assert none.advice == "job figures are not there, as none ended; a longer --duration cuts fewer"
    assert cut(8, 10) is None, "without a duration nothing is cut"
