"""`kvbench trace curve` as a process of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Kvbench
from tests.public_traces import data
from typer.testing import CliRunner

from kvbench.cli.trace import app
from kvbench.errors import KvbenchError, RefusedError

ROWS = [
    {"kvbench_trace": 1, "name": "<i>small</i>", "block_size": 4},
    {"session_id": "a", "turn": 0, "start_s": 0, "hash_ids": [1, 2, 3], "input_tokens": 12, "model": "<b>big</b>"},
    {"session_id": "b", "turn": 0, "start_s": 1, "hash_ids": [1, 2, 4], "input_tokens": 10},
    {"session_id": "c", "turn": 0, "start_s": 2, "hash_ids": [1, 2, 3], "input_tokens": 13},
]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_names_that_scripts_rely_on(kvbench: Kvbench, small: Path) -> None:
    done = kvbench("trace", "curve", small, "--capacity-blocks", "2,4", "--order", "root-first", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["blocks"], shown["hit_blocks_unbounded"]) == (9, 5)
    assert shown["unbounded"] == {"block_hit_rate": 5 / 9, "token_hit_rate": 20 / 35}
    assert [(p["capacity_blocks"], p["hit_blocks"], p["block_hit_rate"]) for p in shown["points"]] == [
        (2, 0, 0.0),
        (4, 5, 5 / 9),
    ]
    assert shown["points"][1]["token_hit_rate"] == 20 / 35
    assert shown["rule"]["order"] == "root-first"
    assert shown["rule"]["block_size"] == 4
    assert {"cache", "touch", "requests", "ttl", "outputs", "tokens", "partial_tail", "weighting", "warmup"} <= set(
        shown["rule"]
    )


def test_a_public_trace_in_both_orders(kvbench: Kvbench) -> None:
    for order in ("leaf-first", "root-first"):
        rows = json.loads(data("reference", f"mooncake_conversation_{order}.json").read_text())["rows"]
        wanted = {row["cap"]: row["hit_blocks"] for row in rows if row["cap"]}
        done = kvbench(
            "trace", "curve", data("mooncake", "conversation_trace.jsonl"),
            "--capacity-blocks", ",".join(map(str, wanted)), "--order", order, "--json",
        )  # fmt: skip
        shown = json.loads(done.stdout)
        assert {point["capacity_blocks"]: point["hit_blocks"] for point in shown["points"]} == wanted
        assert shown["hit_blocks_unbounded"] == rows[-1]["hit_blocks"]


def test_what_people_read(kvbench: Kvbench, small: Path) -> None:
    done = kvbench("trace", "curve", small, "--hit-rate", "0.4,0.9", "--bytes-per-token", "1000", "--by", "model")
    assert done.returncode == 0
    lines = {line[:14].strip(): line[15:] for line in reversed(done.stdout.splitlines()) if line[:14].strip()}
    assert lines["trace"] == "<i>small</i>: 3 requests, 9 blocks of 4 tokens, 35 input tokens"
    assert lines["blocks"] == "4 distinct in the whole trace"
    assert "55.6% by block, 57.1% by token, from 4 blocks (16 tokens, 16 kB) on" in done.stdout
    assert "40% by block: 2 blocks (8 tokens, 8 kB)" in done.stdout
    assert "90% by block: no capacity has it, the ceiling is lower" in done.stdout
    assert lines["<b>big</b>"] == "1 request, 3 blocks, 12 input tokens"
    assert lines["no model named"] == "2 requests, 6 blocks, 23 input tokens"
    assert lines["outputs"].startswith("not inserted")
    assert lines["leaf-first"].startswith("a request touches its blocks last to first")


def test_a_page_to_look_at_needs_no_network_and_shows_names_as_text(kvbench: Kvbench, small: Path) -> None:
    done = kvbench("trace", "curve", small, "--by", "model", "--plot", "curve.html")
    assert (done.returncode, done.stderr) == (0, "plot: curve.html\n")
    page = (small.parent / "curve.html").read_text()
    assert "cache capacity, tokens (log scale)" in page
    assert "<b>big" not in page
    assert "<i>small" not in page
    assert "&lt;i&gt;small" in page
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


def test_bytes_of_a_model(kvbench: Kvbench, small: Path) -> None:
    done = kvbench("trace", "curve", small, "--capacity-blocks", "4", "--model", "deepseek-v4-flash", "--json")
    assert json.loads(done.stdout)["points"][0]["capacity_bytes"] == 4 * 4 * 3514.25


def test_capacities_in_bytes_are_whole_blocks_of_the_model(kvbench: Kvbench, small: Path) -> None:
    """A block of 4 tokens of V4-Flash takes 14,057 bytes: 2 and 7 of them fit."""
    done = kvbench(
        "trace", "curve", small, "--capacity-bytes", "40kB, 98.4 kB", "--model", "deepseek-v4-flash", "--json"
    )
    assert [point["capacity_blocks"] for point in json.loads(done.stdout)["points"]] == [2, 7]


def test_sub_agents_dated_by_their_end_are_told(kvbench: Kvbench) -> None:
    path = data("weka", "trace_0277.json")
    done = kvbench("trace", "curve", path, "--json")
    assert "dates 4 sub-agents by their end" in done.stderr
    assert json.loads(done.stdout)["notes"] == [done.stderr.removeprefix("note: ").strip()]
    assert kvbench("trace", "curve", path, "--times", "replay").stderr == ""


LENGTHS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04,3180,8\n"


def test_lengths_alone_have_no_hit_rate(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(LENGTHS)
    converted = tmp_path / "native.jsonl"
    assert CliRunner().invoke(app, ["convert", str(tmp_path / "azure.csv"), str(converted)]).exit_code == 0
    doubled = tmp_path / "doubled.jsonl"
    assert CliRunner().invoke(app, ["transform", str(converted), "--copies", "2", "-o", str(doubled)]).exit_code == 0
    for path in (tmp_path / "azure.csv", converted, doubled):
        result = CliRunner().invoke(app, ["curve", str(path)])
        assert isinstance(result.exception, RefusedError)
        assert "which prompts begin alike is not known" in result.exception.message
        shown = json.loads(CliRunner().invoke(app, ["info", str(path), "--json"]).stdout)
        assert (shown["ceiling"], shown["sharing"], shown["unique_blocks"]) == (None, None, None)
        assert shown["working_set"]["peak_tokens"] is None
        assert (
            "ceiling    not known: the source has lengths alone" in CliRunner().invoke(app, ["info", str(path)]).stdout
        )


def test_text_that_is_not_all_that_was_sent_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    turn = {"session_id": "a", "turn": 0, "append": [{"role": "user", "content": "x" * 400}], "input_tokens": 1000}
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"kvbench_trace": 1}, turn)))
    (note,) = json.loads(CliRunner().invoke(app, ["curve", str(path), "--json"]).stdout)["notes"]
    assert note.startswith(
        "the turns with text say they have 1,000 input tokens, and what the trace has of them comes to 100"
    )
    assert "(10%)" in note
    path.write_text(path.read_text().replace("1000", "105"))
    assert json.loads(CliRunner().invoke(app, ["curve", str(path), "--json"]).stdout)["notes"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--capacity-blocks", "10,x"], "--capacity-blocks 10,x: not a list of whole numbers"),
        (["--capacity-blocks", "0"], "--capacity-blocks 0: not a list of whole numbers"),
        (["--capacity-bytes", "1GB"], "--capacity-bytes: what a token takes is not given"),
        (["--capacity-bytes", "1XB", "--model", "kimi-k3"], "--capacity-bytes: '1XB' is no number of bytes"),
        (
            ["--capacity-bytes", "9kB", "--model", "kimi-k3"],
            "--capacity-bytes 9kB: a block of 4 tokens takes 55,296 bytes",
        ),
        (["--capacity-bytes", "1GB", "--capacity-blocks", "9"], "--capacity-blocks and --capacity-bytes both"),
        (["--hit-rate", "90"], "--hit-rate 90: not a list of rates above 0, up to 1"),
        (["--hit-rate", "nan"], "--hit-rate nan: not a list of rates"),
        (["--warmup", "1"], "--warmup 1: not a share"),
        (["--warmup", "nan"], "--warmup nan: not a share"),
        (["--ttl", "0"], "--ttl 0: not a number of seconds above 0"),
        (["--bytes-per-token", "-1"], "--bytes-per-token -1: not a number of bytes above 0"),
        (["--bytes-per-token", "1/0"], "--bytes-per-token 1/0: not a number of bytes above 0"),
        (["--bytes-per-token", "1", "--model", "kimi-k3"], "--bytes-per-token and --model both"),
        (["--block-size", "8"], "block size 8, and the hash ids of t.jsonl stand for 4 tokens each"),
        (["--tokenizer", "deepseek"], "--tokenizer deepseek: t.jsonl has no text to count"),
        (["--plot", "curve.png"], "--plot curve.png: a page is written"),
        (["--plot", "nowhere/curve.html"], "nowhere/curve.html: cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_said(
    small: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(small.parent)
    result = CliRunner().invoke(app, ["curve", small.name, *options])
    assert isinstance(result.exception, KvbenchError)
    assert result.exception.exit_code == (4 if "nowhere" in said else 2)
    assert result.exception.message.startswith(said)
    assert result.stdout == ""


def test_a_trace_in_which_nothing_is_hit_is_drawn_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    result = CliRunner().invoke(app, ["curve", str(path), "--plot", str(tmp_path / "none.html")])
    assert result.exit_code == 0
    assert "ceiling        no block is hit at any capacity" in result.stdout.splitlines()
    assert "hit rate" in (tmp_path / "none.html").read_text()


def test_trees_that_all_start_at_once_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    later = {"session_id": "a", "turn": 1, "delay_s": 9, "keep_blocks": 3, "hash_ids": [], "input_tokens": 12}
    rows = [ROWS[0], ROWS[1], later, {**ROWS[2], "start_s": 0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = json.loads(CliRunner().invoke(app, ["curve", str(path), "--json"]).stdout)["notes"]
    assert note.startswith("all 2 session trees start at the same time")
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows[:3], ROWS[2])))
    assert json.loads(CliRunner().invoke(app, ["curve", str(path), "--json"]).stdout)["notes"] == []
