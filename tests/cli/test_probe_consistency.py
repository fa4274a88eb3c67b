"""`kvbench probe consistency` over HTTP, against endpoints whose answers from the cache are off by what is set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import Kvbench
from tests.cli.test_probe_capacity import odd

QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"
PROMPTS, OUTPUT = 4, 12


def consistency(kvbench: Kvbench, settings: str) -> dict[str, Any]:
    more = ("--prompts", PROMPTS, "--output-tokens", OUTPUT)
    done = kvbench("probe", "consistency", "--endpoint", f"sim:tiny?{QUICK}{settings}", "--yes", "--json", *more)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {e["name"]: e for e in report["estimates"]}


def figures(report: dict[str, Any], group: str) -> tuple[float, float, float, int]:
    """Share that differs, then of log probabilities: median and largest difference, and tokens compared."""
    median, largest = report[f"{group}_logprob_off_median"], report[f"{group}_logprob_off_largest"]
    assert median["unit"] == largest["unit"] == "nats"
    return report[f"{group}_answers_differ"]["value"], median["value"], largest["value"], largest["n"]


@pytest.mark.parametrize("api", ["ids", "chat"])
def test_answers_from_a_sound_cache_are_the_same_to_the_last_digit(kvbench: Kvbench, api: str, tmp_path: Any) -> None:
    from kvbench.sim.process import SimProcess

    settings = dict(pair.split("=") for pair in QUICK.split("&"))
    with SimProcess.start("tiny", settings={k: float(v) for k, v in settings.items()}) as sim:
        dialect = 'dialect = "openai"\n' if api == "chat" else ""
        (tmp_path / "e.toml").write_text(f'url = "{sim.url}"\n{dialect}')
        done = kvbench(
            "probe", "consistency", "--endpoint", "e.toml", "--yes", "--json", "--prompts", PROMPTS,
            "--output-tokens", OUTPUT,
        )  # fmt: skip
    report = json.loads(done.stdout)
    report |= {e["name"]: e for e in report["estimates"]}
    assert report["cached_logprob_off_largest"]["value"] == 0
    assert report["cached_logprob_off_largest"]["n"] == PROMPTS * OUTPUT
    assert report["cached_answers_differ"]["value"] == 0
    # OpenAI's shape has no salt: what is asked for a third time is a hit, and no control
    assert ("computed_answers_differ" in report) == (api == "ids")


def test_log_probabilities_that_are_off_from_the_cache_are_seen_by_how_much(kvbench: Kvbench) -> None:
    report = consistency(kvbench, "&fault_cached_logprob=0.25")
    assert figures(report, "cached") == (0, pytest.approx(0.25), pytest.approx(0.25), PROMPTS * OUTPUT)
    assert figures(report, "computed") == (0, 0, 0, PROMPTS * OUTPUT)
    assert "log probabilities differ more from the cache than they do when computed twice" in report["notes"]


def test_only_tokens_before_the_first_other_one_are_compared(kvbench: Kvbench) -> None:
    """Answers from the cache are others from their middle on: 6 of 12 tokens are the same."""
    report = consistency(kvbench, "&fault_cached_text=1")
    differ, median, largest, compared = figures(report, "cached")
    assert (differ, median, largest) == (1, 0, 0)
    assert PROMPTS * OUTPUT // 2 <= compared < PROMPTS * OUTPUT  # another word may begin with the same token
    assert figures(report, "computed") == (0, 0, 0, PROMPTS * OUTPUT)
    assert "answers from the cache differ more often than answers differ by themselves" in report["notes"]


def test_an_endpoint_that_refuses_log_probabilities_is_compared_by_its_texts(kvbench: Kvbench) -> None:
    with odd("no logprobs") as url:
        more = ("--prompts", PROMPTS, "--output-tokens", OUTPUT)
        done = kvbench("probe", "consistency", "--endpoint", url, "--yes", "--json", *more)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(e["name"], e["value"], e["n"]) for e in report["estimates"]] == [("cached_answers_differ", 0, PROMPTS)]
    (refusal,) = report["refusals"]
    assert refusal["name"] == "cached_logprob_off_largest"
    assert refusal["reason"].startswith("not reported")
