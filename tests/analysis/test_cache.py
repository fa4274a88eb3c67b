from __future__ import annotations

import pandas as pd
import pytest

from kvbench.analysis.cache import eligible_hit_rate, expected_hits, hit_classes, hit_rate
from kvbench.model import Clock, Expectation, Record, Usage
from kvbench.runs.frame import records_frame


def turns(*rows: tuple[int | None, int | None, int | None, int | None]) -> pd.DataFrame:
    """Rows of (input, cached, floor, ceiling)."""
    return records_frame(
        [
            Record(
                request_id=str(i),
                session_id="s",
                turn=i,
                clock=Clock(scheduled=0, due=0),
                usage=Usage(input_tokens=tokens, cached_tokens=cached, output_tokens=10),
                expectation=None if floor is None else Expectation(rule="block 16", floor=floor, ceiling=ceiling),
            )
            for i, (tokens, cached, floor, ceiling) in enumerate(rows)
        ]
    )


def test_hit_rate_is_token_weighted_over_turns_that_report_both() -> None:
    ok = turns((100, 0, None, None), (900, 800, None, None), (500, None, None, None), (None, 64, None, None))
    assert hit_rate(ok) == 0.8
    assert hit_rate(turns((100, None, None, None))) is None
    assert hit_rate(turns()) is None
    assert hit_rate(turns((100, 0, None, None))) == 0.0


def test_eligible_is_what_the_session_had_put_there() -> None:
    # Turn 1 could hit 100 + 10 and hits 96; turn 2 does not report; turn 3 has no reporting turn before it.
    ok = turns((100, 0, None, None), (200, 96, None, None), (300, None, None, None), (400, 200, None, None))
    assert eligible_hit_rate(ok) == pytest.approx(96 / 110)


def test_expected_counts_turns_outside_their_interval() -> None:
    ok = turns(
        (100, 96, 96, 96),  # exact
        (100, 80, 96, 96),  # below
        (100, 96, 0, 80),  # above
        (100, 48, 0, 96),  # inside, but no point
        (100, 0, 0, 0),  # exact
        (100, None, 96, 96),  # nothing to compare
        (100, 96, None, None),
    )
    expected = expected_hits(ok)
    assert expected is not None
    assert (expected.turns, expected.exact, expected.below, expected.above) == (5, 2, 1, 1)
    assert (expected.floor, expected.ceiling) == (192 / 500, 368 / 500)
    assert expected.rule == "block 16"
    assert expected_hits(turns((100, 96, None, None))) is None


def test_classes_of_hits() -> None:
    ok = turns(
        (100, 0, 0, 0),  # none, though the ceiling is reached
        (100, 96, 96, 96),
        (100, 80, 96, 96),
        (100, 68, None, None),  # no expectation: no class, whatever was hit
        (100, 0, None, None),
        (100, None, 96, 96),  # no report: no class
    )
    assert list(hit_classes(ok)) == ["none", "full", "part"]
