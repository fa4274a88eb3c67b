"""OpenMetrics text, read by the format's own parsers."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from tests.render.verdicts import MIXED, REFUSED, gate, judged

from kvbench.render.openmetrics import gate_openmetrics


@pytest.mark.parametrize("parse", [openmetrics, prometheus])
def test_both_formats_parsers_read_the_figures(parse) -> None:  # type: ignore[no-untyped-def]
    families = {family.name: family for family in parse(gate_openmetrics(MIXED))}
    assert all(family.type == "gauge" for family in families.values())
    verdicts = {s.labels["verdict"]: s.value for s in families["kvbench_verdict"].samples}
    assert verdicts == {"pass": 0, "fail": 1, "inconclusive": 0, "refused": 0}
    ratio = {s.labels["expr"]: s.value for s in families["kvbench_gate_ratio"].samples}
    # tpot was not reported: it has no sample, least of all a 0.
    assert ratio == {"ttft.geomean>+3%": 1.12, "hit_rate<-0.02": 1.12}
    (new, _) = families["kvbench_gate_new"].samples
    assert (new.value, new.labels["unit"], new.labels["scale"]) == (0.112, "s", "ratio")
    states = {(s.labels["expr"], s.labels["verdict"]): s.value for s in families["kvbench_gate_verdict"].samples}
    assert states["tpot.p95>+3%", "inconclusive"] == 1
    assert sum(states.values()) == 3


def test_an_expression_given_twice_is_one_sample() -> None:
    text = gate_openmetrics(judged(gate("pass"), gate("pass"), verdict="pass"))
    assert text.count("kvbench_gate_ratio{") == 1
    assert list(openmetrics(text))


def test_what_is_not_finite_has_no_sample() -> None:
    text = gate_openmetrics(judged(gate("pass", ratio=float("inf"), p=float("nan")), verdict="pass"))
    assert "kvbench_gate_ratio{" not in text
    assert "kvbench_gate_p{" not in text


def test_a_refusal_ends_as_the_format_says() -> None:
    assert gate_openmetrics(REFUSED).endswith("\n# EOF\n")
