"""`kvbench trace convert` as a user runs it: files, standard output, what it says, and that the result runs."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Kvbench

from kvbench.cli.main import main

TEXTS = [
    {"kvbench_trace": 1, "name": "texts"},
    {"prefix": "agent", "messages": [{"role": "system", "content": "You are careful. " * 40}]},
    *(
        {
            "session_id": name, "turn": turn, "output_tokens": 8,
            "append": [{"role": "user", "content": f"{name} asks {turn}: " + "why? " * 30}],
        }
        | ({"prefix": "agent"} if turn == 0 else {"delay_s": 1.0})
        for name in ("ada", "bob") for turn in (0, 1)
    ),
]  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TEXTS))
    return path


def test_an_anonymised_trace_runs_with_its_lengths(kvbench: Kvbench, tmp_path: Path, texts: Path) -> None:
    done = kvbench("trace", "convert", texts, "anonymous.jsonl.gz", "--anonymise", "--block-size", 32, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["trace"], report["out"], report["import"]) == (str(texts), "anonymous.jsonl.gz", None)
    export = report["export"]
    assert (export["sessions"], export["turns"], export["lost"]) == (2, 4, {"texts": 4})
    text = gzip.decompress((tmp_path / "anonymous.jsonl.gz").read_bytes()).decode()
    assert "ada" not in text
    assert "careful" not in text
    ran = kvbench("run", "anonymous.jsonl.gz", "--endpoint", "sim", "--time-scale", 0, "--sessions", 1, "--json")
    assert ran.returncode in (0, 3), ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["requests"]["ok"] == 4
    lengths = summary["prompt_lengths"]
    # 680 characters of the shared prompt and 162 of each question: 842 and 1,004 of them.
    assert (lengths["wanted"], lengths["got"], lengths["exact_turns"]) == (2 * (211 + 251), 2 * (211 + 251), 4)
    # Shared: 5 blocks of 32 for the second session's first turn; each second turn has the 6 blocks of its first.
    assert summary["cached_tokens"] == (5 + 6 + 6) * 32


def test_a_trace_on_standard_output_has_its_report_beside_it(kvbench: Kvbench, texts: Path) -> None:
    done = kvbench("trace", "convert", texts, "-", "--to", "mooncake", "--block-size", 64)
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["session_id"] for row in rows] == ["ada", "bob", "ada", "bob"]
    assert done.stderr.splitlines()[0] == "written    mooncake: 4 rows, 2 sessions, 4 turns"
    assert "left out, turns with text: 4 (" in done.stderr


def test_what_was_read_and_what_was_written_are_both_told(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"timestamp": 5, "input_length": 600, "output_length": 0, "hash_ids": [4, 9]}\n'
    )
    done = kvbench("trace", "convert", "rows.jsonl", "native.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "import     mooncake: 1 row; 1 session, 1 turn",
        "import     block size 512 (Mooncake's, not said in the file)",
        "import     requests without output tokens: 1 (each asks for 1, the least an endpoint can give)",
        "written    native: 2 lines, 1 session, 1 turn",
    ]
    assert kvbench("trace", "validate", "native.jsonl").stdout == "native.jsonl: valid, 1 session, 1 turn\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("texts.jsonl", "texts.jsonl"), "texts.jsonl is there already, and is not overwritten"),
        (("texts.jsonl", "-", "--json"), "--json goes to stdout, and so does the trace"),
        (("texts.jsonl", "new", "--key-file", "key"), "--key-file: only --anonymise hashes with a key"),
        (("texts.jsonl", "new", "--anonymise", "--key-file", "short"), "short: a key of 3 bytes could be guessed"),
        (("texts.jsonl", "new", "--anonymise", "--to", "weka", "--key-file", "key"), "ids in a Weka trace are local"),
        (("texts.jsonl", "new", "--block-size", "8"), "--block-size: a native trace keeps its texts"),
        (("texts.jsonl", "new", "--tokenizer", "deepseek"), "--tokenizer: a native trace keeps its texts"),
        (("rows.jsonl", "new", "--to", "weka", "--tokenizer", "deepseek"), "no turn of the trace has text"),
        (("rows.jsonl", "new", "--to", "weka", "--block-size", "8"), "stand for 512 tokens each"),
        (("rows.jsonl", "new", "--to", "weka"), "rows.jsonl:1: output_tokens: turn 0 of session"),
        (("none.jsonl", "new"), "none.jsonl: no such file"),
    ],
)
def test_what_goes_against_the_trace_is_refused_and_leaves_no_file(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "rows.jsonl").write_text('{"timestamp": 0, "input_length": 5, "hash_ids": [1]}\n')
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kvbench", "trace", "convert", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert (left.value.code, shown.out) == (2, "")
    assert said in shown.err
    assert "  next: " in shown.err
    assert {path.name for path in tmp_path.iterdir()} == before
