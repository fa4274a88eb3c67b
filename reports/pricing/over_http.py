"""A handful of bills over real HTTP: runs against the simulated endpoint with a billing fault, priced and verified by
the command. What was charged for each request is in the endpoint's log of its truth."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

CASES = {
    "honest": ({}, "confirmed", set()),
    "hits of 20% of the requests billed as misses": ({"fault_hits_as_misses": 0.2}, "disputed", {"hits_as_misses"}),
    "30% of the requests charged twice": ({"fault_charged_twice": 0.3}, "disputed", {"charged_twice"}),
    "output overcounted in usage and bill alike": (
        {"fault_output_overcount": 0.5},
        "confirmed",
        set(),
    ),
}
MAP = """kvbench_invoice = 1
currency = "USD"
[columns]
request_id = "id"
start = "at"
model = "model"
amount = "charged"
"""


def replayed() -> list[dict[str, Any]]:
    return [replay(name) for name in CASES]


def replay(name: str, trace: str = "agent-trace.jsonl") -> dict[str, Any]:
    """One case: the verdict and the amount found, beside what was charged too much."""
    from kvbench.sim.process import SimProcess

    settings, expected, kinds = CASES[name]
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory)
        log = there / "truth.jsonl"
        with SimProcess.start("deepseek-api", settings=settings, truth_log=log, time_scale=0.0) as sim:
            profile = there / "endpoint.toml"
            profile.write_text(f'url = "{sim.url}"\ndialect = "deepseek"\nmodel = "deepseek-flash"\n')
            words = ["run", trace, "--endpoint", str(profile), "--time-scale", "0", "--out", str(there / "runs")]
            done = command(*words, "--json")
            if done.returncode not in (0, 3):
                raise RuntimeError(done.stderr)
            run = json.loads(done.stdout)["run"]
        truths = [json.loads(line, parse_float=Decimal) for line in log.read_text().splitlines()]
        truths = [each for each in truths if each["charged"] is not None]
        write_bill(there / "bill.csv", truths)
        (there / "map.toml").write_text(MAP)
        words = ["price", run, "--prices", "deepseek", "--invoice", str(there / "bill.csv")]
        done = command(*words, "--columns", str(there / "map.toml"), "--dedicated-key", "--json")
        if done.returncode not in (0, 1, 3):
            raise RuntimeError(done.stderr)
        report = json.loads(done.stdout)
    over = sum((Decimal(each["charged"]) - Decimal(each["price"]) for each in truths), Decimal(0))
    found = {each["kind"]: Decimal(each["amount"]) for each in report["findings"]}
    in_usage = any("output_overcount" in each["billing_faults"] for each in truths)
    amount = sum(found.values(), Decimal(0))
    return {
        "name": name,
        "requests": len(truths),
        "verdict": report["verdict"],
        "exit_code": done.returncode,
        "kinds": sorted(found),
        "charged_too_much": f"{over:f}",
        "found": f"{amount:f}",
        "in_usage_too": in_usage,
        "served": report["served"]["verdict"],
        "as_expected": report["verdict"] == expected
        and set(found) == kinds
        and (in_usage or abs(amount - over) <= Decimal("0.02") * over),
    }


def write_bill(path: Path, truths: list[dict[str, Any]]) -> None:
    """A row a request: its id, when it came by this machine's clock, what was charged."""
    zero_ns = time.time_ns() - time.monotonic_ns()
    rows = ["id,at,model,charged"]
    for each in truths:
        at = datetime.fromtimestamp((each["arrival_ns"] + zero_ns) / 1e9, UTC)
        rows.append(f"{each['response_id']},{at.isoformat()},deepseek-flash,{Decimal(each['charged']):f}")
    path.write_text("\n".join(rows) + "\n")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvbench", *words], capture_output=True, text=True, check=False)
