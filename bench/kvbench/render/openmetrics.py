"""A gate's verdict as OpenMetrics text.

Gauges only, so that what reads the older Prometheus text format (node_exporter's textfile collector) takes the same
file: it knows no state sets.
"""

from __future__ import annotations

import math
from typing import Any

from kvbench.render.text import safe

VERDICTS = ("pass", "fail", "inconclusive", "refused")
_FIGURES = {
    "base": "Mean of the baseline's runs, in the unit that the label says.",
    "new": "Mean of the new runs, in the unit that the label says.",
    "ratio": "New over base.",
    "low": "Lower end of the 90% interval of the change, on the scale that the label says.",
    "high": "Upper end of the 90% interval of the change, on the scale that the label says.",
    "p": "One-sided p of no change, or of the limit.",
    "p_holm": "The same after Holm over all gates.",
    "n_base": "Runs of the baseline.",
    "n_new": "New runs.",
    "runs_needed": "Runs a side for 80% power; left out above 1,000.",
}


def gate_openmetrics(judged: dict[str, Any]) -> str:
    """The JSON object of `kvbench gate` as gauges; what is not reported has no sample."""
    lines = _head("kvbench_verdict", "1 for the verdict over all gates, 0 for the others.")
    lines += [_sample("kvbench_verdict", {"verdict": v}, float(judged["verdict"] == v)) for v in VERDICTS]
    lines += _head("kvbench_gate_verdict", "1 for the gate's verdict, 0 for the others.")
    lines += [
        _sample("kvbench_gate_verdict", {"expr": gate["expr"], "verdict": v}, float(gate["verdict"] == v))
        for gate in _unique(judged)
        for v in VERDICTS
    ]
    for name, says in _FIGURES.items():
        told = [gate for gate in _unique(judged) if gate[name] is not None and math.isfinite(gate[name])]
        if told:
            lines += _head(f"kvbench_gate_{name}", says)
        lines += [_sample(f"kvbench_gate_{name}", _labels(gate), gate[name]) for gate in told]
    return "\n".join([*lines, "# EOF", ""])


def _unique(judged: dict[str, Any]) -> list[dict[str, Any]]:
    """One gate an expression: two samples of the same labels are no OpenMetrics."""
    return list({gate["expr"]: gate for gate in judged["gates"]}.values())


def _labels(gate: dict[str, Any]) -> dict[str, str]:
    return {"expr": gate["expr"], "unit": gate["unit"], "scale": gate["scale"]}


def _head(name: str, says: str) -> list[str]:
    return [f"# TYPE {name} gauge", f"# HELP {name} {says}"]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return safe(text).replace("\\", "\\\\").replace('"', '\\"')
