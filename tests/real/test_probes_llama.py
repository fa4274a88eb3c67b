"""The smaller probes against llama.cpp, whose cache goes by slots and whose every prompt begins with a template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.llama import LlamaServer

pytestmark = pytest.mark.real


def probe(llama: LlamaServer, cwd: Path, name: str, *more: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "kvbench", "probe", name, "--endpoint", llama.url, "--yes", "--json", *more]
    done = subprocess.run(words, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {e["name"]: e for e in report["estimates"]}


def test_log_probabilities_from_a_slot_are_near_those_computed(llama: LlamaServer, tmp_path: Path) -> None:
    """Median 0.0001 nats and at most 0.002 when this was written."""
    report = probe(llama, tmp_path, "consistency", "--prompts", "3", "--input-tokens", "301", "--output-tokens", "16")
    assert report["cached_answers_differ"]["n"] == 3
    assert 0 <= report["cached_logprob_off_median"]["value"] <= report["cached_logprob_off_largest"]["value"] < 0.1
    assert "computed_answers_differ" not in report


def test_a_template_in_a_slot_is_no_prompt_that_lived(llama: LlamaServer, tmp_path: Path) -> None:
    """Twelve prompts in four slots: those asked for first, the youngest, are long gone."""
    report = probe(llama, tmp_path, "ttl", "--min-age", "0.2", "--max-age", "0.5", "--passes", "1")
    assert report["estimates"] == []
    assert "was found" in report["refusals"][0]["reason"]
