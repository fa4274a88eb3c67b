from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from kvbench.cli.claims import claims
from kvbench.errors import InputError, UsageError

app = typer.Typer()
app.command("claims")(claims)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def trace_of(path: Path, input_tokens: int) -> Path:
    """One request without an answer's length worth speaking of."""
    lines = (
        {"kvbench_trace": 1, "name": "one", "block_size": 64},
        {
            "session_id": "a",
            "turn": 0,
            "start_s": 0,
            "input_tokens": input_tokens,
            "output_tokens": 1,
            "hash_ids": list(range(input_tokens // 64)),
        },
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_list_passes_though_claims_need_corrections() -> None:
    result = call()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "DeepSeek-V1: 389,120 B/token: holds"
    assert lines[-1] == "28 claims: holds 13, holds with correction 12, out of scope 2, cannot tell 1"
    at = lines.index("DeepSeek-V4.1-Flash needs 1/4 of V4-Flash's HBM (3.95x): holds with correction")
    assert lines[at + 1] == "      model       3.95x by bytes a token"
    assert lines[at + 2].startswith("      correction  that is m alone; with F it is 2.8x at 4K, 3.5x at 16K")


def test_the_object_that_scripts_read() -> None:
    found = json.loads(call("--json").stdout)
    assert found["trace"] is None
    assert found["failed"] == []
    rows = {row["id"]: row for row in found["claims"]}
    assert rows["v4.1-bytes-per-token"]["figures"] == {"bytes_per_token": 890}
    assert set(rows["k3-price"]) == {
        "id",
        "claim",
        "source",
        "gives",
        "verdict",
        "correction",
        "figures",
        "on_trace",
    }
    assert found["verdicts"]["does not hold"] == 0


def test_on_a_trace_a_claim_can_fail(tmp_path: Path) -> None:
    result = call("--trace", trace_of(tmp_path / "t.jsonl", 4_095), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    # 4,096 tokens: 1/2.8 of the HBM, and 4,095 new ones: 1/5.7 of the SSD; nothing can hit
    assert found["failed"] == ["hbm-quarter", "ssd-eighth", "k3-price"]
    assert found["trace"]["requests"] == 1
    assert found["trace"]["new_tokens"] == 4_095
    here = next(row for row in found["claims"] if row["id"] == "hbm-quarter")["on_trace"]
    assert here["gives"] == "1/2.8, at a mean context of 4,096 tokens"
    assert here["verdict"] == "does not hold"
    text = call("--trace", tmp_path / "t.jsonl").stdout
    assert "DeepSeek-V4.1-Flash needs 1/4 of V4-Flash's HBM (3.95x): holds with correction (hbm-quarter)" in text
    assert "one: 1 request, 4,095 input and 1 output tokens, 4,095 of the input new, by blocks of 64" in text
    assert "      trace       1/2.8, at a mean context of 4,096 tokens: does not hold" in text
    assert text.splitlines()[-1].endswith("; failed on the trace: hbm-quarter, ssd-eighth, k3-price")


def test_a_trace_that_is_not_there_and_options_without_one() -> None:
    missing = call("--trace", "no-such.jsonl")
    assert isinstance(missing.exception, InputError)
    alone = call("--format", "weka")
    assert isinstance(alone.exception, UsageError)
    assert missing.stdout == alone.stdout == ""
