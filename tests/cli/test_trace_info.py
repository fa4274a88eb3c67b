"""`kvbench trace info`: what it prints of blocks and load, and the names that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.public_traces import data
from typer.testing import CliRunner

from kvbench.cli.trace import app
from kvbench.errors import UsageError

ROWS = [
    {"kvbench_trace": 1, "name": "h", "block_size": 10},
    {"session_id": "h", "turn": 0, "input_tokens": 25, "hash_ids": [1, 2, 3], "output_tokens": 5},
    {"session_id": "h", "turn": 1, "delay_s": 8, "input_tokens": 30, "keep_blocks": 2, "hash_ids": [4]},
    {"session_id": "i", "turn": 0, "start_s": 4, "input_tokens": 40, "hash_ids": [1, 2, 5, 6]},
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "h.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(file)


def test_names_that_scripts_rely_on(path: str) -> None:
    result = CliRunner().invoke(app, ["info", path, "--json", "--ttl", "5", "--bytes-per-token", "100"])
    shown = json.loads(result.stdout)
    assert (shown["sessions"], shown["turns"], shown["input_tokens"], shown["output_tokens"]) == (2, 3, 95, 5)
    assert shown["unique_blocks"] == 6
    assert (shown["ceiling"]["block_hit_rate"], shown["ceiling"]["token_hit_rate"]) == (4 / 10, 40 / 95)
    # 1 2 3 from 0 to 5, 5 and 6 from 4 to 9: five blocks at 4
    assert shown["working_set"]["peak_tokens"] == 50
    assert shown["working_set"]["peak_bytes"] == 5000
    assert shown["pauses_beyond_ttl"] == 1


def test_what_people_read(path: str) -> None:
    lines = CliRunner().invoke(app, ["info", path, "--ttl", "5"]).stdout.splitlines()
    assert "pauses     p50 8.0 s   p95 8.0 s   max 8.0 s   100.0% over 5 s" in lines
    assert "blocks     10 of 10 tokens, 6 distinct (the trace's own lengths and hash ids)" in lines
    assert (
        "ceiling    40.0% by block, 42.1% by token, unbounded cache; 21.1% from the session's own previous turn"
        in lines
    )
    assert "sharing    2 blocks that two sessions or more have are 60.0% of all sent, in 1 piece; the largest:" in lines
    assert "           60.0%   20 tokens in 2 sessions, 3 requests (first h)" in [
        line.replace("             ", "           ") for line in lines
    ]
    assert (
        "live       sessions peak 2, mean 1.0; requests in flight not known: not every answer has a duration" in lines
    )


def test_bytes_say_what_is_not_in_them(path: str) -> None:
    said = "; what a session takes besides is not in the bytes"
    # 3 blocks until 4, 5 until 5, 4 until 8: 290 / 8 tokens
    plain = "working    peak 50 tokens, mean 36 tokens: distinct blocks touched in the last 5 s"
    assert plain in CliRunner().invoke(app, ["info", path, "--ttl", "5"]).stdout.splitlines()
    sized = CliRunner().invoke(app, ["info", path, "--ttl", "5", "--bytes-per-token", "100"]).stdout
    first = "working    peak 50 tokens (5 kB), mean 36 tokens (3.62 kB): distinct blocks touched in the last 5 s"
    assert first + said in sized.splitlines()


def test_a_ttl_is_a_time(path: str) -> None:
    result = CliRunner().invoke(app, ["info", path, "--ttl", "0"])
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == "--ttl 0: not a number of seconds above 0"


def test_a_public_trace_agrees_with_its_curve() -> None:
    path = str(data("weka", "trace_0422.json"))
    info = json.loads(CliRunner().invoke(app, ["info", path, "--json"]).stdout)
    curve = json.loads(CliRunner().invoke(app, ["curve", path, "--json"]).stdout)
    assert info["ceiling"]["hit_blocks"] == curve["hit_blocks_unbounded"]
    assert info["ceiling"]["hit_tokens"] == curve["hit_tokens_unbounded"]
    assert info["unique_blocks"] == curve["unique_blocks"]
    assert info["input_tokens"] == curve["input_tokens"]
