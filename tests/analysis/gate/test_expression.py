from __future__ import annotations

import math

import pytest

from kvbench.analysis.gate.expression import Gate, parse_fail_if, parse_slo
from kvbench.analysis.slo import Slo
from kvbench.errors import UsageError


@pytest.mark.parametrize(
    ("expr", "metric", "stat", "kind", "sign", "threshold", "pass_bound"),
    [
        ("ttft.geomean>+3%", "ttft_s", "geomean", "ratio", 1, math.log(1.03), math.log(1.05)),
        (" tpot.p99 > +6 % ", "tpot_s", "p99", "ratio", 1, math.log(1.06), math.log(1.1)),
        ("jobs_per_h<-3%", "jobs_per_h_per_user", None, "ratio", -1, -math.log(0.97), -math.log(0.95)),
        ("hit_rate<-0.03", "hit_rate", None, "difference", -1, 0.03, 0.05),
        ("e2e.p50>+300ms", "e2e_s", "p50", "difference", 1, 0.3, 0.5),
        ("errors>1%", "error_rate", None, "value", 1, 0.01, 0.01),
        ("ttft.p95>2s", "ttft_s", "p95", "value", 1, math.log(2), math.log(2)),
        ("output_throughput<500", "output_tokens_per_s", None, "value", -1, -math.log(500), -math.log(500)),
    ],
)
def test_what_an_expression_means(
    expr: str, metric: str, stat: str | None, kind: str, sign: int, threshold: float, pass_bound: float
) -> None:
    gate = parse_fail_if(expr)
    assert (gate.metric.name, gate.stat, gate.kind, gate.sign) == (metric, stat, kind, sign)
    assert (gate.threshold, gate.pass_bound) == pytest.approx((threshold, pass_bound))


def test_an_slo_says_what_must_hold() -> None:
    gate = parse_slo("ttft.p95<2s")
    assert isinstance(gate, Gate)
    assert (gate.kind, gate.sign, gate.threshold) == ("value", 1, math.log(2)), "it fails above"
    low = parse_slo("hit_rate>80%")
    assert isinstance(low, Gate)
    assert (low.sign, low.threshold, low.log) == (-1, -0.8, False)
    assert parse_slo("tpot<50ms") == Slo("tpot_s", 0.05), "without a statistic: of each request"


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("ttft.geomean=3%", "not an expression"),
        ("", "not an expression"),
        ("speed>+3%", "no metric 'speed'"),
        ("ttft>+3%", "name a statistic"),
        ("ttft.p42>+3%", "no statistic 'p42'"),
        ("hit_rate.p50<-3%", "one value a run"),
        ("ttft.p50<-3%", "would fail on an improvement"),
        ("hit_rate>+3%", "would fail on an improvement"),
        ("ttft.p50>-3%", "> goes with +"),
        ("ttft.p50>+0%", "above 0"),
        ("errors>+1%", "no relative change"),
        ("errors>0%", "above 0%"),
        ("hit_rate<-60%", "below 60%"),
        ("ttft.p50>3", "is a time"),
        ("jobs_per_h<-3x", "is in 1/h"),
    ],
)
def test_what_cannot_be_meant(expr: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_fail_if(expr)
    assert said in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("expr", ["ttft=3%", "speed>+3%"])
def test_what_does_not_parse_names_every_metric(expr: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_fail_if(expr)
    for word in (
        "ttft",
        "tpot",
        "e2e",
        "job_latency",
        "ttfat",
        "jobs_per_h",
        "hit_rate",
        "errors",
        "cost",
        "cost_per_job",
        "goodput",
    ):
        assert word in str(error.value.hint)


@pytest.mark.parametrize("expr", ["ttft.p95>2s", "ttft.p95<+2s", "icl<5ms", "ttft.p95<2"])
def test_an_slo_that_cannot_be_meant(expr: str) -> None:
    with pytest.raises(UsageError):
        parse_slo(expr)
