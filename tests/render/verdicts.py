"""Verdicts as `kvbench gate --json` prints them, made up, with text that a model or a server could have said."""

from __future__ import annotations

from typing import Any

NASTY = (
    '\x00\x07\x1b[31mred ]]> <script>alert(1)</script> & \ud800 \ufffe \uffff 🧨 \u202eevil\n::error::no | `x` %0A \\ "'
)


def gate(verdict: str, expr: str = "ttft.geomean>+3%", **changes: Any) -> dict[str, Any]:
    return {
        "expr": expr,
        "verdict": verdict,
        "reason": None,
        "metric": "ttft",
        "stat": "geomean",
        "unit": "s",
        "scale": "ratio",
        "log": True,
        "fails_beyond": 1.03,
        "passes_within": 1.05,
        "base": 0.1,
        "new": 0.112,
        "n_base": 5,
        "n_new": 5,
        "ratio": 1.12,
        "change": 1.12,
        "low": 1.10,
        "high": 1.14,
        "interval_level": 0.9,
        "p": 0.0001,
        "p_holm": 0.0002,
        "test": "pooled t",
        "spread": 0.02,
        "power_fail": 0.8,
        "power_fail_family": 0.7,
        "power_pass": 0.96,
        "fail_at_threshold": 0.29,
        "runs_needed": 5,
        "runs_needed_family": 6,
    } | changes


def judged(*gates: dict[str, Any], verdict: str, reasons: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> Any:
    return {"verdict": verdict, "gates": list(gates), "reasons": list(reasons), "notes": list(notes)}


UNTESTED = dict.fromkeys(
    ("base", "new", "ratio", "change", "low", "high", "p", "p_holm", "runs_needed", "runs_needed_family", "spread")
)
MIXED = judged(
    gate("fail"),
    gate("inconclusive", "tpot.p95>+3%", reason=f"not reported in {NASTY}", **UNTESTED),
    gate("pass", "hit_rate<-0.02", scale="difference", unit="1", base=0.9, new=0.9, change=0.0, low=-0.001, high=0.001),
    verdict="fail",
    notes=(NASTY,),
)
REFUSED = judged(gate("refused"), gate("refused", "errors>1%", scale="value"), verdict="refused", reasons=(NASTY, "b"))
