"""The token audit against a real llama.cpp server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from servers.llama import LlamaServer

pytestmark = pytest.mark.real


def test_reported_prompt_tokens_are_confirmed(llama: LlamaServer, tmp_path: Path) -> None:
    """The tiny model writes bytes at random, which encoded again are other tokens: of its output nothing is said."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kvbench")), "probe", "tokens", "--endpoint", llama.url, "--model",
         llama.model, "--max-input-tokens", "2048", "--max-output-tokens", "64", "--yes", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    checks = {c["name"]: c for c in report["checks"]}
    assert checks["input"]["verdict"] == "confirmed", checks["input"]
    assert {e["name"]: e for e in report["estimates"]}["input_tokens_per_token"]["value"] == 1.0
    assert done.returncode == {"confirmed": 0, "cannot tell": 3}[report["verdict"]]
