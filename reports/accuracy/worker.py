"""One client process under test: runs a load given as JSON in argv[1], writes what it measured to the file it names.

Times in the result are time.monotonic_ns() values, so that they can be held against the server's log.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from protocol_client import ProtocolClient

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile
from kvbench.model import Request

STALL_S, STALL_EVERY_S = 0.010, 0.060


class Sample(NamedTuple):
    """One stream as the client saw it; None = not known."""

    request_id: str
    sent_ns: int | None
    first_token_ns: int | None
    bound_ns: int | None
    read_lag_ns: int | None
    chunks: int
    stamps_missing: int
    error: str | None


Send = Callable[[str], Awaitable[Sample]]


async def main(job: dict[str, Any]) -> None:
    tokens = job["tokens"]
    if job["client"] == "protocol":
        protocol_client = ProtocolClient(job["port"], tokens)

        async def send(request_id: str) -> Sample:
            sent_ns, first_ns, chunks = await protocol_client.send(request_id)
            return Sample(request_id, sent_ns, first_ns, None, None, chunks, 0, None)

        await run(job, send)
        protocol_client.close()
        return

    clock = RunClock.start()
    scheme, host = ("https", "localhost") if job["ca_file"] else ("http", "127.0.0.1")
    profile = EndpointProfile(url=f"{scheme}://{host}:{job['port']}", dialect="openai", ca_file=job["ca_file"])
    endpoint = await Endpoint.open(profile, clock)
    body = endpoint.build_body(messages=({"role": "user", "content": "hello"},), output_tokens=tokens, model="truth")

    async def send_record(request_id: str) -> Sample:
        record = await endpoint.send(Request(request_id=request_id, session_id="s", turn=0, body=body))
        times = record.clock
        return Sample(
            request_id,
            None if times.sent is None else times.sent + clock.origin_ns,
            None if times.first_token is None else times.first_token + clock.origin_ns,
            times.first_token_bound_ns,
            times.read_lag_ns,
            len(times.chunks),
            times.stamps_missing,
            record.error_message,
        )

    await run(job, send_record)
    await endpoint.aclose()


async def run(job: dict[str, Any], send: Send) -> None:
    """`streams` workers, each sending `rounds` requests one after the other; workers start spread over spread_s."""
    streams, rounds = job["streams"], job["rounds"]
    samples: list[Sample] = []

    async def worker(index: int) -> None:
        await asyncio.sleep(job["spread_s"] * index / streams)
        for round_ in range(rounds):
            samples.append(await send(f"w{index}-{round_}"))

    await asyncio.gather(*[send(f"warm-{i}") for i in range(min(streams, 4))])
    staller = asyncio.create_task(stall()) if job["stall"] else None
    # As `kvbench run` does while it measures.
    gc.collect()
    gc.freeze()
    gc.disable()
    wall_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*[worker(i) for i in range(streams)])
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    gc.enable()
    if staller is not None:
        staller.cancel()
    result = {"wall_s": wall_s, "cpu_s": cpu_s, "samples": samples}
    await asyncio.to_thread(Path(job["out"]).write_text, json.dumps(result))


async def stall() -> None:
    """Keeps the loop from running for 10 ms in every 60 ms."""
    while True:
        end = time.monotonic() + STALL_S
        while time.monotonic() < end:
            pass
        await asyncio.sleep(STALL_EVERY_S - STALL_S)


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
