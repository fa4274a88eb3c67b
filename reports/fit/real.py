"""Probes against a real vLLM on CPU whose pool is known: `make real-probe-report`. Writes vllm.json and vllm.md.

make test-real    # installs the server outside the project
python reports/fit/real.py [PART ...]    # ten minutes; parts: pools dtypes window others
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
WINDOW = VllmSettings(model="tiny-window")
WINDOW_LENGTHS = (None, "601,1201,2401", "1001,2001,4001")
FP8 = VllmSettings(kv_cache_dtype="fp8")
OFF = VllmSettings(prefix_caching=False)
DTYPES = {
    "bfloat16": POOLS[1],
    "float32": VllmSettings(kv_bytes=16 * MIB, dtype="float32"),
    "fp8 (`--kv-cache-dtype fp8`)": FP8,
}
SILENT = VllmSettings(reports_cached=False)
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
    for name in ("capacity_tokens", "bytes_per_token", "bytes_per_session", "window_tokens"):
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
    for name, settings in DTYPES.items():
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
        yield other(server, cwd, "granularity", "a sliding window")


def others(cwd: Path) -> Iterator[Row]:
    with started(POOLS[1], cwd) as server:
        for name in PROBES:
            yield other(server, cwd, name, "bfloat16")
    with started(FP8, cwd) as server:
        yield other(server, cwd, "consistency", "fp8 KV cache")
    for settings, words in ((OFF, "prefix caching off"), (SILENT, "no cached tokens reported")):
        with started(settings, cwd) as server:
            row = capacity(server, cwd, None)
            print(row, file=sys.stderr, flush=True)
            yield {"probe": "capacity", "server": words, "truth_tokens": settings.capacity_tokens, **row}


def other(server: VllmServer, cwd: Path, name: str, words: str) -> Row:
    more = PROBES[name]
    code, answer = probe(server.url, cwd, name, *more)
    row = {"probe": name, "server": words, "options": " ".join(more), "exit": code}
    row |= {k: answer[k] for k in ("estimates", "refusals", "misfit", "notes")}
    print(row, file=sys.stderr, flush=True)
    return row


def started(settings: VllmSettings, cwd: Path) -> Any:
    print(settings, file=sys.stderr, flush=True)
    return vllm_server(settings, cwd)


PARTS = {"pools": pools, "dtypes": dtypes, "window": window, "others": others}


def page(results: dict[str, list[Row]]) -> str:
    lines = [
        "# Probes against a real vLLM",
        "",
        "Made by `make real-probe-report`: `kvbench probe` against vLLM 0.32.0 on CPU with a tiny model of random",
        "weights, blocks of 32 tokens. The truth is what the server was started with: (blocks - 1) * 32 tokens, one",
        "block being vLLM's null block; no probe is told of a size. Times are of a machine with two cores that did",
        "other work too.",
        "",
        "## Capacity",
        "",
        *_pools(results["pools"]),
        "",
        "## Bytes a token",
        "",
        *table(
            ["KV cache", "allocated", "measured", "interval", "off by", "tokens held", "requests"],
            [
                [
                    row["kv_cache"],
                    f"{row['truth_bytes_per_token']:,}",
                    f"{row['bytes_per_token']['value']:,.2f}",
                    interval(row["bytes_per_token"]),
                    f"{(row['bytes_per_token']['value'] / row['truth_bytes_per_token'] - 1) * 100:+.2f}%",
                    f"{row['capacity_tokens']['value']:,.0f} of {row['truth_tokens']:,}",
                    row["capacity_tokens"]["n"],
                ]
                for row in results["dtypes"]
            ],
        ),
        "",
        "Memory over capacity is what is left over for one block too many: the null block.",
        "",
        "## A sliding window",
        "",
        *_window([row for row in results["window"] if "probe" not in row]),
        "",
        "## The other probes",
        "",
        "A model of random weights says nearly the same whatever it is asked, so that answers and log probabilities",
        "agree here means little; that they are read and compared is what this shows.",
        "",
        *_others([row for row in results["window"] if "probe" in row] + results["others"]),
    ]
    return "\n".join(lines) + "\n"


def _pools(rows: list[Row]) -> list[str]:
    near = sum(abs(row["capacity_tokens"]["value"] - row["truth_tokens"]) <= POOLS[0].block_size for row in rows)
    covered = sum(covers(row["capacity_tokens"], row["truth_tokens"]) for row in rows)
    return [
        f"{near} of {len(rows)} within one block, the interval holds the truth in {covered}; at most "
        f"{max(row['capacity_tokens']['n'] for row in rows)} requests.",
        "",
        *table(
            ["pool, MiB", "prompts, tokens", "truth, tokens", "measured", "interval", "requests", "s"],
            [
                [
                    row["kv_mib"],
                    f"{row['input_tokens']:,}",
                    f"{row['truth_tokens']:,}",
                    f"{row['capacity_tokens']['value']:,.0f}",
                    interval(row["capacity_tokens"]),
                    row["capacity_tokens"]["n"],
                    f"{row['seconds']:.0f}",
                ]
                for row in rows
            ],
        ),
    ]


def _window(rows: list[Row]) -> list[str]:
    truth = [rows[0][f"truth_{name}"] for name in ("bytes_per_token", "bytes_per_session")]
    held = sum(covers(row["bytes_per_token"], truth[0]) and covers(row["bytes_per_session"], truth[1]) for row in rows)
    return [
        f"One layer keeps all tokens ({truth[0]} bytes a token), one a window of 512 ({truth[1]:,} bytes a session).",
        f"The truth is in both intervals in {held} of {len(rows)}. A pool of 8 MiB holds few sessions, and hits are",
        "whole: hence the width.",
        "",
        *table(
            ["prompts, tokens", "bytes a token", "bytes a session", "window, tokens", "requests", "s"],
            [
                [
                    row["input_tokens"] or "chosen",
                    interval(row["bytes_per_token"]),
                    interval(row["bytes_per_session"]),
                    interval(row["window_tokens"]),
                    row["bytes_per_token"]["n"],
                    f"{row['seconds']:.0f}",
                ]
                for row in rows
            ],
        ),
    ]


def _others(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        options = f", `{row['options']}`" if row.get("options") else ""
        lines.append(f"- **{row['probe']}**, {row['server']}{options}: exit {row['exit']}")
        if row["probe"] == "capacity":
            if "capacity_tokens" in row:
                told = f"{row['capacity_tokens']['value']:,.0f} tokens ({interval(row['capacity_tokens'])})"
                lines.append(f"  - capacity by TTFT: {told} of {row['truth_tokens']:,}")
            lines += [f"  - refused: {text}" for text in row["refused"]]
            continue
        for e in row["estimates"]:
            value = "" if e["value"] is None else f"{e['value']:.4g} "
            lines.append(f"  - `{e['name']}` {value}{e['unit']} ({interval(e, '.4g')}; n = {e['n']})")
        lines += [f"  - `{r['name']}` refused: {r['reason']}" for r in row["refusals"]]
        lines += [f"  - {note}" for note in row["notes"]]
    return lines


def covers(figure: Row, truth: float) -> bool:
    return bool(figure["low"] <= truth <= figure["high"])


def interval(figure: Row, spec: str = ",.0f") -> str:
    low, high = (None if figure[end] is None else format(figure[end], spec) for end in ("low", "high"))
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"{low} to {high}"


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def main() -> None:
    path = HERE / "vllm.json"
    wanted = sys.argv[1:] or list(PARTS)
    results: dict[str, list[Row]] = json.loads(path.read_text()) if sys.argv[1:] and path.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        for part in wanted:
            results[part] = list(PARTS[part](Path(directory)))
            path.write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "vllm.md").write_text(page(results))


if __name__ == "__main__":
    main()
