from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.sse import sse_events
from kvbench.endpoints.stamped import StampedBody
from kvbench.endpoints.stamps import STAMP_BYTES, keep_stamping_on, stamp_socket, unpack_timespec
from kvbench.endpoints.transport import StampedTransport

from .conftest import Peer, RawServer

needs_stamps = pytest.mark.skipif(not keep_stamping_on(), reason="no kernel stamps on this platform")


@needs_stamps
def test_a_stamp_is_the_realtime_of_arrival() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as writer:
        reader, _ = listener.accept()
        with reader:
            assert stamp_socket(reader)
            before_ns = time.time_ns()
            writer.sendall(b"x")
            after_ns = time.time_ns()
            time.sleep(0.02)
            data, ancillary, _, _ = reader.recvmsg(10, STAMP_BYTES)
    assert data == b"x"
    (control,) = ancillary
    assert control[:2] == (socket.SOL_SOCKET, 35)
    seconds, nanoseconds = unpack_timespec(control[2])
    assert before_ns <= seconds * 1_000_000_000 + nanoseconds <= after_ns


@needs_stamps
async def test_bounds_hold_whatever_the_loop_does(raw_server: Callable[..., RawServer]) -> None:
    """Streams written at random times to a loop that stalls at random: the truth lies in [stamp - bound, stamp]."""
    writes: dict[bytes, list[tuple[int, int]]] = {}
    lock = threading.Lock()

    def handler(peer: Peer) -> None:
        name = peer.request()[1]
        rng = random.Random(name)
        mine: list[tuple[int, int]] = []
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(100):
            time.sleep(rng.choice([0.0, 0.0005, 0.001, 0.003, 0.02]))
            before_ns = time.monotonic_ns()
            peer.chunk(b"data: x\n\n")
            mine.append((before_ns, time.monotonic_ns()))
        with lock:
            writes[name] = mine
        peer.send(b"0\r\n\r\n")
        peer.request()

    async def stall() -> None:
        rng = random.Random(7)
        while True:
            time.sleep(rng.choice([0.0, 0.001, 0.004, 0.01]))  # noqa: ASYNC251
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.002, 0.015]))

    server = raw_server(handler)
    clock = RunClock.start()
    sinks = {b"stream %d" % i: StampedBody() for i in range(6)}
    async with httpx.AsyncClient(transport=StampedTransport(clock), trust_env=False, timeout=20) as client:
        staller = asyncio.create_task(stall())
        await asyncio.gather(
            *[client.post(server.url, content=n, extensions={"kvbench.sink": s}) for n, s in sinks.items()]
        )
        staller.cancel()
    merged = 0
    for name, sink in sinks.items():
        merged += 100 - len(sink.reads)
        for event, (before_ns, after_ns) in zip(sse_events(sink, clock.uncertainty_ns), writes[name], strict=True):
            assert event.stamp_ns >= before_ns - clock.origin_ns - clock.uncertainty_ns
            assert event.stamp_ns - event.bound_ns <= after_ns - clock.origin_ns
    assert merged > 20  # otherwise the bounds were hardly tried
