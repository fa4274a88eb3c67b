"""Probes against a real vLLM on CPU whose pool is known: `make real-probe-report`. Writes vllm.json and vllm.md.

make test-real    # installs the server outside the project
python reports/fit/real.py    # ten minutes
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "real"))
from servers.vllm import MIB, VllmServer, VllmSettings, vllm_server  # noqa: E402

POOLS = [VllmSettings(kv_bytes=size * MIB) for size in (6, 8, 24)]
LENGTHS = (701, 1001, 1025, 1501, 2001)
OTHER = [
    ("float32", VllmSettings(kv_bytes=16 * MIB, dtype="float32")),
    ("fp8 KV cache", VllmSettings(kv_cache_dtype="fp8")),
]
WINDOW = VllmSettings(model="tiny-window")
WINDOW_LENGTHS = (None, "601,1201,2401", "301,1001,3001", "1001,2001,4001")
OFF = VllmSettings(prefix_caching=False)
PROBES = {
    "granularity": (),
    "ttl": ("--min-age", "0.5", "--max-age", "8", "--passes", "1"),
    "latency": ("--cells", "40", "--repeats", "5", "--max-input-tokens", "4096"),
    "consistency": ("--prompts", "20", "--output-tokens", "32"),
}

Row = dict[str, Any]


def probe(url: str, cwd: Path, name: str, *more: object) -> tuple[int, Row]:
    """Exit code and what it printed."""
    words = [sys.executable, "-m", "kvbench", "probe", name, "--endpoint", url, "--yes", "--json", *map(str, more)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    answer: Row = json.loads(done.stdout)
    return done.returncode, answer | {e["name"]: e for e in answer["estimates"]}


def capacity(server: VllmServer, cwd: Path, lengths: object) -> Row:
    """One capacity probe. `within` is of a block; the truth is what the server was started with."""
    settings = server.settings
    more = () if lengths is None else ("--input-tokens", lengths)
    began = time.monotonic()
    code, answer = probe(server.url, cwd, "capacity", "--kv-memory", settings.kv_bytes, *more)
    row: Row = {"input_tokens": lengths, "exit": code, "seconds": round(time.monotonic() - began, 1)}
    for name in ("capacity_tokens", "bytes_per_token", "bytes_per_session"):
        if name in answer:
            row[name] = {k: answer[name][k] for k in ("value", "low", "high", "n")}
    row["refused"] = [f"{r['name']}: {r['reason']}" for r in answer["refusals"]]
    return row


def pools(cwd: Path) -> Iterator[Row]:
    for settings in POOLS:
        with started(settings, cwd) as server:
            for length in LENGTHS:
                row = capacity(server, cwd, length)
                print(row, file=sys.stderr, flush=True)
                yield {"kv_mib": settings.kv_bytes // MIB, "truth_tokens": settings.capacity_tokens, **row}


def dtypes(cwd: Path) -> Iterator[Row]:
    for name, settings in [("bfloat16", POOLS[1]), *OTHER]:
        with started(settings, cwd) as server:
            row = capacity(server, cwd, None)
            print(row, file=sys.stderr, flush=True)
            yield {
                "kv_cache": name,
                "truth_tokens": settings.capacity_tokens,
                "truth_bytes_per_token": settings.bytes_per_token,
                **row,
            }


def window(cwd: Path) -> Iterator[Row]:
    with started(WINDOW, cwd) as server:
        for lengths in WINDOW_LENGTHS:
            row = capacity(server, cwd, lengths)
            print(row, file=sys.stderr, flush=True)
            yield {
                "truth_bytes_per_token": WINDOW.bytes_per_token,
                "truth_bytes_per_session": WINDOW.bytes_per_session,
                **row,
            }
        code, answer = probe(server.url, cwd, "granularity")
        yield {"granularity": answer["notes"], "exit": code}


def others(cwd: Path) -> Iterator[Row]:
    with started(POOLS[1], cwd) as server:
        for name, more in PROBES.items():
            code, answer = probe(server.url, cwd, name, *more)
            row = {"probe": name, "options": " ".join(more), "exit": code}
            row |= {k: answer[k] for k in ("estimates", "refusals", "misfit", "notes")}
            print(row, file=sys.stderr, flush=True)
            yield row
    with started(OFF, cwd) as server:
        row = capacity(server, cwd, None)
        yield {"probe": "capacity", "options": "prefix caching off", **row}


def started(settings: VllmSettings, cwd: Path) -> Any:
    print(settings, file=sys.stderr, flush=True)
    return vllm_server(settings, cwd)


PARTS = {"pools": pools, "dtypes": dtypes, "window": window, "others": others}


def main() -> None:
    path = HERE / "vllm.json"
    wanted = sys.argv[1:] or list(PARTS)
    results: dict[str, list[Row]] = json.loads(path.read_text()) if sys.argv[1:] and path.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        for part in wanted:
            results[part] = list(PARTS[part](Path(directory)))
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
