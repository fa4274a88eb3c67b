"""How near the latency probe's terms come at 5% noise, over HTTP: a part of reports/fit. measure(seeds) runs the probe
once a seed; table(results) is its section."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TRUTH = {"prefill_s_per_token": 32e-6, "attention_s_per_token2": 10e-9}
BASE_S = 0.012
NOISE = 0.05
LONGEST = 12_288
SIM = (
    f"sim:vllm-small?frontend_s=0&prefill_base_s={BASE_S}&prefill_s_per_token={TRUTH['prefill_s_per_token']}"
    f"&attention_s_per_token2={TRUTH['attention_s_per_token2']}&noise_sigma={NOISE}"
)
WITHIN = 0.03
REPEATS = 8
"""Of each cell: with 5 the errors of one fit in thirty are above 3% by chance alone."""
AT_A_TIME = 5
"""A probe mostly waits for the endpoint."""


def measure(seeds: int | Sequence[int]) -> list[dict[str, Any]]:
    """One case a seed: {"seed", "refused": [...] or None, "requests", "base_off_s", "terms": {name: {"error", "low",
    "high"}}}; error, low and high as shares of the truth, less 1."""
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(_case, numbers))


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    given = [case for case in results if case["refused"] is None]
    typical = statistics.median(c["requests"] for c in given) if given else 0
    lines = [
        f"`kvbench probe latency` (60 cells, {REPEATS} times each, up to {LONGEST:,} tokens; {typical:,.0f} requests",
        "in the median fit) of an endpoint that takes 12 ms + 32 us an uncached token + 10 ns a",
        "pair of tokens, each time multiplied by a log-normal factor of 5%. Error and width are shares of the truth;",
        "of the 90% intervals the share that holds the truth is given.",
        "",
        "| term | cases | refused | largest error | within 3% | typical error | intervals that hold | median width |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in TRUTH:
        terms = [case["terms"][name] for case in given]
        errors = [abs(term["error"]) for term in terms]
        held = sum(term["low"] <= 0 <= term["high"] for term in terms)
        row = [
            f"`{name}`",
            str(len(results)),
            str(len(results) - len(given)),
            f"{max(errors, default=0) * 100:.2f}%",
            str(sum(error < WITHIN for error in errors)),
            f"{statistics.fmean(e * e for e in errors) ** 0.5 * 100:.2f}%" if errors else "",
            f"{held} of {len(terms)}",
            f"{statistics.median(t['high'] - t['low'] for t in terms) * 100:.2f}%" if terms else "",
        ]
        lines.append(f"| {' | '.join(row)} |")
    if given:
        off = statistics.median(case["base_off_s"] for case in given) * 1e3
        lines += ["", f"`ttft_base_s` holds what network and both processes take too: {off:.1f} ms here (median)."]
    return lines


def _case(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        words = [sys.executable, "-m", "kvbench", "probe", "latency", "--endpoint", f"{SIM}&seed={seed}", "--yes"]
        words += ["--json", "--seed", str(seed), "--max-input-tokens", str(LONGEST), "--repeats", str(REPEATS)]
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    answer = json.loads(done.stdout)
    found = {e["name"]: e for e in answer["estimates"]}
    if not all(name in found and found[name]["value"] for name in TRUTH):
        return {"seed": seed, "refused": [r["reason"] for r in answer["refusals"]] or ["a bound"], "requests": 0}
    return {
        "seed": seed,
        "refused": None,
        "requests": found["prefill_s_per_token"]["n"],
        "base_off_s": (found.get("ttft_base_s", {}).get("value") or 0.0) - BASE_S,
        "terms": {
            name: {
                "error": found[name]["value"] / truth - 1,
                "low": found[name]["low"] / truth - 1,
                "high": found[name]["high"] / truth - 1,
            }
            for name, truth in TRUTH.items()
        },
        "others": sorted(set(found) - {*TRUTH, "ttft_base_s", "prefill_s_per_cached_token"}),
    }
