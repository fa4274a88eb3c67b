"""How near fits come to endpoints whose truth is known, over HTTP: `make fit-report`. Writes results.json, README.md.

run.py [--seeds N] [--intervals N] [--workers N] [--part cases|latency]

N endpoints of each kind (50), N of those that intervals are counted on (200). What is done already is in partial.jsonl,
which goes when all is done: a run that was stopped goes on where it was. --part measures one of the two parts anew and
keeps the other as it is in results.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from latency import measure
from page import page
from plan import Case, all_cases, tried

HERE = Path(__file__).parent
PARTIAL = HERE / "partial.jsonl"
BATCH = 50
WAITING = 8
"""Lifetimes at a time: they wait, and take little of a processor."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--intervals", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part", choices=("cases", "latency"))
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.part:
        results = json.loads((HERE / "results.json").read_text())
    if options.part != "latency":
        results["cases"] = cases(options.seeds, options.intervals, options.workers)
    if options.part != "cases":
        results["latency"] = measure(options.seeds)
    (HERE / "results.json").write_text(lines_of(results))
    (HERE / "README.md").write_text(page(results))
    PARTIAL.unlink(missing_ok=True)


def cases(seeds: int, intervals: int, workers: int) -> list[dict[str, Any]]:
    """A row a case, in the order of all_cases."""
    wanted = all_cases(seeds, intervals)
    lines = PARTIAL.read_text().splitlines() if PARTIAL.exists() else []
    rows = [row for line in lines if line.endswith("}") for row in [json.loads(line)]]
    done = {Case(row["way"], row["kind"], row["seed"]) for row in rows}
    left = [case for case in wanted if case not in done]
    rows += measured([case for case in left if case.way == "ttl"], WAITING)
    rows += measured([case for case in left if case.way != "ttl"], workers)
    order = {case: number for number, case in enumerate(wanted)}
    rows = [row for row in rows if Case(row["way"], row["kind"], row["seed"]) in order]
    return sorted(rows, key=lambda row: order[Case(row["way"], row["kind"], row["seed"])])


def lines_of(results: dict[str, list[dict[str, Any]]]) -> str:
    """JSON, a line a row."""
    parts = ['"' + name + '": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in results.items()]
    return "{" + ",\n".join(parts) + "}\n"


def measured(left: list[Case], workers: int) -> list[dict[str, Any]]:
    """Rows of the cases, each written to PARTIAL as it is done."""
    rows = []
    with PARTIAL.open("a") as partial:
        for start in range(0, len(left), BATCH):
            # New processes a batch, as they grow; with max_tasks_per_child a pool can wait for ever (CPython 115634).
            with ProcessPoolExecutor(workers) as pool:
                for done in as_completed([pool.submit(tried, case) for case in left[start : start + BATCH]]):
                    row = done.result()
                    rows.append(row)
                    partial.write(json.dumps(row) + "\n")
                    partial.flush()
            print(f"{len(rows)} of {len(left)}", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
