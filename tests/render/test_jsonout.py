from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.summary import summarise
from kvbench.render.jsonout import summary_json
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


def test_the_names_scripts_rely_on() -> None:
    plain = json.loads(msgspec.json.encode(summary_json(summarise(load_run(FIXTURE)), Path("runs/one"))))
    assert plain["run"] == "runs/one"
    assert plain["trust"] == "ok"
    assert plain["trust_reasons"] == []
    for name in ("ttft_s", "ttft_scheduled_s", "tpot_s"):
        assert {"p50", "p95", "p99"} <= plain[name].keys()
    assert plain["ttft_s"]["p50"] == pytest.approx(0.075)
    assert plain["tpot_s"]["p95"] == pytest.approx(0.0285)
    assert plain["hit_rate"] == 0.648
    assert plain["expected_hit_rate"]["floor"] == 0.31
    assert plain["expected_hit_rate"]["ceiling"] == 0.61
    assert (plain["input_tokens"], plain["cached_tokens"], plain["output_tokens"]) == (4000, 2592, 14)
    assert plain["requests"] == {"ok": 4, "failed": 1, "skipped": 1, "retried": 1}
    assert plain["own_error"]["send_lag_p99_s"] == pytest.approx(9e-4)
    assert plain["ttft_adjusted_s"]["p99"] is None
    assert plain["ttft_adjusted_s"]["failures_as_inf"] == 1
    assert plain["cache_write_tokens"] is None
