"""`kvbench run` on two stand-ins for the DeepSeek API: expected hits under prefix units.

The simulated endpoint tells a prompt's token ids; the other is as the API is, and a local tokenizer has to make them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.cli.conftest import Kvbench
from tests.deepseek_api import KEY, DeepSeekApi, deepseek_api

from kvbench.sim.process import SimProcess


@pytest.fixture(scope="module")
def deepseek() -> Iterator[SimProcess]:
    with SimProcess.start("deepseek-api", settings={"unit_build_s": 0}) as process:
        yield process


@pytest.fixture
def api() -> Iterator[DeepSeekApi]:
    with deepseek_api() as api:
        yield api


ENV = {"DEEPSEEK_API_KEY": KEY}
WORDS = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]


def text(seed: int, words: int) -> str:
    """Words of three letters: with the blank before it each is a token, here and at the simulated endpoint."""
    chosen = random.Random(seed)
    return "".join(f" {chosen.choice(WORDS)}" for _ in range(words))


def write_profile(path: Path, url: str, extra: str = "") -> Path:
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(["?", *WORDS])}, unk_token="?")
    words = tokenizers.Tokenizer(model)
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path.with_name("words.json")))
    head = f'url = "{url}"\ndialect = "deepseek"\nmodel = "deepseek-flash"\nkey_env = "DEEPSEEK_API_KEY"\n'
    path.write_text(f'{head}{extra}\n[expected_hits]\nrule = "units"\nbuild_s = 0.0\n')
    return path


def write_trace(path: Path, prompts: list[str]) -> Path:
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "units"}]
    for i, prompt in enumerate(prompts):
        message = {"role": "user", "content": prompt}
        lines.append({"session_id": str(i), "turn": 0, "append": [message], "output_tokens": 2})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(kvbench: Kvbench, trace: Path, profile: Path, cwd: Path) -> tuple[dict[str, Any], list[int], list[Any]]:
    """The summary; what each turn hit; what it had to: (floor, ceiling, rule)."""
    done = kvbench("run", trace, "--endpoint", profile, "--time-scale", "0", "--sessions", "1", "--json", env=ENV)
    assert done.returncode in (0, 3), done.stderr
    got: dict[str, Any] = json.loads(done.stdout)

    def lines(name: str) -> list[Any]:
        return [json.loads(line) for line in (cwd / got["run"] / name).read_text().splitlines()]

    records = sorted(lines("records.jsonl"), key=lambda row: row["session_id"])
    expected = (
        {row["request_id"]: row["expectation"] for row in lines("expectations.jsonl")}
        if (cwd / got["run"] / "expectations.jsonl").exists()
        else {}
    )
    hits = [row["usage"]["cached_tokens"] for row in records]
    found = [expected[row["request_id"]] for row in records if row["request_id"] in expected]
    return got, hits, [(e.get("floor"), e.get("ceiling"), e["rule"]) for e in found]


A = text(0, 1200)


def test_a_common_prefix_is_hit_by_the_third_request_as_the_simulated_api_says(
    kvbench: Kvbench, deepseek: SimProcess, tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "abc.jsonl", [A + text(1, 600), A + text(2, 600), A + text(3, 600)])
    got, hits, expected = run(kvbench, trace, write_profile(tmp_path / "units.toml", deepseek.url), tmp_path)
    # 1,200 words and a few marks are 9 whole granules of 128 and 18 of 64
    assert hits == [0, 0, 1152]
    rule = "units 64..128, built in 0 s, kept 300 s"
    assert expected == [(0, 0, rule), (0, 0, rule), (1152, 1152, rule)]
    assert got["rule"] == rule
    assert (got["expected_hit_rate"]["exact"], got["expected_hit_rate"]["below"]) == (3, 0)


def test_where_no_ids_are_told_the_profiles_tokenizer_makes_them(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "abc.jsonl", [A + text(1, 600), A + text(2, 600), A + text(3, 600)])
    profile = write_profile(tmp_path / "units.toml", api.url, 'tokenizer = "words.json"')
    got, hits, expected = run(kvbench, trace, profile, tmp_path)
    assert hits == [0, 0, 1152]
    rule = "units 64..128, built in 0 s, kept 300 s (ids by tokenizer words)"
    assert expected == [(0, 0, rule), (0, 0, rule), (1152, 1152, rule)]
    assert got["rule"] == rule


def test_without_a_tokenizer_there_is_no_expectation_and_the_run_says_why(
    kvbench: Kvbench, api: DeepSeekApi, tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "one.jsonl", [A])
    got, _, expected = run(kvbench, trace, write_profile(tmp_path / "plain.toml", api.url), tmp_path)
    assert expected == []
    (why,) = [w["message"] for w in got["warnings"] if w["code"] == "no_expectation"]
    assert "tells no token ids, and its profile names no tokenizer" in why


def test_thinking_tools_and_reasoning_are_in_the_ids(kvbench: Kvbench, deepseek: SimProcess, tmp_path: Path) -> None:
    """With tools the API keeps earlier reasoning in the prompt, without it drops it: lengths agree with the usage, and
    nothing is outside what is expected."""
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "thinks"}]
    for name, tools in (("with", [tool]), ("without", [])):
        answer = {"role": "assistant", "content": text(5, 200), "reasoning_content": text(6, 300)}
        first = {
            "session_id": name,
            "turn": 0,
            "append": [{"role": "user", "content": text(4, 400)}],
            "output_tokens": 2,
        }
        second = {
            "session_id": name,
            "turn": 1,
            "append": [answer, {"role": "user", "content": "go"}],
            "output_tokens": 2,
        }
        lines += [first | ({"tools": tools} if tools else {}), second]
    trace = tmp_path / "thinks.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    got, _, expected = run(kvbench, trace, write_profile(tmp_path / "units.toml", deepseek.url), tmp_path)
    assert len(expected) == 4
    assert not [w for w in got["warnings"] if w["code"] in ("lengths_differ", "expectation_incomplete")]
    assert (got["expected_hit_rate"]["below"], got["expected_hit_rate"]["above"]) == (0, 0)
