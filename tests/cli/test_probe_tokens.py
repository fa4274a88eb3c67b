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


def bytes_a_token(path: Path, count: int) -> Path:
    """A tokenizer.json in which so many bytes are a token; with four it is the simulated endpoint's."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(rf"[\s\S]{{1,{count}}}"), "isolated"),
        ]
    )
    made.save(str(path))
    return path


def test_an_endpoint_that_tells_no_ids_is_counted_by_the_profile_s_tokenizer_or_not_at_all(
    kvbench: Kvbench, tmp_path: Path
) -> None:
    bytes_a_token(tmp_path / "four.json", 4)
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


def test_a_server_that_inflates_both_its_counts_is_disputed_by_the_profile_s_tokenizer(
    kvbench: Kvbench, tmp_path: Path
) -> None:
    """Usage and /tokenize agree at four bytes a token, where five are the model's: five tokens for four."""
    bytes_a_token(tmp_path / "five.json", 5)
    with SimProcess.start("vllm-small", settings=QUICK) as process:
        toml = tmp_path / "endpoint.toml"
        toml.write_text(f'url = "{process.url}"\ntokenizer = "five.json"\n')
        report = audit(kvbench, toml)
    assert (report["input"]["verdict"], disputed(report)) == ("confirmed", {"tokenizer"})
    assert report["tokenizer"]["excess"] == pytest.approx(0.25, abs=0.003)


def test_money_is_by_the_book_that_is_named(kvbench: Kvbench, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'kvbench_prices = 1\nname = "own"\nprovider = "P"\ncurrency = "EUR"\nchecked = 2026-11-30\n'
        '[[model]]\nid = "sim-small"\n[[row]]\nmodel = "sim-small"\ncurrency = "EUR"\nfrom = 2020-01-01T00:00:00Z\n'
        'miss = 40\noutput = 100\nstatus = "official"\nsource = "made up"\n'
    )
    endpoint = sim("vllm-small", fault_input_overcount=1, overcount_share=0.05)
    report = audit(kvbench, endpoint, "--prices", "own.toml")
    money = report["input"]["money"]
    # 5% of a million tokens at EUR 40 a million
    assert (money["currency"], money["book"]) == ("EUR", "own")
    assert float(money["amount"]) == pytest.approx(2.0, rel=0.03)
    (run,) = (tmp_path / "runs").iterdir()
    again = json.loads(kvbench("fit", run, "--prices", "own.toml", "--json").stdout)
    assert again["checks"] == report["checks"]
    bundled = json.loads(kvbench("fit", run, "--json").stdout)
    assert any("no price for the model sim-small" in note for note in bundled["notes"])


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
