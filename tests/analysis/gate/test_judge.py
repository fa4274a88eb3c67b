from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.gate.runs import abba, made
from tests.made_runs import make_run

from kvbench.analysis.gate.evidence import Evidence, from_run
from kvbench.analysis.gate.expression import Gate, parse_fail_if, parse_slo
from kvbench.analysis.gate.judge import judge
from kvbench.analysis.pricing.run_cost import RunCost

BASE = [1.00, 1.01, 0.99, 1.005, 0.995]


def worse(by: float) -> list[float]:
    return [value * by for value in BASE[::-1]]


@pytest.mark.parametrize(
    ("by", "verdict"), [(1.0, "pass"), (1.10, "fail"), (1.025, "pass"), (1.0451, "fail"), (0.8, "pass")]
)
def test_the_runs_decide(by: float, verdict: str) -> None:
    base, new = abba(BASE, worse(by))
    judged = judge(base, new, [parse_fail_if("ttft.geomean>+3%")])
    assert judged.verdict == verdict
    (gate,) = judged.gates
    assert (gate["n_base"], gate["n_new"], gate["test"]) == (5, 5, "pooled t")
    assert gate["ratio"] == pytest.approx(by)
    assert gate["low"] < by < gate["high"]
    assert gate["base"] == pytest.approx(math.prod(BASE) ** 0.2)
    assert any("better by more" in note for note in judged.notes) is (by == 0.8)


def test_noise_is_inconclusive_and_says_how_many_runs_it_needs() -> None:
    noisy = [1.0, 1.1, 0.9, 1.05, 0.95]
    (gate,) = judge(*abba(noisy, [1.02 * v for v in noisy]), [parse_fail_if("ttft.geomean>+3%")]).gates
    assert gate["verdict"] == "inconclusive"
    assert gate["runs_needed"] > 20
    assert gate["power_fail"] < 0.3


def test_too_few_is_never_a_pass() -> None:
    base, new = abba(BASE[:4], BASE[:4])
    judged = judge(base, new, [parse_fail_if("ttft.geomean>+3%")])
    assert judged.verdict == "inconclusive"
    assert "too few runs: 4 + 4" in judged.gates[0]["reason"]
    one = judge(base[:1], new[:1], [parse_fail_if("ttft.geomean>+3%")], allow_order=True)
    assert (one.verdict, one.gates[0]["p"]) == ("inconclusive", None)
    assert one.gates[0]["ratio"] == pytest.approx(1.0)


def test_holm_over_the_gates() -> None:
    base, new = abba(BASE, worse(1.032))
    expr = "ttft.geomean>+3%"
    (alone,) = judge(base, new, [parse_fail_if(expr)]).gates
    family = judge(base, new, [parse_fail_if(expr), parse_fail_if("hit_rate<-0.02"), parse_slo("ttft.p95<2s")])
    assert alone["p_holm"] == alone["p"]
    assert family.gates[0]["p_holm"] == pytest.approx(2 * alone["p"]), "hit_rate is not reported, so two are tested"
    assert family.gates[1]["reason"].startswith("not reported in B0 and 9 more")
    assert family.verdict == "fail", "a fail stands beside what is inconclusive"


def test_a_difference_that_is_exact() -> None:
    gate = [parse_fail_if("hit_rate<-0.02")]
    same = judge(*abba([0.907] * 5, [0.907] * 5, "hit_rate"), gate)
    fell = judge(*abba([0.907] * 5, [0.857] * 5, "hit_rate"), gate)
    assert (same.verdict, fell.verdict) == ("pass", "fail")
    assert fell.gates[0]["change"] == pytest.approx(-0.05)
    assert (fell.gates[0]["low"], fell.gates[0]["high"]) == (pytest.approx(-0.05), pytest.approx(-0.05))


@pytest.mark.parametrize(
    ("failed", "turns", "verdict"),
    [(0, 100, "pass"), (0, 50, "inconclusive"), (6, 100, "fail"), (1, 100, "inconclusive")],
)
def test_failures_are_judged_by_their_count(failed: int, turns: int, verdict: str) -> None:
    new = [
        made(
            f"N{i}",
            i,
            {"errors": failed / turns, "ttft": 1.0},
            completed=turns - failed,
            failed=failed,
            requested=turns,
        )
        for i in range(5)
    ]
    judged = judge([], new, [parse_fail_if("errors>1%"), parse_fail_if("ttft.p50>2s")])
    assert judged.gates[0]["verdict"] == verdict
    assert judged.gates[1]["verdict"] == ("inconclusive" if failed == 6 else "pass")
    if failed == 6:
        only = judge([], new, [parse_fail_if("ttft.p50>2s")])
        assert only.verdict == "refused", "latencies of what succeeded flatter the endpoint"


def test_an_absolute_value_needs_no_baseline() -> None:
    slo = parse_slo("ttft.p95<2s")
    assert isinstance(slo, Gate)
    for factor, verdict in ((1.0, "pass"), (2.5, "fail"), (1.995, "inconclusive")):
        new = [made(f"N{i}", i, {"ttft": factor * value}) for i, value in enumerate(BASE)]
        assert judge([], new, [slo]).verdict == verdict
    assert judge([], new[:2], [slo]).gates[0]["reason"] == "too few runs: 2 of at least 3"


def test_refused_with_the_figures_for_reference() -> None:
    base, new = abba(BASE, worse(1.1))
    judged = judge([*base, base[0]], new, [parse_fail_if("ttft.geomean>+3%")])
    assert judged.verdict == judged.gates[0]["verdict"] == "refused"
    assert judged.gates[0]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert judged.reasons == ["B0 is given twice: each run counts once"]


def test_stored_runs_are_allowed_and_said() -> None:
    base = [made(f"B{i}", i, {"ttft": BASE[i % 5]}) for i in range(20)]
    new = [made(f"N{i}", 100 + i, {"ttft": BASE[i]}) for i in range(3)]
    gate = [parse_fail_if("ttft.geomean>+3%")]
    assert judge(base, new, gate).verdict == "refused"
    allowed = judge(base, new, gate, allow_order=True)
    assert allowed.verdict == "pass"
    assert "5 to 7%" in allowed.notes[0]


def test_a_gate_without_prices_is_refused_and_says_why() -> None:
    for cost, said in (
        (None, "does not hold the usage of each request"),
        (RunCost(reason="no price for the model m"), "not priced: B0: no price for the model m"),
    ):
        judged = judge(*abba(BASE, BASE, cost=cost), [parse_fail_if("cost>+5%"), parse_fail_if("ttft.mean>+5%")])
        assert judged.verdict == "refused"
        assert [gate["verdict"] for gate in judged.gates] == ["refused", "pass"]
        assert said in judged.gates[0]["reason"]
        assert judged.reasons == [f"cost>+5%: {judged.gates[0]['reason']}"]


def test_a_failure_beside_a_gate_without_prices_stays_one() -> None:
    slower = [value * 1.2 for value in BASE]
    judged = judge(*abba(BASE, slower), [parse_fail_if("cost>+5%"), parse_fail_if("ttft.mean>+5%")])
    assert (judged.verdict, judged.reasons) == ("fail", [])
    assert [gate["verdict"] for gate in judged.gates] == ["refused", "fail"]


def test_amounts_in_two_currencies_are_not_compared() -> None:
    base, new = abba(BASE, BASE, "cost", cost=RunCost("USD", Decimal(1)))
    new = [replace(run, cost=RunCost("CNY", Decimal(1))) for run in new]
    (gate,) = judge(base, new, [parse_fail_if("cost>+5%")]).gates
    assert gate["verdict"] == "refused"
    assert "CNY, USD" in gate["reason"]


def test_an_adjusted_percentile_that_failures_reach_is_said_to_be_one_of_theirs() -> None:
    base, new = abba([1.0] * 5, [1.0] * 5, word="ttft_adjusted")
    new[2] = made("N2", 5, {"ttft_adjusted": None})
    (found,) = judge(base, new, [parse_fail_if("ttft_adjusted.p99>+5%")]).gates
    assert found["verdict"] == "inconclusive"
    assert found["reason"].startswith("not reported in N2, or never: so many turns failed")


def test_a_rate_that_leaves_out_the_misses_is_no_pass(tmp_path: Path) -> None:
    """A tenth fewer hits, and no count on the 12 of 48 turns that miss: 0.9 x 6 of 9 is the baseline's 6 of 10."""

    def side(name: str, at_min: int, **changes: Any) -> list[Evidence]:
        return [from_run(make_run(tmp_path, f"{name}{i}", at_min + 4 * i, **changes)) for i in range(5)]

    gates = [parse_fail_if("hit_rate<-0.02"), parse_fail_if("eligible_hit_rate<-0.5"), parse_fail_if("hit_rate<50%")]
    base, new = side("b", 0), side("n", 2, hits=0.9, zeros=False)
    change, eligible, value = judge(base, new, gates, allow_order=True).gates
    assert (change["base"], change["new"]) == (pytest.approx(0.6), pytest.approx(0.6))
    assert [gate["verdict"] for gate in (change, eligible, value)] == ["inconclusive"] * 3
    assert "75.0% of the turns in n0 and by 100.0% in b0" in change["reason"]
    assert "by 75.0% of the turns in n0: the rate leaves out" in value["reason"]
    silent = side("s", 3, zeros=False)
    assert judge(silent, new, gates[:1], allow_order=True).verdict == "fail", "the same turns are left out of both"
