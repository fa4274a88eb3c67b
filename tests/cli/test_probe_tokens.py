"""`kvbench probe tokens` over HTTP: honest endpoints are confirmed, and each way to misreport is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.cli.conftest import Kvbench

from kvbench.sim.process import SimProcess

QUICK = {
    "frontend_s": 0,
    "prefill_base_s": 0,
    "prefill_s_per_token": 0,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.0002,
    "decode_s_per_request": 0,
    "send_s_per_chunk": 0,
}
SHORT = ("--sizes", "5", "--max-input-tokens", "1024", "--max-output-tokens", "200", "--yes", "--json")


def sim(preset: str, **settings: Any) -> str:
    return f"sim:{preset}?" + "&".join(f"{name}={value}" for name, value in (QUICK | settings).items())


def audit(kvbench: Kvbench, endpoint: object, *more: object) -> dict[str, Any]:
    done = kvbench("probe", "tokens", "--endpoint", endpoint, *SHORT, *more)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == {"confirmed": 0, "disputed": 1, "cannot tell": 3}[report["verdict"]]
    return report | {c["name"]: c for c in report["checks"]} | {e["name"]: e for e in report["estimates"]}


def disputed(report: dict[str, Any]) -> set[str]:
    return {c["name"] for c in report["checks"] if c["verdict"] == "disputed"}


@pytest.mark.parametrize("template", [0, 200])
def test_an_honest_endpoint_is_confirmed_whatever_its_template(kvbench: Kvbench, tmp_path: Path, template: int) -> None:
    """The simulated template has 7 marks of its own."""
    report = audit(kvbench, sim("vllm-small", template_tokens=template, seed=template))
    assert (report["verdict"], disputed(report)) == ("confirmed", set())
    assert report["input_tokens_per_token"]["value"] == report["output_tokens_per_token"]["value"] == 1.0
    assert report["input_tokens_added"]["value"] == 7 + template
    assert report["input"]["detectable"] < 0.004
    if template:
        return
    (run,) = (tmp_path / "runs").iterdir()
    again = kvbench("fit", run, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["checks"] == report["checks"]
    shown = kvbench("fit", run).stdout
    assert "verdict                     CONFIRMED" in shown
    assert "input                       confirmed: 1.0000 reported for each exact token" in shown


@pytest.mark.parametrize(
    ("preset", "settings", "name", "excess"),
    [
        ("vllm-small", {"fault_input_overcount": 1, "overcount_share": 0.01}, {"input"}, 0.01),
        ("deepseek-api", {"fault_input_overcount": 1, "overcount_share": 0.05}, {"input"}, 0.05),
        ("vllm-small", {"fault_output_overcount": 1, "overcount_share": 0.03}, {"output", "cap"}, 0.03),
        ("deepseek-api", {"fault_output_overcount": 1, "overcount_share": 0.3}, {"output", "cap"}, 0.3),
        ("vllm-small", {"usage_granularity_tokens": 64}, {"input_grain"}, 31.5),
        ("vllm-small", {"fault_stream_overcount": 1, "overcount_share": 0.02}, {"stream", "input"}, 0.02),
        ("vllm-small", {"fault_overrun": 1, "overcount_share": 0.2}, {"cap"}, None),
    ],
)  # fmt: skip
def test_each_fault_is_named(
    kvbench: Kvbench, preset: str, settings: dict[str, Any], name: set[str], excess: float | None
) -> None:
    report = audit(kvbench, sim(preset, **settings))
    assert disputed(report) == name
    found = report[next(iter(sorted(name, reverse=True)))]["excess"]
    assert excess is None or found == pytest.approx(excess, abs=0.012 if excess < 1 else 0)
    if preset == "deepseek-api" and "input" in name:
        # 5% of a million tokens at USD 0.15 a million
        assert float(report["input"]["money"]["amount"]) == pytest.approx(0.0075, rel=0.03)
        assert any("127.0.0.1 is no endpoint of that list" in note for note in report["notes"])


def test_hidden_reasoning_is_not_verifiable_and_shown_is_counted(kvbench: Kvbench) -> None:
    shown = audit(kvbench, sim("deepseek-api"))
    assert (shown["verdict"], shown["reasoning"]["verdict"]) == ("confirmed", "confirmed")
    hidden = audit(kvbench, sim("deepseek-api", hide_reasoning="true"))
    assert (hidden["verdict"], hidden["reasoning"]["verdict"]) == ("cannot tell", "not verifiable")
    assert hidden["output"]["verdict"] == "confirmed"


def test_absent_usage_is_not_reported(kvbench: Kvbench) -> None:
    report = audit(kvbench, sim("vllm-small", report_usage="false"))
    verdicts = {report[name]["verdict"] for name in ("usage", "input", "output", "stream", "cap", "total", "cached")}
    assert (report["verdict"], verdicts) == ("cannot tell", {"not reported"})


def four_bytes(path: Path) -> Path:
    """The simulated endpoint's tokenizer as a tokenizer.json: each four bytes are a token."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]{1,4}"), "isolated"),
        ]
    )
    made.save(str(path))
    return path


def test_an_endpoint_that_tells_no_ids_is_counted_by_the_profile_s_tokenizer_or_not_at_all(
    kvbench: Kvbench, tmp_path: Path
) -> None:
    four_bytes(tmp_path / "four.json")
    faults = {"fault_input_overcount": 1, "overcount_share": 0.03, "repeats": True}
    with SimProcess.start("vllm-small", settings=QUICK | faults) as process:
        toml = tmp_path / "endpoint.toml"
        toml.write_text(f'url = "{process.url}"\ndialect = "openai"\ntokenizer = "four.json"\n')
        counted = audit(kvbench, toml)
        assert disputed(counted) == {"input"}
        assert counted["input"]["excess"] == pytest.approx(0.03, abs=0.002)
        assert (counted["output"]["verdict"], counted["output_tokens_added"]["value"]) == ("confirmed", 1)  # end mark
        # a stand-in for the wrong tokenizer: words alone are counted alike
        toml.write_text(f'url = "{process.url}"\ndialect = "openai"\ntokenizer = "deepseek"\n')
        wrong = audit(kvbench, toml)
        assert (disputed(wrong), wrong["input"]["verdict"]) == (set(), "cannot tell")
        toml.write_text(f'url = "{process.url}"\ntokenizer = "four.json"\n')
        assert audit(kvbench, toml)["tokenizer"]["verdict"] == "confirmed"
        toml.write_text(f'url = "{process.url}"\ndialect = "openai"\n')
        blind = audit(kvbench, toml)
    assert (blind["input"]["verdict"], blind["output"]["verdict"]) == ("not verifiable", "not verifiable")
    assert (blind["repeated"]["verdict"], blind["cap"]["verdict"]) == ("confirmed", "confirmed")


def test_it_says_what_it_takes_and_keeps_to_its_budget(kvbench: Kvbench, tmp_path: Path) -> None:
    assert kvbench("probe", "tokens", "--endpoint", "sim:tiny").returncode == 2
    assert kvbench("probe", "tokens", "--endpoint", "sim:tiny", "--sizes", "4", "--yes").returncode == 2
    done = kvbench("probe", "tokens", "--endpoint", sim("vllm-small"), *SHORT, "--max-requests", 30)
    assert done.returncode == 3
    assert "at most 30 requests" in done.stderr
    assert "texts are counted by the server's /tokenize" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert len((run / "records.jsonl").read_text().splitlines()) == 30
    report = json.loads(done.stdout)
    assert any("budget of 30 requests" in note for note in report["notes"])
    assert report["verdict"] == "cannot tell"
