"""Measure what the miss-ratio curve costs, and hold it against itself computed another way.

    make curve-report    # two minutes; writes results.json and README.md beside this file; exit 1: a target was missed

With KVBENCH_TEST_DATA also the conversation trace of Mooncake, against its independent values.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from traffic import runs_of, trace_lines, traffic

HERE = Path(__file__).parent
ORDERS = ("leaf-first", "root-first")
ATTEMPTS = 3
SMALL, FILE_REQUESTS = 20_000, 200_000
TARGETS = [
    ("1,000,000 requests", "runs-1000000", 5.0, 6.0),
    ("10,000,000 requests", "runs-10000000", 60.0, 6.0),
    ("Mooncake conversation, 12,031 requests, 17 capacities, whole command", "mooncake", 2.3, None),
]


def measured(*words: str, attempts: int = ATTEMPTS) -> dict[str, Any]:
    """The quickest of some attempts: what others did to the machine meanwhile only adds."""
    best: dict[str, Any] = {}
    for _ in range(attempts):
        done = subprocess.run(
            [sys.executable, str(HERE / "measure.py"), *words], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        if not best or found["wall_s"] < best["wall_s"]:
            best = found
    return best


def write_trace(path: Path, requests: int) -> None:
    with path.open("wb") as stream:
        stream.writelines(trace_lines(traffic(requests)))


def check_small(directory: Path) -> bool:
    """The whole way through a file gives the hits that follow from the runs, which traffic.py works out by itself."""
    from kvbench.traces.curve.hits import HitCounts, find

    path = directory / "small.jsonl"
    write_trace(path, SMALL)
    capacities = [1_000, 5_000, 20_000, 100_000, 400_000]
    same = True
    for order in ORDERS:
        runs, tokens = runs_of(traffic(SMALL))
        counts = HitCounts(runs, find(runs, order), order, block_size=64, input_tokens=tokens)
        listed = ",".join(map(str, capacities))
        words = ["trace", "curve", str(path), "--capacity-blocks", listed, "--order", order, "--json"]
        shown = measured("command", *words, attempts=1)["shown"]
        got = [point["hit_blocks"] for point in shown["points"]]
        same = same and got == counts.hit_blocks(capacities).tolist()
        same = same and shown["hit_blocks_unbounded"] == counts.hit_blocks_unbounded
    return same


def mooncake(data: Path) -> dict[str, Any]:
    reference = {
        order: json.loads((data / "reference" / f"mooncake_conversation_{order}.json").read_text())["rows"]
        for order in ORDERS
    }
    path = str(data / "mooncake" / "conversation_trace.jsonl")
    found: dict[str, Any] = {}
    equal = True
    for order, rows in reference.items():
        listed = ",".join(str(row["cap"] or 10**9) for row in rows)
        words = ["trace", "curve", path, "--capacity-blocks", listed, "--order", order, "--json"]
        taken = measured("command", *words, attempts=5)
        shown = taken.pop("shown")
        equal = equal and [p["hit_blocks"] for p in shown["points"]] == [row["hit_blocks"] for row in rows]
        if not found or taken["wall_s"] > found["wall_s"]:
            found = taken
    return {**found, "equal": equal, "capacities": len(rows)}


def main() -> int:
    results: dict[str, Any] = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} CPUs ({platform.machine()}, {platform.system()})",
        "versions": f"Python {platform.python_version()}, numpy {version('numpy')}, kvbench {version('kvbench')}",
    }
    for requests in (1_000_000, 10_000_000):
        for order in ORDERS:
            found = measured("runs", str(requests), order, attempts=ATTEMPTS if requests < 5_000_000 else 2)
            found.pop("hits")
            results[f"runs-{requests}" + ("" if order == "leaf-first" else "-root-first")] = found
    with tempfile.TemporaryDirectory() as directory:
        results["small_equal"] = check_small(Path(directory))
        path = Path(directory) / "agents.jsonl"
        write_trace(path, FILE_REQUESTS)
        found = measured("command", "trace", "curve", str(path), "--json", attempts=2)
        found["requests"], found["file_mib"] = found.pop("shown")["requests"], path.stat().st_size / 2**20
        results["file"] = found
    if data := os.environ.get("KVBENCH_TEST_DATA"):
        results["mooncake"] = mooncake(Path(data))
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "README.md").write_text(render(results))
    missed = [name for name, key, most_s, most_gib in TARGETS if not met(results.get(key), most_s, most_gib)]
    return 1 if missed or not results["small_equal"] else 0


def met(found: dict[str, Any] | None, most_s: float, most_gib: float | None) -> bool:
    if found is None:
        return True
    return (
        found["wall_s"] <= most_s and (most_gib is None or found["peak_gib"] <= most_gib) and found.get("equal", True)
    )


def render(results: dict[str, Any]) -> str:
    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [
        "# What the miss-ratio curve costs",
        "",
        "`make curve-report` makes agent traffic from a seed (traffic.py: sessions of 20 turns on average that grow by",
        "2,000 tokens a turn in the median, three shared system prompts, pauses of seconds and minutes; blocks of 64",
        "tokens) and takes the time from arrays of runs to hits at 200 capacities: distances, sorts, sums.",
        "",
        f"Measured {results['measured']}: {results['machine']}, shared with other work; the quickest of up to "
        f"{ATTEMPTS} attempts. {results['versions']}.",
        "",
        "## Targets",
        "",
        row("", "", "met"),
        row("---", "---", "---"),
    ]
    for name, key, most_s, most_gib in TARGETS:
        found = results.get(key)
        if found is None:
            lines.append(row(name, "not measured: needs KVBENCH_TEST_DATA", ""))
            continue
        memory = "" if most_gib is None else f", {found['peak_gib']:.1f} GiB, at most {most_gib:g}"
        said = f"{found['wall_s']:.2f} s, at most {most_s:g} s{memory}"
        lines.append(row(name, said, "yes" if met(found, most_s, most_gib) else "NO"))
    lines += [
        "",
        "## From runs to hits",
        "",
        row("requests", "order", "runs", "block touches", "time, s", "CPU, s", "peak of the process, GiB", "ceiling"),
        row(*["---"] * 8),
    ]
    for key, found in results.items():
        if key.startswith("runs-"):
            lines.append(
                row(
                    f"{found['requests']:,}",
                    "root-first" if key.endswith("root-first") else "leaf-first",
                    f"{found['runs']:,}",
                    f"{found['block_touches'] / 1e9:.2f}e9",
                    f"{found['wall_s']:.2f}",
                    f"{found['cpu_s']:.2f}",
                    f"{found['peak_gib']:.2f}",
                    f"{found['hit_rate_unbounded'] * 100:.1f}%",
                )
            )
    file = results["file"]
    lines += [
        "",
        "The peak holds the making of the traffic too.",
        "",
        "## Whole commands",
        "",
        f"A native trace of {file['requests']:,} such requests ({file['file_mib']:.0f} MiB): {file['wall_s']:.1f} s, "
        f"{file['peak_gib']:.2f} GiB, which is {file['wall_s'] / file['requests'] * 1e6:.0f} us a request, nearly all "
        "of it reading: the file is checked as a whole, then read tree by tree.",
    ]
    if found := results.get("mooncake"):
        lines += [
            "",
            "The conversation trace of Mooncake (12,031 requests, 288,500 blocks) at "
            f"{found['capacities']} capacities: {found['wall_s']:.2f} s (CPU {found['cpu_s']:.2f} s) in the slower "
            "order, from the start of the process to its end; hit blocks "
            + ("equal" if found["equal"] else "DIFFER from")
            + " the independent values at every capacity in both orders.",
        ]
    lines += [
        "",
        "## Is it right?",
        "",
        f"{SMALL:,} requests written to a file and taken all the way through the command give "
        + ("the same hits" if results["small_equal"] else "OTHER hits")
        + " as the runs that traffic.py works out directly, in both orders. The tests hold the curve to an OrderedDict "
        "LRU request by request, and to independent values for public traces.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
