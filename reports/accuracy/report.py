"""results.json -> README.md."""

from __future__ import annotations

import statistics
from typing import Any

FIRST_TOKEN_P99_MS = 0.1
TTFT_P99_MS = 3.0
TTFT_STREAMS = 1000

Job = dict[str, Any]


def render(results: dict[str, Any]) -> tuple[str, list[str]]:
    """(the README's text, the targets that were missed)"""
    jobs: list[Job] = results["jobs"]
    arrivals = [job for job in jobs if job["paced"] and job["client"] == "kvbench"]
    protocol = [job for job in jobs if job["paced"] and job["client"] == "protocol"]
    targets = check(arrivals)
    missed = [text for text, met in targets if not met]
    text = f"""# How right are kvbench's arrival times?

`make accuracy` runs a server that logs when it writes (`sse_truth.c`), drives it with the endpoint client that
`kvbench run` uses (`Endpoint.send`), and compares. Every stream: first token 200 ms after the request, then one token
each 20 ms, 100 tokens. n streams at all times: n workers that begin evenly and send one request after the other.
"Client stalls": the client's event loop is kept from running for 10 ms in every 60 ms.

{conditions(results)}

## Targets

{table(["target", "", "met"], [[*text.split(": ", 1), "yes" if met else "**no**"] for text, met in targets])}

## Error of the first token's arrival, and of TTFT

First token: the time kvbench gives for it, less the server's clock just before the write. TTFT: kvbench's, less the
server's own (request read in full to first write); it holds the way of the request too. p99 is that of the absolute
error. Bound: what kvbench itself says its stamp can be off by; beyond bound: the largest error that the bound does not
cover, which is the time the write took. Read lag: how long bytes waited in the kernel for the client.

{arrival_table(arrivals)}

A plain asyncio Protocol client (uvloop, httptools, nothing of kvbench), which dates arrivals when its loop sees them:

{arrival_table(protocol)}

## Cost

{cost(jobs)}

## Reading this

- A stamp is the kernel's for the last byte of a read. While the client keeps up, a read holds one event, and the stamp
  is that event's to a few microseconds, however late the client read it. If the client falls behind by more than the
  pause between tokens, events share a read and the earlier ones are dated late; the bound then says by how much at
  most (`kvbench run` marks a run as degraded on it).
- Over TLS the stamp is that of the ciphertext that completed the event, so the server's encryption is in the error. A
  read costs the client more: one CPU that is full (client CPU near 100%) falls behind, and the bound shows it.
- p99 of {min(job["requests"] for job in arrivals)} streams, as in the rows with one stream, is nearly their maximum.
"""
    return text, missed


def check(arrivals: list[Job]) -> list[tuple[str, bool]]:
    targets = []
    for job in arrivals:
        if job["tls"]:
            continue
        clean = job["failed"] == 0 and job["first_token_ms"] is not None
        p99 = job["first_token_ms"]["p99"] if clean else float("inf")
        targets.append(
            (f"{job['name']}: first token p99 {p99:.3f} ms, at most {FIRST_TOKEN_P99_MS} ms", p99 <= FIRST_TOKEN_P99_MS)
        )
        if job["streams"] == TTFT_STREAMS and not job["stall"]:
            p99 = job["ttft_ms"]["p99"] if clean else float("inf")
            targets.append((f"{job['name']}: TTFT error p99 {p99:.3f} ms, under {TTFT_P99_MS} ms", p99 < TTFT_P99_MS))
    return targets


def conditions(results: dict[str, Any]) -> str:
    env, jobs = results["environment"], results["jobs"]
    pinned = "server on CPU 0, client on CPU 1" if env["pinned"] else "not pinned to CPUs"
    priority = "both before all others there (nice -20)" if all(job["first"] for job in jobs) else "at normal priority"
    tries = max(job["attempts"] for job in jobs)
    quiet = (
        f"Each row was measured up to {tries} times, until other processes left the machine alone; the quietest run "
        "counts. "
        if tries > 1
        else ""
    )
    return (
        f"Measured {env['date']}: {env['cpus']} CPUs ({env['machine']}, Linux {env['kernel']}), {pinned}, {priority}. "
        f"{quiet}The share that others had of the CPUs meanwhile is in the table: they share caches and cores with the "
        f"client, so its cost goes up with it. Python {env['python']}, uvloop {env['uvloop']}, httptools "
        f"{env['httptools']}, httpx {env['httpx']}, kvbench {env['kvbench']}."
    )


def arrival_table(jobs: list[Job]) -> str:
    head = ["", "requests", "first token p50 / p99 / max, ms", "TTFT p50 / p99 / max, ms"]
    head += ["client CPU", "others' CPU"]
    own = jobs[0]["client"] == "kvbench"
    head += ["bound p99, ms", "beyond bound, ms", "read lag p99, ms", "stamps missing"] if own else []
    rows = []
    for job in jobs:
        row = [job["name"], f"{job['requests']:,}", three(job["first_token_ms"]), three(job["ttft_ms"])]
        row += [f"{job['cpu_s'] / job['wall_s']:.0%}", f"{job['others_cpu']:.0%}"]
        if own:
            row += [f"{job['bound_ms']['p99']:.4f}", f"{job['unexplained_max_ms']:.3f}"]
            row += [f"{job['read_lag_ms']['p99']:.2f}", str(job["stamps_missing"])]
        rows.append(row)
    return table(head, rows)


def cost(jobs: list[Job]) -> str:
    """CPU and throughput against the plain Protocol client; medians of the flat-out repeats."""
    rows = []
    paced = [job for job in jobs if job["paced"] and job["streams"] == 1000 and not job["stall"] and not job["tls"]]
    flat = [job for job in jobs if not job["paced"]]
    for name, group in (("1000 streams, 20 ms between tokens", paced), ("flat out, 64 streams of 512 tokens", flat)):
        figures = {}
        for client in ("kvbench", "protocol"):
            mine = [job for job in group if job["client"] == client]
            figures[client] = (
                statistics.median(job["chunks"] / job["wall_s"] for job in mine),
                statistics.median(job["cpu_s"] / job["chunks"] * 1e6 for job in mine),
            )
        (rate, cpu), (base_rate, base_cpu) = figures["kvbench"], figures["protocol"]
        rows.append(
            [
                name,
                f"{rate:,.0f} / {base_rate:,.0f} = {rate / base_rate:.2f}",
                f"{cpu:.1f} / {base_cpu:.1f} = {cpu / base_cpu:.2f}",
            ]
        )
    note = (
        "kvbench / plain Protocol. A part of kvbench's share is what the Protocol client does not do: an httpx "
        "request, kernel stamps and their bounds, and a full record (text, usage, tool calls, errors) of each answer."
    )
    return table(["", "chunks/s", "CPU-s per million chunks"], rows) + "\n\n" + note


def three(quantiles: dict[str, float]) -> str:
    return f"{quantiles['p50']:.3f} / {quantiles['p99']:.3f} / {quantiles['max']:.3f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
