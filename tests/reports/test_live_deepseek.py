"""The live check, run without a key on an API of its dialect: what it finds, and that its cap holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deepseek_api import KEY, DeepSeekApi, deepseek_api

SCRIPT = Path(__file__).parents[2] / "reports" / "live-deepseek" / "live.py"

Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def api() -> Iterator[DeepSeekApi]:
    with deepseek_api() as api:
        api.keep_alives = 0
        yield api


@pytest.fixture
def check(api: DeepSeekApi, tmp_path: Path) -> Check:
    profile = tmp_path / "api.toml"
    profile.write_text(
        f'url = "{api.url}"\ndialect = "deepseek"\nmodel = "deepseek-flash"\nkey_env = "DEEPSEEK_API_KEY"\n'
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SCRIPT, "--endpoint", profile, "--pause-scale", "0", "--out", tmp_path / "out"]
        return subprocess.run(
            [*map(str, command), *arguments],
            env={k: v for k, v in os.environ.items() if not k.startswith("KVBENCH_")} | {"DEEPSEEK_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def written(tmp_path: Path) -> tuple[dict[str, Any], str]:
    (as_json,) = (tmp_path / "out").glob("*.json")
    result: dict[str, Any] = json.loads(as_json.read_text())
    return result, as_json.with_suffix(".md").read_text()


@pytest.mark.parametrize(("granularity", "on_last_content"), [(64, True), (128, False)])
def test_it_finds_what_the_api_does(
    api: DeepSeekApi, check: Check, tmp_path: Path, granularity: int, on_last_content: bool
) -> None:
    api.granularity = granularity
    api.template = 9
    api.usage_on_last_content = on_last_content
    done = check()
    assert done.returncode == 0, done.stderr
    result, report = written(tmp_path)
    found = result["findings"]
    place = "the last content chunk" if on_last_content else "a chunk with empty choices"
    assert found["usage_shape"]["thinking"]["usage_on"].startswith(place)
    assert "completion_tokens_details.reasoning_tokens" in found["usage_shape"]["thinking"]["usage_fields"]
    overheads = {name: (one["slope"], one["overhead_tokens"]) for name, one in found["template_overhead"].items()}
    assert overheads == {"user": (1.0, 9.0), "system, user": (1.0, 18.0), "user, assistant, user": (1.0, 27.0)}
    assert found["granularity"]["common_divisor_of_hits"] == granularity
    assert found["granularity"]["shortest_prompt_with_a_hit"] == granularity
    assert [row["prompt"] for row in found["granularity"]["rows"]] == [
        r["aimed_at"] for r in found["granularity"]["rows"]
    ]
    # 700 shared words and 9 tokens of template, in whole units
    assert found["common_prefix"]["hits"] == {"A+B": 0, "A+C": 0, "A+D": 709 // granularity * granularity}
    assert {row["hit"] for row in found["lifetime"]["rows"]} == {609 // granularity * granularity}
    assert result["requests"] == len(api.bodies)
    assert f"| A+D | {709 // granularity * granularity} |" in report
    for text in (done.stdout, done.stderr, report, json.dumps(result)):
        assert KEY not in text


def test_an_api_that_bills_a_lot_makes_it_stop(api: DeepSeekApi, check: Check, tmp_path: Path) -> None:
    """100,000 tokens at 0.44 USD a million are 0.044 USD: after five requests the cap of 0.20 is used up."""
    api.billed_tokens = 100_000
    done = check()
    assert done.returncode == 3, done.stderr
    assert len(api.bodies) == 5
    result, report = written(tmp_path)
    assert result["complete"] is False
    assert result["ended"].startswith("stopped early: 5 requests cost up to 0.22")
    assert "granularity" not in result["findings"]
    assert "Not asked." in report


def test_a_request_that_does_not_fit_is_not_sent(api: DeepSeekApi, check: Check, tmp_path: Path) -> None:
    done = check("--cap-usd", "0.0000001")
    assert done.returncode == 3, done.stderr
    assert api.bodies == []
    assert written(tmp_path)[0]["requests"] == 0


@pytest.mark.parametrize("cap", ["0.21", "0", "-1", "much"])
def test_the_cap_cannot_be_raised(check: Check, api: DeepSeekApi, cap: str) -> None:
    done = check(f"--cap-usd={cap}")
    assert done.returncode == 2
    assert "at most 0.20 USD" in done.stderr
    assert api.paths == []


@pytest.mark.parametrize("status", [402, 503])
def test_an_api_that_refuses_ends_it(api: DeepSeekApi, check: Check, tmp_path: Path, status: int) -> None:
    api.fail = (status, "no")
    done = check()
    assert done.returncode == 3
    assert len(api.bodies) == 1
    assert f"HTTP {status}" in written(tmp_path)[1]


def test_no_request_leaves_without_room_for_its_worst_case(api: DeepSeekApi, check: Check, tmp_path: Path) -> None:
    """Worst case, worked out again from what reached the server: every byte of text a token, at the dearest price."""
    done = check("--cap-usd", "0.01")
    assert done.returncode == 3
    spent_usd = 0.0
    for body in api.bodies:
        text_bytes = sum(len(message["content"].encode()) for message in body["messages"])
        assert spent_usd + (text_bytes * 0.44 + body["max_tokens"] * 1.32) / 1e6 <= 0.01
        spent_usd += (len(api.tokens(body)) * 0.44 + min(body["max_tokens"], 8) * 1.32) / 1e6
    assert len(api.bodies) > 10
    assert 0.004 < spent_usd <= 0.01
    assert float(written(tmp_path)[0]["used_usd"]) == pytest.approx(spent_usd, abs=1e-4)
