from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.traces.importing import open_workload
from kvbench.traces.writers.convert import Conversion
from kvbench.traces.writers.report import ExportReport

Convert = Callable[..., tuple[Path, ExportReport]]
Write = Callable[..., Path]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """convert(source, target, **options) -> (the file made, the report)."""
    made = [0]

    def call(source: Path, target: Any, **options: Any) -> tuple[Path, ExportReport]:
        made[0] += 1
        path = tmp_path / f"made{made[0]}.{target}.jsonl"
        with open_workload(source) as trace, path.open("wb") as out:
            report = Conversion(trace, target, **options).write(out.write)
        return path, report

    return call


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(line, line, ...) -> a native trace of these lines; header={...} adds to its header."""
    made = [0]

    def call(*lines: dict[str, Any], header: dict[str, Any] | None = None) -> Path:
        made[0] += 1
        path = tmp_path / f"source{made[0]}.jsonl"
        head = {"kvbench_trace": 1, "name": "t", "block_size": 4} | (header or {})
        path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
        return path

    return call
