"""How much a verdict on a bill can be trusted: faults found, their amounts, and honest bills accused.

    make pricing-report    # half an hour; writes results.json and README.md beside this file; exit 1: a target missed

Traffic and bills come from biller.py, which shares nothing with kvbench; every bill is written to the files that a
provider exports, and read from them. `--runs N` takes fewer seeds, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import biller
import serving
from over_http import replayed
from report import readme

HERE = Path(__file__).parent
RUNS, HONEST, REQUESTS = 200, 300, 1000
FEWER = 10
"""Of what has no target of its own, one in so many seeds."""
FOUND_OF_200, WITHIN, FALSE = 195, 0.02, 1
FAULTS = {
    "0.5% of the hit tokens billed as misses": ("hits_as_misses", {}, "hits_as_misses"),
    "+1% input tokens": ("input_inflated", {}, "input_inflated"),
    "+3% output tokens": ("output_inflated", {}, "output_inflated"),
    "+0.5% price": ("price_off", {}, "price_off"),
    "one off-peak hour at the peak price": ("wrong_peak_hour", {}, "wrong_peak_hour"),
    "hits short by 64 tokens": ("hits_short", {}, "hits_short_by_granule"),
    "everything doubled": ("doubled", {}, "doubled_bill"),
    "input +5%": ("input_inflated", {"share": 0.05}, "input_inflated"),
    "output +30%": ("output_inflated", {"share": 0.30}, "output_inflated"),
    "one request billed twice": ("duplicate", {}, "duplicates"),
}
INVOICES = (
    "hourly export, dedicated key",
    "hourly export, key not said to be dedicated",
    "daily export, dedicated key",
)
INVOICES += ("a row a request",)
TARGETED = (INVOICES[0], INVOICES[3])
WITH_TARGET = 6


def verified(directory: Path, invoice: str, items: list[biller.Item], used: list[biller.Used], habits: biller.Habits):
    """The verification report of a bill in its files."""
    from kvbench.analysis.billing.verify import Terms, verify
    from kvbench.analysis.pricing.usage_file import read_usage_file
    from kvbench.prices.invoices.read import read_invoice
    from kvbench.prices.load import load_book
    from kvbench.prices.pricing import PriceList

    usage = directory / "usage.jsonl"
    biller.write_usage(usage, used)
    _, billables = read_usage_file(usage)
    if invoice == "a row a request":
        path, columns = biller.write_requests(directory, items)
        bill = read_invoice([path], columns)
    else:
        bill = read_invoice(biller.write_export(directory, items, habits, [each for each in used if each.refused]))
    terms = Terms(dedicated="not said" not in invoice)
    empty = {"total": {"currency": "USD"}, "findings": []}
    return verify(empty, billables, PriceList([load_book("deepseek")]), bill, terms=terms)


def habits_of(rng: random.Random, invoice: str) -> biller.Habits:
    """An honest provider; whatever is not documented is drawn."""
    return biller.Habits(
        moment=rng.choice(["start", "end", "middle"]),
        clock_s=rng.uniform(-1, 1),
        counts_refused=rng.random() < 0.5,
        decimals=rng.choice([4, 6, 8, 10]),
        daily="daily" in invoice,
        bom=rng.random() < 0.5,
        crlf=rng.random() < 0.5,
        wallets=rng.random() < 0.3,
        alias=rng.choice(["deepseek-flash", "deepseek-v4-flash"]),
    )


def faulty(job: tuple[str, str, int]) -> dict[str, Any]:
    """One bill with one fault: whether it was disputed for it, and the amount against the truth."""
    name, invoice, seed = job
    function, options, kind = FAULTS[name]
    rng = random.Random(f"{name} {invoice} {seed}")
    used = biller.traffic(seed, REQUESTS)
    habits = habits_of(rng, invoice)
    items = biller.bill(used, habits)
    honest = biller.total(items)
    getattr(biller, function)(items, rng, **options)
    truth = biller.total(items) - honest
    with tempfile.TemporaryDirectory() as directory:
        report = verified(Path(directory), invoice, items, used, habits)
    named = [finding for finding in report["findings"] if finding["kind"] == kind]
    amount = Decimal(named[0]["amount"]) if named else None
    return {
        "verdict": report["verdict"],
        "found": report["verdict"] == "disputed" and amount is not None,
        "truth": str(truth),
        "off": None if amount is None else float(abs(amount - truth) / truth),
        "to_the_cent": amount is not None and abs(amount - truth) < Decimal("0.005"),
        "others": sorted({finding["kind"] for finding in report["findings"]} - {kind}),
    }


def honest(job: tuple[str, int]) -> dict[str, Any]:
    """One bill without a fault: broken streams whose usage nobody knows, and requests of others, among them."""
    invoice, seed = job
    rng = random.Random(f"honest {invoice} {seed}")
    used = biller.traffic(10_000 + seed, REQUESTS, silent=rng.choice([0, 0, 1, 3]))
    habits = habits_of(rng, invoice)
    items = biller.bill(used, habits)
    if "not said" in invoice and rng.random() < 0.5:
        others = biller.traffic(20_000 + seed, rng.choice([1, 20, 300]))
        items += biller.bill(others, habits)
    with tempfile.TemporaryDirectory() as directory:
        report = verified(Path(directory), invoice, items, used, habits)
    return {"verdict": report["verdict"], "findings": [finding["kind"] for finding in report["findings"]]}


def served(job: tuple[str, str, int]) -> str:
    fault, knowledge, seed = job
    return serving.verdict(fault, knowledge, seed, REQUESTS)


def layouts(runs: int, *, with_target: bool) -> list[tuple[str, range]]:
    """Seeds by invoice: half of them each of the two with a target, and fewer of the others."""
    if not with_target:
        return [(invoice, range(max(1, runs // FEWER))) for invoice in INVOICES]
    half = {TARGETED[0]: range(0, runs, 2), TARGETED[1]: range(1, runs, 2)}
    return [(invoice, half.get(invoice, range(max(1, runs // FEWER)))) for invoice in INVOICES]


def shares(bills: int) -> list[tuple[str, range]]:
    """Honest bills of every kind, as many of each."""
    return [(invoice, range(number, bills, len(INVOICES))) for number, invoice in enumerate(INVOICES)]


def all_of(function: Any, jobs: list[Any]) -> list[Any]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, jobs, chunksize=4))


def measure(runs: int, bills: int) -> dict[str, Any]:
    found: dict[str, Any] = {"faults": [], "honest": [], "served": []}
    for number, name in enumerate(FAULTS):
        for invoice, seeds in layouts(runs, with_target=number < WITH_TARGET):
            got = all_of(faulty, [(name, invoice, seed) for seed in seeds])
            offs = [each["off"] for each in got if each["off"] is not None]
            found["faults"].append(
                {
                    "fault": name,
                    "invoice": invoice,
                    "runs": len(seeds),
                    "found": sum(each["found"] for each in got),
                    "within": sum(off <= WITHIN for off in offs),
                    "to_the_cent": sum(each["to_the_cent"] for each in got),
                    "largest_off": max(offs, default=None),
                    "waved_through": sum(each["verdict"] == "confirmed" for each in got),
                    "others": sum(bool(each["others"]) for each in got),
                }
            )
            print(found["faults"][-1], file=sys.stderr)
    for invoice, seeds in shares(bills):
        got = all_of(honest, [(invoice, seed) for seed in seeds])
        verdicts = [each["verdict"] for each in got]
        found["honest"].append(
            {"invoice": invoice, "bills": len(seeds), **{name: verdicts.count(name) for name in serving.VERDICTS}}
        )
        print(found["honest"][-1], file=sys.stderr)
    for fault in serving.FAULTS:
        for knowledge in serving.KNOWLEDGE:
            seeds = max(1, runs // FEWER)
            got = all_of(served, [(fault, knowledge, seed) for seed in range(seeds)])
            counts = {
                name: got.count(name) for name in ("differs", "no difference seen", "cannot tell", serving.NOTHING)
            }
            found["served"].append({"fault": fault, "knowledge": knowledge, "runs": seeds, **counts})
            print(found["served"][-1], file=sys.stderr)
    return found


def misses(found: dict[str, Any]) -> list[str]:
    """What falls short of the targets."""
    out = []
    for name in FAULTS:
        rows = [row for row in found["faults"] if row["fault"] == name and row["invoice"] in TARGETED]
        runs, seen, close = (sum(row[key] for row in rows) for key in ("runs", "found", "within"))
        if min(seen, close) < runs * FOUND_OF_200 / RUNS:
            out.append(f"{name}: of {runs} found {seen}, within 2% {close}")
    # On a key that others may use, what is in excess may be theirs: found or not, it must never be confirmed.
    out += [
        f"{row['fault']}, {row['invoice']}: {row['waved_through']} confirmed"
        for row in found["faults"]
        if row["waved_through"] > row["runs"] * (1 - FOUND_OF_200 / RUNS)
    ]
    accused = sum(row["disputed"] for row in found["honest"])
    if accused > FALSE:
        out.append(f"honest bills disputed: {accused}")
    for row in found["served"]:
        if row["fault"] != serving.HONEST and row["no difference seen"] > row["runs"] * (1 - FOUND_OF_200 / RUNS):
            out.append(f"{row['fault']}, {row['knowledge']}: waved through {row['no difference seen']}")
    return out


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=None)
    wanted = parser.parse_args(None if arguments is None else list(arguments)).runs
    began = datetime.now(UTC)
    found = measure(wanted or RUNS, wanted or HONEST)
    missed = misses(found)
    if wanted is None:
        found["http"] = replayed()
        missed += [each["name"] for each in found["http"] if not each["as_expected"]]
        found["measured"] = {"at": began.isoformat(timespec="minutes")}
        found["missed"] = missed
        (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        (HERE / "README.md").write_text(readme(found))
    for each in missed:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
