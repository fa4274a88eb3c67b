"""`kvbench run` and `price` through a gateway whose model caches at explicit cache_control marks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.books import book
from tests.cache_gateway import Gateway, cache_gateway
from tests.cli.conftest import Kvbench

EPHEMERAL = {"type": "ephemeral"}
BOOK = book("claude-opus-4-8", "1000", "10_000", "100_000", write="write_5m = 12_500\nwrite_1h = 12_500")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with cache_gateway() as gateway:
        yield gateway


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(count))


def agent_trace(path: Path, *, marked: bool = True) -> Path:
    """Three sessions under one marked system prompt, one after the other; turns of one user text and one answer."""
    rng = random.Random(1)
    rules = {"type": "text", "text": words(rng, 900), **({"cache_control": EPHEMERAL} if marked else {})}
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "marked"}]
    for session in range(3):
        for turn in range(5):
            append: list[dict[str, Any]] = [{"role": "system", "content": [rules]}] if turn == 0 else []
            if turn:
                append.append({"role": "assistant", "content": words(rng, 40)})
            append.append({"role": "user", "content": words(rng, 150)})
            lines.append({"session_id": f"s{session}", "turn": turn, "append": append, "output_tokens": 1})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(kvbench: Kvbench, gateway: Gateway, tmp_path: Path, *, automatic: bool = True, marked: bool = True) -> Path:
    agent_trace(tmp_path / "t.jsonl", marked=marked)
    extra = 'extra_body = { cache_control = { type = "ephemeral" } }\n' if automatic else ""
    head = f'url = "{gateway.url}"\nstream = false\nmodel = "claude-opus-4-8"\n{extra}'
    (tmp_path / "e.toml").write_text(f'{head}[expected_hits]\nrule = "breakpoints"\n')
    done = kvbench("run", "t.jsonl", "--endpoint", "e.toml", "--time-scale", "0", "--sessions", "1", "--json")
    assert done.returncode in (0, 3), done.stderr
    return tmp_path / str(json.loads(done.stdout)["run"])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_hits_are_expected_to_the_token_and_reads_and_writes_have_their_prices(
    kvbench: Kvbench, gateway: Gateway, tmp_path: Path
) -> None:
    found = run(kvbench, gateway, tmp_path)
    reported = {row["request_id"]: row["usage"] for row in rows(found / "records.jsonl")}
    expected = {row["request_id"]: row["expectation"] for row in rows(found / "expectations.jsonl")}
    assert len(expected) == 15
    for name, each in expected.items():
        assert each["rule"] == "breakpoints, look-back 20 (lengths by usage)"
        assert each["floor"] <= reported[name]["cached_tokens"] <= each["ceiling"]
    # Of each session the first turn's hit is of a length that nobody reports; of the others all is known.
    assert sum(each["floor"] == each["ceiling"] for each in expected.values()) == 1 + 3 * 4
    assert sum(each["floor"] > 0 for each in expected.values()) == 3 * 4
    (tmp_path / "own.toml").write_text(BOOK)
    done = kvbench("price", found, "--prices", "own.toml", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by_hand = Decimal(0)
    for usage in gateway.usages:
        details = usage["prompt_tokens_details"]
        hit, written = details["cached_tokens"], details["cache_write_tokens"]
        rest = usage["prompt_tokens"] - hit - written
        by_hand += (hit * 1_000 + written * 12_500 + rest * 10_000 + 100_000) / Decimal(1_000_000)
    assert Decimal(report["total"]["amount"]) == by_hand
    assert (report["residuals"]["requests"], report["residuals"]["inside"]) == (15, 15)
    assert report["granularity"]["claude-opus-4-8"]["granule_tokens"] == 1


def test_hits_that_are_withheld_are_below(kvbench: Kvbench, gateway: Gateway, tmp_path: Path) -> None:
    gateway.withhold = 10
    found = run(kvbench, gateway, tmp_path)
    (tmp_path / "own.toml").write_text(BOOK)
    report = json.loads(kvbench("price", found, "--prices", "own.toml", "--json").stdout)
    # The first turn of all read nothing, so its length is right. Later ones say 10 tokens too few of their own length
    # too, which is all that the turns after them can be held to.
    assert (report["residuals"]["below"], report["residuals"]["above"]) == (1, 0)
    assert report["residuals"]["below_tokens"] == 10


def test_without_marks_nothing_is_expected_and_the_run_says_so(
    kvbench: Kvbench, gateway: Gateway, tmp_path: Path
) -> None:
    found = run(kvbench, gateway, tmp_path, automatic=False, marked=False)
    info = json.loads((found / "run.json").read_text())
    assert "no_marks" in {warning["code"] for warning in info["warnings"]}
    assert {row["expectation"]["ceiling"] for row in rows(found / "expectations.jsonl")} == {0}
