"""The gate on real runs: the simulated endpoint over HTTP, unchanged and with a slower prefill."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
ATTEMPTS = 5
"""On a machine with other work a run may come out degraded, which the gate refuses: it is made again."""
BEFORE, AFTER = "prefill_s_per_token=100e-6", "prefill_s_per_token=110e-6"


def over_http(pairs: int = 5) -> list[dict[str, Any]]:
    """One row a comparison: what, verdict, ratio, low, high, spread, p, reasons."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "trace.jsonl").write_text(trace())
        rows = []
        for what, after, treatment in (
            ("unchanged", BEFORE, ()),
            ("prefill +10%", AFTER, ("--treatment", "endpoint.simulated.settings.prefill_s_per_token")),
        ):
            sides: dict[str, list[str]] = {"base": [], "new": []}
            for pair in range(pairs):
                for side in ("base", "new") if pair % 2 == 0 else ("new", "base"):
                    sides[side].append(replay(work, BEFORE if side == "base" else after))
            words = ["gate", *sides["new"], "--baseline", ",".join(sides["base"])]
            done = kvbench(work, *words, "--fail-if", "ttft.geomean>+3%", *treatment, "--json")
            rows.append(_row(what, json.loads(done.stdout)))
        return rows


NIGHT = """\
trace = "trace.jsonl"
fail_if = ["ttft.geomean>+3%"]
treatment = [{treatment}]
[run]
time_scale = 0.0
sessions = 2
[base]
endpoint = "sim:vllm-small?{before}"
[candidate]
endpoint = "sim:vllm-small?{after}"
"""


def nights() -> list[dict[str, Any]]:
    """The same by `kvbench nightly`, which makes the runs, too: what, verdict, exit_code, ratio, low, high, spread, p,
    reasons."""
    rows = []
    for what, after, treatment in (
        ("unchanged", BEFORE, ""),
        ("prefill +10%", AFTER, '"endpoint.simulated.settings.prefill_s_per_token"'),
    ):
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            (work / "trace.jsonl").write_text(trace())
            (work / "night.toml").write_text(NIGHT.format(before=BEFORE, after=after, treatment=treatment))
            done = kvbench(work, "nightly", "night.toml", "--json", timeout_s=1800)
            rows.append(_row(what, json.loads(done.stdout)) | {"exit_code": done.returncode})
    return rows


def _row(what: str, judged: dict[str, Any]) -> dict[str, Any]:
    figures = {name: judged["gates"][0][name] for name in ("ratio", "low", "high", "spread", "p")}
    return {"what": what, "verdict": judged["verdict"], **figures, "reasons": judged["reasons"]}


def trace(sessions: int = 20, seed: int = 1) -> str:
    """Sessions of two turns, some 2,000 words each, so that TTFT is prefill."""
    rng = random.Random(seed)
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "gate"}]
    for session in range(sessions):
        for turn in range(2):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1500, 2500)))
            answer = [{"role": "assistant", "content": "ok"}] if turn else []
            when = {"delay_s": 0.0} if turn else {"start_s": 0.0}
            append = [*answer, {"role": "user", "content": text}]
            lines.append({"session_id": f"s{session}", "turn": turn, **when, "append": append, "output_tokens": 4})
    return "".join(json.dumps(line) + "\n" for line in lines)


def replay(work: Path, setting: str) -> str:
    words = ["run", "trace.jsonl", "--endpoint", f"sim:vllm-small?{setting}", "--time-scale", "0", "--sessions", "2"]
    for _ in range(ATTEMPTS):
        run = json.loads(kvbench(work, *words, "--json").stdout)
        if run["trust"] == "ok":
            break
    return str(run["run"])


def kvbench(work: Path, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *words],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
