"""A nightly job's TOML, checked before hours of runs depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.made_runs import BOOK

from kvbench.analysis.nights.spec import load_spec
from kvbench.errors import InputError

GOOD = """
trace = "t.jsonl"
fail_if = ["ttft.geomean>+3%"]
slo = ["ttft<2s", "ttft.p95<3s"]
treatment = ["server.server=vLLM 0.33.0"]
[base]
endpoint = "http://127.0.0.1:8000"
[candidate]
endpoint = "http://127.0.0.1:8001"
before_run = "true"
"""
STORED = GOOD.replace('[base]\nendpoint = "http://127.0.0.1:8000"', "[history]\nsince = 2026-11-01")


def load(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return load_spec(path)


def test_a_spec_with_its_expressions(tmp_path: Path) -> None:
    spec, goals = load(tmp_path, GOOD)
    assert (spec.runs, spec.directory, spec.hook_timeout_s) == (5, "nights", 600)
    assert [gate.expr for gate in goals.gates] == ["ttft.geomean>+3%", "ttft.p95<3s"]
    assert [slo.limit for slo in goals.slos] == [2.0]
    assert goals.treatments[0].value == "vLLM 0.33.0"
    assert goals.prices is None
    stored, _ = load(tmp_path, "runs = 3\n" + STORED)
    assert stored.history is not None
    assert (stored.history.runs, stored.history.since.isoformat()) == (20, "2026-11-01")


def test_prices_of_ones_own_lie_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "book.toml").write_text(BOOK)
    gate = GOOD.replace("ttft.geomean>+3%", "cost>+3%")
    _, goals = load(tmp_path, 'prices = ["deepseek", "book.toml"]\n' + gate)
    assert goals.prices is not None
    assert [book.name for book in goals.prices.books] == ["deepseek", "mine"]
    _, bundled = load(tmp_path, gate)
    assert bundled.prices is not None
    assert "deepseek" in {book.name for book in bundled.prices.books}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trace = [", "not TOML"),
        (GOOD.replace('trace = "t.jsonl"', ""), "missing required field `trace`"),
        (GOOD.replace("before_run", "before_runs"), "unknown field `before_runs`"),
        (GOOD.replace("ttft.geomean>+3%", "speed>+3%"), "fail_if: "),
        (GOOD.replace('fail_if = ["ttft.geomean>+3%"]\nslo = ["ttft<2s", "ttft.p95<3s"]', ""), "nothing to judge by"),
        (GOOD + "[history]\n", "either [base]"),
        ("runs = 4\n" + GOOD, "runs: 4 a side can give no verdict: at least 5"),
        ("runs = 2\n" + STORED, "runs: 2 a side can give no verdict: at least 3"),
        ("runs = 3\n" + STORED.replace("[history]", "[history]\nruns = 6"), "6 stored and 3 new runs"),
        ("hook_timeout_s = 0\n" + GOOD, "hook_timeout_s: must be more than 0"),
        ('prices = ["none.toml"]\n' + GOOD, "prices: "),
        (GOOD + '[run]\nsalt = "none"\n', "every side needs a before_run that empties the cache"),
    ],
)
def test_what_cannot_be_meant_names_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert said in caught.value.message
    assert "spec.toml" in caught.value.message
