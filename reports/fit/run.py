"""How near fits come to endpoints whose truth is known, over HTTP: `make fit-report`. Writes results.json, README.md.

run.py [--seeds N]      capacity probes and replays on simulated endpoints, N of each kind (default 50)
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"
BYTES_PER_TOKEN = 512
MODES = {
    "fifo": "eviction=fifo",
    "head first": "eviction=head_first",
    "foreign 30%": "foreign_share=0.3",
    "two replicas, random": "replicas=2",
    "two replicas, sticky": "replicas=2&routing=sticky",
}


def kvbench(cwd: Path, *arguments: object) -> dict[str, Any]:
    words = [sys.executable, "-m", "kvbench", *map(str, arguments), "--json"]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def write_trace(path: Path, rng: random.Random) -> None:
    """60 sessions of 3 to 9 turns that begin alike and grow by 32 to 400 tokens a turn."""
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "pressure", "block_size": 16}]
    shared, fresh = list(range(1, 20)), 100
    for number in range(60):
        length = len(shared)
        for turn in range(rng.randint(3, 9)):
            keep, added = (length - 1, rng.randint(2, 25)) if turn else (0, rng.randint(5, 60))
            ids = ([] if turn else shared) + list(range(fresh, fresh + added))
            fresh += added
            length = keep + len(ids)
            line = {"session_id": f"s{number}", "turn": turn, "input_tokens": length * 16 - rng.randint(0, 15)}
            line |= {"output_tokens": 2, "hash_ids": ids}
            lines.append(line | ({"keep_blocks": keep, "delay_s": rng.uniform(0.1, 1)} if turn else {"start_s": 0.0}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def probe(cwd: Path, blocks: int, settings: str) -> dict[str, Any]:
    memory = (blocks - 1) * 32 * BYTES_PER_TOKEN
    sim = f"sim:tiny?{QUICK}&num_blocks={blocks}{settings}"
    return kvbench(cwd, "probe", "capacity", "--endpoint", sim, "--kv-memory", memory, "--yes")


def replay(cwd: Path, blocks: int, settings: str, rng: random.Random) -> dict[str, Any]:
    write_trace(cwd / "t.jsonl", rng)
    sim = f"sim:tiny?{QUICK}&max_model_len=8192&num_blocks={blocks}{settings}"
    options = ("--time-scale", 0.1, "--sessions", 16, "--max-in-flight", 1)
    run = kvbench(cwd, "run", "t.jsonl", "--endpoint", sim, *options)["run"]
    return kvbench(cwd, "fit", run, "--kv-memory", (blocks - 1) * 32 * BYTES_PER_TOKEN)


def measured(answer: dict[str, Any], truth_tokens: int) -> dict[str, Any]:
    """One case; m's truth is 512 bytes, so its error is that of the capacity the other way round."""
    found = next((e for e in answer["estimates"] if e["name"] == "capacity_tokens" and e["value"]), None)
    if found is None:
        return {"refused": [r["reason"] for r in answer["refusals"] if r["name"] == "capacity_tokens"] or ["a bound"]}
    return {
        "error": found["value"] / truth_tokens - 1,
        "covered": found["low"] <= truth_tokens <= found["high"],
        "width": (found["high"] - found["low"]) / truth_tokens,
        "requests": found["n"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=50)
    seeds = parser.parse_args().seeds
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        cwd = Path(directory)
        for seed in range(seeds):
            rng = random.Random(seed)
            blocks = rng.randint(400, 1200)
            results.setdefault("probe", []).append(measured(probe(cwd, blocks, ""), (blocks - 1) * 32))
            blocks = rng.randint(500, 800)
            results.setdefault("replay", []).append(measured(replay(cwd, blocks, "", rng), (blocks - 1) * 32))
            for name, setting in MODES.items():
                setting = f"&{setting}&seed={seed}"
                case = measured(probe(cwd, blocks, setting), (blocks - 1) * 32)
                results.setdefault(f"probe, {name}", []).append(case)
                case = measured(replay(cwd, blocks, setting, rng), (blocks - 1) * 32)
                results.setdefault(f"replay, {name}", []).append(case)
            print(f"seed {seed} of {seeds}", file=sys.stderr, flush=True)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "README.md").write_text(page(results))


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# How near fits come",
        "",
        "Made by `make fit-report`: `kvbench probe capacity` and `kvbench run` with `kvbench fit`, over HTTP against",
        "simulated endpoints whose pools are known (400 to 1,200 blocks of 32 tokens, 512 bytes a token). Error is of",
        "the capacity against the truth, and of bytes a token the other way round; width is of the interval. Rows with",
        "a name are endpoints that are not one LRU cache: there a figure is only right where it is that of the pool.",
        "",
        "| kind | cases | no figure | largest error | intervals that hold the truth | median width | most requests |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, cases in results.items():
        given = [case for case in cases if "error" in case]
        row = [kind, str(len(cases)), str(len(cases) - len(given))]
        if given:
            row += [f"{max(abs(c['error']) for c in given) * 100:.2f}%", f"{sum(c['covered'] for c in given)}"]
            row += [
                f"{statistics.median(c['width'] for c in given) * 100:.2f}%",
                f"{max(c['requests'] for c in given)}",
            ]
        lines.append(f"| {' | '.join(row + [''] * (7 - len(row)))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
