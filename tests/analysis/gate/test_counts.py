"""Shares of turns are no surer than their counts, however alike the runs are."""

from __future__ import annotations

import math

import pytest
from tests.analysis.gate.runs import made

from kvbench.analysis.gate.evidence import Evidence
from kvbench.analysis.gate.expression import parse_fail_if
from kvbench.analysis.gate.judge import judge


def sides(word: str, base: int, new: int, turns: int) -> tuple[list[Evidence], list[Evidence]]:
    """Five runs a side of `turns` turns, made in turn, each with as many bad ones."""
    found: tuple[list[Evidence], list[Evidence]] = ([], [])
    for at, side in enumerate("BNNBBNNBBN"):
        bad = base if side == "B" else new
        failed = bad if word == "errors" else 0
        share = bad / turns if word == "errors" else 1 - bad / turns
        run = made(
            f"{side}{at}", at, {word: share}, completed=turns - failed, failed=failed, requested=turns, turns=None
        )
        found["BN".index(side)].append(run)
    return found


@pytest.mark.parametrize(("word", "expr"), [("errors", "errors>+0.01"), ("good_fraction", "good_fraction<-0.01")])
@pytest.mark.parametrize(("turns", "verdict"), [(20, "inconclusive"), (100, "pass")])
def test_no_bad_turn_in_few_is_no_proof(word: str, expr: str, turns: int, verdict: str) -> None:
    (gate,) = judge(*sides(word, 0, 0, turns), [parse_fail_if(expr)]).gates
    assert gate["verdict"] == verdict
    # None of n turns: at most 1 - 0.05^(1/n) of all.
    most = 1 - 0.05 ** (1 / (5 * turns))
    worst, best = (gate["high"], gate["low"]) if word == "errors" else (-gate["low"], -gate["high"])
    assert (worst, best) == (pytest.approx(most), pytest.approx(-most))
    assert gate["test"] == "pooled t and Fisher's exact"
    assert gate["runs_needed"] > 5


def test_one_bad_turn_in_every_run_may_be_chance() -> None:
    base, new = sides("errors", 0, 1, 20)
    (gate,) = judge(base, new, [parse_fail_if("errors>+0.01")]).gates
    # All 5 bad ones of 200 turns on one side of 100.
    assert gate["p"] == pytest.approx(math.comb(100, 5) / math.comb(200, 5))
    assert gate["verdict"] == "inconclusive"
    (gate,) = judge(*sides("errors", 0, 2, 20), [parse_fail_if("errors>+0.01")]).gates
    assert gate["p"] == pytest.approx(math.comb(100, 10) / math.comb(200, 10))
    assert gate["verdict"] == "fail"


@pytest.mark.parametrize(("turns", "verdict"), [(20, "inconclusive"), (100, "pass")])
def test_all_turns_good_of_few(turns: int, verdict: str) -> None:
    base, new = sides("good_fraction", 0, 0, turns)
    least = 0.05 ** (1 / (5 * turns))
    value, ratio = judge(base, new, [parse_fail_if("good_fraction<99%"), parse_fail_if("good_fraction<-1%")]).gates
    assert (value["verdict"], ratio["verdict"]) == (verdict, verdict)
    assert (value["low"], value["high"]) == (pytest.approx(least), 1.0)
    assert (ratio["low"], ratio["high"]) == (pytest.approx(least), pytest.approx(1 / least))
    # 299 turns without a bad one show less than 1%.
    assert value["runs_needed"] == (15 if turns == 20 else 3)


def test_many_bad_turns_fail_a_value() -> None:
    base, new = sides("good_fraction", 0, 5, 100)
    (gate,) = judge(base, new, [parse_fail_if("good_fraction<99%")]).gates
    assert (gate["verdict"], gate["new"]) == ("fail", pytest.approx(0.95))


def test_turns_that_differ_from_run_to_run_keep_the_wider_bounds() -> None:
    base, new = sides("errors", 0, 0, 1000)
    shares = [0.0, 0.02, 0.0, 0.03, 0.0]
    new = [
        made(
            run.label,
            0,
            {"errors": s},
            completed=round(1000 * (1 - s)),
            failed=round(1000 * s),
            requested=1000,
            turns=None,
        )
        for run, s in zip(new, shares, strict=True)
    ]
    (gate,) = judge(base, new, [parse_fail_if("errors>+0.01")], allow_order=True).gates
    # 50 of 5,000 turns alone would show 0.8 to 1.3%.
    assert gate["high"] > 0.02
    assert gate["low"] < 0
    assert gate["p"] > 0.01
