"""The pool from a real vLLM's own gauge, on dense layers and on a window, and from how what it claims goes with its
longest context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.sizes import tight
from servers.tiny_model import WINDOW
from servers.vllm import KV_BYTES_PER_TOKEN, MIB, VllmServer, VllmSettings, vllm_server

pytestmark = pytest.mark.real

PER_TOKEN = KV_BYTES_PER_TOKEN // 2
"""Of the window model: one of its two layers keeps all tokens."""
PAGE = 32 * PER_TOKEN
HELD_PAGES = (WINDOW - 1) / 32 + 1
"""Blocks that the current token and the 511 before it are in, on average."""
RESERVED_PAGES = -(-(WINDOW - 1 + 2_048) // 32) + 1
"""What the server counts for its longest request: a whole prefill step, and a block for where it begins."""


def named(stdout: str) -> dict[str, dict[str, Any]]:
    return {e["name"]: e for e in json.loads(stdout)["estimates"]}


@tight
def test_the_gauge_tells_the_pool(vllm: VllmServer, kvbench: Callable[..., Any]) -> None:
    done = kvbench("probe", "occupancy", "--endpoint", vllm.url, "--yes", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    found = named(done.stdout)
    capacity, per_token = found["capacity_tokens_of_gauge"], found["bytes_per_token_of_gauge"]
    assert abs(capacity["value"] / vllm.settings.capacity_tokens - 1) < 0.05
    assert abs(per_token["value"] / KV_BYTES_PER_TOKEN - 1) < 0.05
    # a request takes nothing besides
    assert found["bytes_per_session_of_gauge"]["low"] < 32 * KV_BYTES_PER_TOKEN / 2


def run(tmp_path: Path, *arguments: str | os.PathLike[str]) -> str:
    program = str(Path(sys.executable).with_name("kvbench"))
    done = subprocess.run(
        [program, *map(os.fspath, arguments)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_window_model_shows_bytes_a_token_and_a_session(tmp_path: Path) -> None:
    """vLLM claims another number of tokens at each context length, all of them short of what its pool holds."""
    runs = []
    for length in (8_192, 16_384, 24_576):
        settings = VllmSettings(kv_bytes=8 * MIB, max_model_len=length, model="tiny-window")
        (tmp_path / str(length)).mkdir()
        with vllm_server(settings, tmp_path / str(length)) as server:
            asked = ("--input-tokens", "800,1600,3200", "--repeats", "1", "--yes", "--json")
            report = run(tmp_path, "probe", "occupancy", "--endpoint", server.url, *asked)
        runs += json.loads(report)["runs"]
        found = named(report)
        assert abs(found["capacity_tokens_of_gauge"]["value"] / (1_023 * 32) - 1) < 0.04
        assert abs(found["bytes_per_token_of_gauge"]["value"] / PER_TOKEN - 1) < 0.04
        assert abs(found["bytes_per_session_of_gauge"]["value"] / (HELD_PAGES * PAGE) - 1) < 0.2
    restarts = named(run(tmp_path, "fit", *runs, "--json"))
    token, session = restarts["bytes_per_token_of_restarts"], restarts["bytes_per_session_of_restarts"]
    assert token["low"] <= PER_TOKEN <= token["high"]
    assert abs(token["value"] / PER_TOKEN - 1) < 0.005
    assert session["low"] <= RESERVED_PAGES * PAGE <= session["high"]
