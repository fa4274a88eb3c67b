"""One measurement, in a process of its own: `measure.py runs REQUESTS ORDER` or `measure.py command WORDS...`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from traffic import BLOCK, runs_of, traffic

CAPACITIES = np.unique(np.geomspace(1e3, 1e9, 200).astype(np.int64))


def of_runs(requests: int, order: Any) -> dict[str, Any]:
    """Arrays of runs in, hits at 200 capacities out."""
    from kvbench.traces.curve.hits import HitCounts, find

    runs, tokens = runs_of(traffic(requests))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    found = find(runs, order)
    counts = HitCounts(runs, found, order, block_size=BLOCK, input_tokens=tokens)
    hits = counts.hit_blocks(CAPACITIES)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {
        "requests": len(runs.depth),
        "runs": len(runs.request),
        "block_touches": int(runs.depth.sum()),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "peak_before_gib": before_kib / 2**20,
        "hit_rate_unbounded": counts.hit_blocks_unbounded / counts.blocks,
        "hits": hits.tolist(),
    }


def of_command(words: list[str]) -> dict[str, Any]:
    """A whole command, from the start of its process to its end."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "kvbench", *words], capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
        "shown": json.loads(done.stdout),
    }


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    print(json.dumps(of_runs(int(rest[0]), rest[1]) if kind == "runs" else of_command(rest)))
