"""`kvbench gate` as a script sees it: exit codes, and the JSON it relies on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Kvbench
from tests.made_runs import BOOK, make_abba, make_run

from kvbench.model import RulesCheck

TTFT = ("--fail-if", "ttft.geomean>+3%")
NAMES = {"expr", "verdict", "base", "new", "ratio", "low", "high", "p", "n_base", "n_new", "runs_needed"}


@pytest.mark.parametrize(("ttft", "verdict", "code"), [(1.0, "pass", 0), (1.2, "fail", 1)])
def test_a_verdict_and_its_exit_code(kvbench: Kvbench, tmp_path: Path, ttft: float, verdict: str, code: int) -> None:
    make_abba(tmp_path / "runs", 6, ttft=ttft)
    done = kvbench("gate", "new-*", "--baseline", "base-*", *TTFT, "--fail-if", "errors>5%", "--json")
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["reasons"]) == (verdict, [])
    assert found["gates"][0].keys() >= NAMES
    assert found["gates"][0]["ratio"] == pytest.approx(ttft, rel=0.02)
    shown = kvbench("gate", "new-*", "--baseline", "base-*", *TTFT)
    assert shown.returncode == code
    assert shown.stdout.splitlines()[-1] == f"verdict: {verdict.upper()}"


def test_too_few_is_inconclusive(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 2)
    done = kvbench("gate", "new-*", "--baseline", "base-*", *TTFT, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "inconclusive"


def test_a_declared_treatment_is_what_may_differ(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 5, server={"server": "vLLM 0.33.0", "model": "tiny"})
    words = ("gate", "new-*", "--baseline", "base-*", *TTFT, "--json")
    done = kvbench(*words)
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["verdict"], found["gates"][0]["verdict"]) == ("refused", "refused")
    assert found["reasons"] == [
        "server.server differs: base vLLM 0.32.0, new vLLM 0.33.0; --treatment server.server if that is what is tested"
    ]
    assert json.loads(kvbench(*words, "--treatment", "server.server=vLLM 0.33.0").stdout)["verdict"] == "pass"


def test_what_runs_cost_is_gated_by_prices_of_ones_own(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 5, hits=0.9)
    (tmp_path / "book.toml").write_text(BOOK)
    words = (
        "gate",
        "new-*",
        "--baseline",
        "base-*",
        "--fail-if",
        "cost>+3%",
        "--fail-if",
        "cost_per_job>+25%",
        "--json",
    )
    done = kvbench(*words, "--prices", "book.toml")
    assert done.returncode == 1, done.stderr
    run, job = json.loads(done.stdout)["gates"]
    # 600 of a tree's 6,000 hits are misses: 600 times 0.90 a million more.
    more = 0.000540
    assert (run["base"], run["new"]) == (pytest.approx(12 * 0.004648), pytest.approx(12 * (0.004648 + more)))
    assert (run["verdict"], run["unit"], job["verdict"]) == ("fail", "USD", "pass")
    assert job["ratio"] == pytest.approx((0.004648 + more) / 0.004648)
    refused = kvbench(*words)
    assert refused.returncode == 3
    found = json.loads(refused.stdout)
    assert [gate["verdict"] for gate in found["gates"]] == ["refused", "refused"]
    assert "no price for the model tiny" in found["gates"][0]["reason"]


def test_goodput_counts_what_meets_the_slos(kvbench: Kvbench, tmp_path: Path) -> None:
    make_abba(tmp_path / "runs", 5, ttft=2.5)
    words = ("--slo", "ttft<300ms", "--fail-if", "good_fraction<-0.05", "--slo", "ttft.p50<1s")
    done = kvbench("gate", "new-*", "--baseline", "base-*", *words, "--json")
    assert done.returncode == 1, done.stderr
    good, absolute = json.loads(done.stdout)["gates"]
    # 250 ms, and 500 ms on the first of four turns
    assert (good["base"], good["new"], good["change"]) == (pytest.approx(1), pytest.approx(0.75), pytest.approx(-0.25))
    assert absolute["verdict"] == "pass"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new-0", *TTFT), "needs a baseline"),
        (("new-0", "--baseline", "nights-*", *TTFT), "matches no run"),
        (("new-0", "--baseline", "base-0", "--fail-if", "speed>+3%"), "ttft, ttft_scheduled"),
        (("new-0", "--baseline", "base-0", *TTFT, "--treatment", "engine"), "no such field"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    kvbench: Kvbench, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    make_abba(tmp_path / "runs", 1)
    done = kvbench("gate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


AGENTX = {"rules": "agentx", "time_scale": 1.0, "salt": "tree", "duration_s": 900.0}


def test_a_run_that_is_not_valid_by_its_rules_is_refused(kvbench: Kvbench, tmp_path: Path) -> None:
    kept, broken = RulesCheck(name="agentx", valid=True), RulesCheck(name="agentx", valid=False, reasons=("too short",))
    for pair in range(5):
        for place, side in enumerate(("base", "new") if pair % 2 == 0 else ("new", "base")):
            rules = broken if (side, pair) == ("new", 3) else kept
            make_run(tmp_path / "runs", f"{side}-{pair}", 2 * pair + place, settings=AGENTX, rules=rules)
    done = kvbench("gate", "new-*", "--baseline", "base-*", *TTFT, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["reasons"] == ["new-3 is not valid by the agentx rules: too short"]
    done = kvbench("compare", "base-*", "new-3")
    assert (done.returncode, done.stdout) == (3, "")
    assert "new-3 is not valid by the agentx rules: too short" in done.stderr
    assert kvbench("compare", "base-*", "new-1").returncode == 0
    make_run(tmp_path / "runs", "plain", 20)
    done = kvbench("compare", "base-*", "plain")
    assert done.returncode == 3
    assert "some runs were made by the agentx rules and others were not" in done.stderr
