"""Under DeepSeek's rule, floor and ceiling contain what an honest endpoint reports, and say something.

Agent traces over HTTP against the simulated DeepSeek API, whose prefix units share no code with the rule's: shared
prompts, tools, sub-agents, overlapping sessions, units that take time to build. A+B, A+C, A+D: test_run_units.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.sim.conftest import QUICK

from kvbench.sim.process import SimProcess

SCALE = "0.01"
INSIDE, WIDTH = 0.99, 0.05
RULE = 'rule = "units"\nbuild_s = 0.1\n'
"""3 s of trace time are 0.03 s here."""


@pytest.mark.parametrize(
    ("trace", "settings", "rule"),
    [
        ("agent-trace.jsonl", {}, ""),
        (("coding-agent", "2", "3"), {"unit_granularity_tokens": 64, "seed": 2}, ""),
        (("tool-chat", "3", "6"), {"unit_interval_tokens": 1024, "seed": 3}, "interval_tokens = 1024\n"),
    ],
    ids=["bundled", "granule of 64", "fixed intervals"],
)
def test_reported_hits_lie_inside_a_narrow_interval(
    kvbench: Kvbench, tmp_path: Path, trace: str | tuple[str, str, str], settings: dict[str, Any], rule: str
) -> None:
    if not isinstance(trace, str):
        recipe, seed, sessions = trace
        made = kvbench("trace", "synth", recipe, "--seed", seed, "--sessions", sessions, "-o", "made.jsonl")
        assert made.returncode == 0, made.stderr
        trace = "made.jsonl"
    with SimProcess.start("deepseek-api", settings=QUICK | settings, time_scale=float(SCALE)) as sim:
        head = f'url = "{sim.url}"\ndialect = "deepseek"\nmodel = "deepseek-flash"\n'
        (tmp_path / "e.toml").write_text(f"{head}[expected_hits]\n{RULE}{rule}")
        done = kvbench("run", trace, "--endpoint", "e.toml", "--time-scale", SCALE, "--json")
    assert done.returncode in (0, 3), done.stderr
    run = tmp_path / json.loads(done.stdout)["run"]
    assert '"tools"' in (run / "trace.jsonl").read_text()
    reported = {row["request_id"]: row["usage"]["cached_tokens"] for row in rows(run / "records.jsonl")}
    expected = {row["request_id"]: row["expectation"] for row in rows(run / "expectations.jsonl")}
    assert expected.keys() == reported.keys()
    inside = [e["floor"] <= reported[name] <= e["ceiling"] for name, e in expected.items()]
    assert sum(inside) >= INSIDE * len(inside)
    assert median((e["ceiling"] - e["floor"]) / e["input_tokens"] for e in expected.values()) <= WIDTH
    assert sum(e["floor"] > 0 for e in expected.values()) > len(expected) / 2


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
