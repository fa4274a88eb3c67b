"""Calibrate the simulated endpoint's rates on a real vLLM, and compare the two's TTFT, request by request.

make test-real    # installs the server outside the project
python reports/sim/against_vllm.py    # three minutes; writes vllm.json, which run.py puts into README.md
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from scipy.optimize import least_squares

from kvbench.sim.process import SimProcess

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "real"))
from servers.vllm import MIB, VllmSettings, vllm_server  # noqa: E402

CELLS, REPEATS, CHUNK = 40, 5, 2048
POOL = VllmSettings(kv_bytes=64 * MIB, max_model_len=8192)


def cells() -> list[tuple[int, int]]:
    """Uncached and cached tokens, log-uniform; a quarter is cold."""
    rng = random.Random(7)
    found = []
    while len(found) < CELLS:
        uncached = round(32 * (7000 / 32) ** rng.random())
        cached = 0 if len(found) % 4 == 0 else round(64 * (7000 / 64) ** rng.random()) // 32 * 32
        if uncached + cached < 8100:
            found.append((uncached, cached))
    return found


def measure(url: str, design: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Median TTFT in seconds of each cell, REPEATS times in random order, each under a salt of its own."""
    rng = random.Random(1)
    order = [cell for cell in design for _ in range(REPEATS)]
    rng.shuffle(order)
    taken: dict[tuple[int, int], list[float]] = {cell: [] for cell in design}
    for number, (uncached, cached) in enumerate(order):
        ids = [rng.randrange(10, 250) for _ in range(cached + uncached)]
        salt = f"ttft-{number}"
        if cached:
            ask(url, ids[: cached + 1], salt)
        ttft_s, hit = ask(url, ids, salt)
        assert hit == cached, (hit, cached)
        taken[uncached, cached].append(ttft_s)
    return {cell: statistics.median(times) for cell, times in taken.items()}


def ask(url: str, ids: list[int], salt: str) -> tuple[float, int]:
    """TTFT in seconds, and cached tokens."""
    body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "cache_salt": salt, "ignore_eos": True, "stream": True}
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        raw = json.dumps({**body, "stream_options": {"include_usage": True}})
        connection.connect()
        began = time.monotonic()
        connection.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        ttft_s = time.monotonic() - began
        events = [json.loads(line[6:]) for line in answer.read().splitlines() if line.startswith(b"data: {")]
        details: dict[str, Any] = events[-1]["usage"]["prompt_tokens_details"] or {}
        return ttft_s, details.get("cached_tokens") or 0
    finally:
        connection.close()


def fit(times: dict[tuple[int, int], float]) -> dict[str, float]:
    """t0 + a u + b (u c + u u / 2) + d ceil(u / chunk) + e c, none below zero, least squares of the logarithms."""
    u, c = (np.array([cell[n] for cell in times], dtype=float) for n in (0, 1))
    measured = np.array(list(times.values()))
    columns = np.stack([np.ones_like(u), u / 1e3, (u * c + u * u / 2) / 1e8, np.ceil(u / CHUNK), c / 1e3])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(np.exp(x) @ columns) - np.log(measured)

    found = np.exp(least_squares(residuals, np.log([0.005, 0.01, 0.1, 0.001, 0.001]), loss="soft_l1", f_scale=0.1).x)
    return {
        "prefill_base_s": float(found[0]),
        "prefill_s_per_token": float(found[1] / 1e3),
        "attention_s_per_token2": float(found[2] / 1e8),
        "prefill_s_per_chunk": float(found[3]),
        "prefill_s_per_cached_token": float(found[4] / 1e3),
    }


def formula(rates: dict[str, float], cell: tuple[int, int]) -> float:
    u, c = cell
    return (
        rates["prefill_base_s"]
        + rates["prefill_s_per_token"] * u
        + rates["attention_s_per_token2"] * (u * c + u * u / 2)
        + rates["prefill_s_per_chunk"] * -(-u // CHUNK)
        + rates["prefill_s_per_cached_token"] * c
    )


def spread(one: list[float], other: list[float]) -> dict[str, float]:
    """Of ln(one / other): root mean square, and the largest."""
    logs = np.log(np.array(one) / np.array(other))
    return {"rms": round(float(np.sqrt(np.mean(logs**2))), 4), "max": round(float(np.abs(logs).max()), 4)}


def main() -> None:
    design = cells()
    with tempfile.TemporaryDirectory() as scratch, vllm_server(POOL, Path(scratch)) as server:
        measure(server.url, design[:4])  # what is compiled or allocated first is not to be measured
        real = measure(server.url, design)
    rates = fit(real)
    settings = {**rates, "frontend_s": 0, "max_batched_tokens": CHUNK, "num_blocks": POOL.kv_bytes // 512 // 32}
    with SimProcess.start("tiny", settings=settings) as sim:
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(sim.pid, {0})
        simulated = measure(sim.url, design)
    fitted = [formula(rates, cell) for cell in design]
    measured, played = ([times[cell] for cell in design] for times in (real, simulated))
    if "--cells" in sys.argv:
        for cell in sorted(design):
            print(
                *cell, *(f"{x * 1e3:.2f}" for x in (real[cell], formula(rates, cell), simulated[cell])), file=sys.stderr
            )
    result = {
        "cells": len(design),
        "repeats": REPEATS,
        "rates": rates,
        "ttft_ms": [round(min(measured) * 1e3, 2), round(max(measured) * 1e3, 2)],
        "fit_against_vllm": spread(fitted, measured),
        "sim_against_vllm": spread(played, measured),
        "sim_against_fit": spread(played, fitted),
    }
    (HERE / "vllm.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
