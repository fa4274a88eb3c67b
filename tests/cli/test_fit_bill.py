"""What a simulated account's balance says of hits: `kvbench fit RUN --bill balance` over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.books import book
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.sim.process import SimProcess

PRICES = {"price_hit_per_mtok": 1000, "price_miss_per_mtok": 10_000, "price_output_per_mtok": 100_000}
BOOK = book("deepseek-flash", "1000", "10_000", "100_000", write='write = "miss"')


@pytest.mark.parametrize("honest", [True, False])
def test_a_balance_tells_the_hits_that_were_granted(tmp_path: Path, honest: bool) -> None:
    """Three sessions of two turns, the second of which hits what the first left. 0.01 is a token of 0.009 that was hit
    or was not. Dishonest: every hit is reported, and charged as if there were none."""
    settings: dict[str, Any] = {
        **PRICES,
        "peak_hours_utc": "",
        "unit_build_s": 0,
        "decode_base_s": 0.001,
        "prefill_base_s": 0.01,
    }
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "t", "block_size": 64}]
    for number in range(3):
        ids = list(range(100 * number, 100 * number + 9))
        common = {"session_id": f"s{number}", "output_tokens": 7}
        lines.append(common | {"turn": 0, "input_tokens": 9 * 64, "hash_ids": ids})
        lines.append(common | {"turn": 1, "input_tokens": 12 * 64, "keep_blocks": 9, "hash_ids": [ids[-1] + 1, 7, 8]})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "own.toml").write_text(BOOK)
    with SimProcess.start(
        "deepseek-api", settings=settings | {"fault_hits_as_misses": 1 - honest}, time_scale=0
    ) as sim:
        profile = f'url = "{sim.url}"\nmodel = "deepseek-flash"\ndialect = "deepseek"\nbalance = true\n'
        (tmp_path / "e.toml").write_text(f'{profile}[expected_hits]\nrule = "none"\n')
        where = ("--endpoint", str(tmp_path / "e.toml"), "--out", str(tmp_path / "runs"))
        ran = CliRunner().invoke(app, ["run", str(tmp_path / "t.jsonl"), *where, "--time-scale", "0", "--json"])
    assert ran.exit_code in (0, 3), ran.output
    summary = json.loads(ran.stdout)
    assert summary["cached_tokens"] > 1000
    done = CliRunner().invoke(
        app, ["fit", summary["run"], "--bill", "balance", "--prices", str(tmp_path / "own.toml"), "--json"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (hits,) = [e for e in report["estimates"] if e["name"] == "hit_tokens_of_bill"]
    granted = summary["cached_tokens"] if honest else 0
    assert hits["low"] <= granted <= hits["high"]
    assert hits["high"] - hits["low"] < 10
    told = f"{summary['cached_tokens']:,} hit tokens were reported: the bill"
    assert any(note.startswith(f"{told} agrees" if honest else f"{told} has at least") for note in report["notes"])
