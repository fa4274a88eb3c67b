"""The timing report's script runs, and finds every chunk of every request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "reports" / "sim" / "run.py"


def test_a_short_measurement_finds_every_chunk() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["jobs"]
    assert (row["requests"], row["chunks"]) == (5, 5 * 60)
    for late in row["late_ms"].values():
        assert 0 <= late["p50"] <= late["p99"] <= late["max"]
