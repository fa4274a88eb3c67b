"""The section on latency says what the cases are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FILE = Path(__file__).parent.parent.parent / "reports" / "fit" / "latency.py"


def test_errors_and_intervals_are_counted() -> None:
    spec = importlib.util.spec_from_file_location("fit_latency_report", FILE)
    assert spec is not None
    assert spec.loader is not None
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)

    def case(error: float, half: float) -> dict[str, object]:
        term = {"error": error, "low": error - half, "high": error + half}
        return {"refused": None, "requests": 300, "base_off_s": 0.002, "terms": dict.fromkeys(report.TRUTH, term)}

    refused = {"refused": ["the client's own error is too large"], "requests": 0}
    lines = report.table([case(0.01, 0.02), case(-0.04, 0.02), refused])
    rows = [line for line in lines if line.startswith("| `")]
    # root of (0.01^2 + 0.04^2) / 2 = 2.92%; -6% to -2% does not hold 0
    assert rows == [f"| `{name}` | 3 | 1 | 4.00% | 1 | 2.92% | 1 of 2 | 4.00% |" for name in report.TRUTH]
    assert "2.0 ms" in lines[-1]
