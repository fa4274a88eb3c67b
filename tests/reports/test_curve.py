"""The traffic that the curve's report is measured with: as runs and as a file it is the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.curve.hits import HitCounts, find
from kvbench.traces.curve.measure import Asked, measure
from kvbench.traces.curve.traffic import read_traffic
from kvbench.traces.importing import open_workload

SCRIPT = Path(__file__).parents[2] / "reports" / "curve" / "traffic.py"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("curve_traffic", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "curve_traffic", module)
    spec.loader.exec_module(module)
    return module


def test_runs_worked_out_directly_are_those_of_the_file(made: ModuleType, tmp_path: Path) -> None:
    traffic = made.traffic(1_500)
    path = tmp_path / "agents.jsonl"
    path.write_bytes(b"".join(made.trace_lines(traffic)))
    capacities = [500, 2_000, 10_000, 40_000]
    runs, tokens = made.runs_of(traffic)
    with open_workload(path) as trace:
        read = read_traffic(BlockedTrace(trace))
    assert read.runs.previous.tolist() == runs.previous.tolist()
    assert read.runs.blocks.tolist() == runs.blocks.tolist()
    found = measure(read, Asked(capacities_blocks=capacities)).all
    counts = HitCounts(runs, find(runs, "leaf-first"), "leaf-first", block_size=made.BLOCK, input_tokens=tokens)
    assert [point.hit_blocks for point in found.points] == counts.hit_blocks(np.array(capacities)).tolist()
    assert found.hit_blocks_unbounded == counts.hit_blocks_unbounded
