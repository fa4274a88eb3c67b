"""`kvbench price` of logs whose prompts carry cache_control marks, and of traces before they are sent."""

from __future__ import annotations

import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.cache_gateway import Gateway
from tests.cli.test_run_breakpoints import BOOK
from typer.testing import CliRunner

from kvbench.cli.main import app

DATA = os.environ.get("KVBENCH_TEST_DATA")
EPHEMERAL = {"type": "ephemeral"}
BEGIN_S = 1_791_979_200.0


def report(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["price", *map(str, words), "--json"])
    assert result.exit_code in (0, 3), (result.output, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def text(rng: random.Random, count: int, *, marked: bool) -> dict[str, Any]:
    words = " ".join(f"w{rng.randrange(1000)}" for _ in range(count))
    return {"type": "text", "text": words, **({"cache_control": EPHEMERAL} if marked else {})}


def litellm_log(
    path: Path, gateway: Gateway, *, marked: bool = True, writes: bool = True, pause_s: float = 20.0
) -> int:
    """Two sessions of six calls, the mark on the last block of each, in LiteLLM's payloads with Anthropic's usage."""
    rng = random.Random(2)
    lines = []
    for session in range(2):
        messages: list[dict[str, Any]] = [{"role": "system", "content": [text(rng, 500, marked=False)]}]
        for turn in range(6):
            messages = [*messages, {"role": "user", "content": [text(rng, 90, marked=False)]}]
            sent = json.loads(json.dumps(messages))
            if marked:
                sent[-1]["content"][-1]["cache_control"] = EPHEMERAL
            usage = gateway.answer({"model": "claude-opus-4-8", "messages": sent})["usage"]
            details = usage["prompt_tokens_details"]
            read, written = details["cached_tokens"], details["cache_write_tokens"]
            told: dict[str, Any] = {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": 1}
            told["prompt_tokens_details"] = {"cached_tokens": read}
            if writes:
                told |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
            begin = BEGIN_S + 10_000 * session + pause_s * turn
            lines.append(
                {
                    "id": f"{session}-{turn}",
                    "trace_id": f"t{session}",
                    "call_type": "acompletion",
                    "status": "success",
                    "startTime": begin,
                    "endTime": begin + 2,
                    "completionStartTime": begin + 1,
                    "model": "claude-opus-4-8",
                    "messages": sent,
                    "prompt_tokens": usage["prompt_tokens"],
                    "completion_tokens": 1,
                    "response": {"choices": [{"message": {"role": "assistant", "content": "ok"}}], "usage": told},
                    "metadata": {"usage_object": told},
                    "model_parameters": {},
                }
            )
            messages.append({"role": "assistant", "content": "ok"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return len(lines)


def test_a_log_with_marks_and_writes_is_predicted_to_the_token(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BOOK)
    calls = litellm_log(tmp_path / "log.jsonl", Gateway())
    got = report("--usage", tmp_path / "log.jsonl", "--prices", tmp_path / "own.toml")
    found = got["residuals"]
    assert (found["requests"], found["inside"], found["median_width"]) == (calls, calls, 0)
    assert found["rules"] == ["breakpoints, look-back 20 (lengths by usage)"]


def test_a_read_that_is_missing_is_below_with_its_money(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BOOK)
    gateway = Gateway()
    litellm_log(tmp_path / "log.jsonl", gateway)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    usage = lines[5]["metadata"]["usage_object"]
    read = usage["cache_read_input_tokens"]
    usage |= {"cache_read_input_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    got = report("--usage", tmp_path / "log.jsonl", "--prices", tmp_path / "own.toml")
    found = got["residuals"]
    assert (found["below"], found["above"], found["below_tokens"]) == (1, 0, read)
    # as misses at 10,000 and not as hits at 1,000 a million
    assert Decimal(found["below_amount"]) == Decimal(read) * 9_000 / 1_000_000


def test_a_pause_beyond_the_lifetime_is_told_as_an_interval(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BOOK)
    calls = litellm_log(tmp_path / "log.jsonl", Gateway(), pause_s=400.0)
    found = report("--usage", tmp_path / "log.jsonl", "--prices", tmp_path / "own.toml")["residuals"]
    assert (found["requests"], found["inside"]) == (calls, calls)
    assert found["median_width"] > 0.5


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"marked": False}, "no prompt of the log has a cache_control mark"),
        ({"writes": False}, "say nothing of what was written"),
    ],
)
def test_where_it_would_not_be_sound_nothing_is_predicted(tmp_path: Path, options: dict[str, bool], why: str) -> None:
    (tmp_path / "own.toml").write_text(BOOK)
    litellm_log(tmp_path / "log.jsonl", Gateway(), **options)
    found = report("--usage", tmp_path / "log.jsonl", "--prices", tmp_path / "own.toml")["residuals"]
    assert found["requests"] == 0
    assert why in found["why"]


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
def test_a_claude_code_log_has_no_marks_and_is_not_predicted() -> None:
    log = Path(DATA or "") / "claude-code" / "viewer" / "1af7fc5e-8455-4414-9ccd-011d40f70b2a.jsonl"
    found = report("--usage", log, "--model", "deepseek-flash", "--date", "2026-11-14")["residuals"]
    assert found["requests"] == 0
    assert "nor all of their text" in found["why"]


@pytest.mark.parametrize("marked", [False, True])
def test_an_estimate_under_breakpoints_has_reads_and_writes_between_their_bounds(tmp_path: Path, marked: bool) -> None:
    (tmp_path / "own.toml").write_text(BOOK.replace('hit_rule = "none"', 'hit_rule = "breakpoints"'))
    rng = random.Random(3)
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t"}]
    for turn in range(2):
        message = {"role": "user", "content": [text(rng, 600, marked=marked)]}
        lines.append({"session_id": "s", "turn": turn, "append": [message], "output_tokens": 1})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    got = report("--estimate", tmp_path / "t.jsonl", "--model", "claude-opus-4-8", "--prices", tmp_path / "own.toml")
    least, most = Decimal(got["total"]["at_least"]), Decimal(got["total"]["at_most"])
    tokens = got["input_tokens"]
    output = Decimal(2 * 100_000) / 1_000_000
    if not marked:
        assert least == most == Decimal(tokens * 10_000) / 1_000_000 + output
        assert any("no prompt has a cache_control mark" in note for note in got["notes"])
        return
    # at most all of it is written, at 12,500; at least the second prompt reads what of the first it repeats
    assert most == Decimal(tokens * 12_500) / 1_000_000 + output
    assert least < Decimal(tokens * 10_000) / 1_000_000
    assert any("have cache_control marks" in note for note in got["notes"])
