"""Runs the simulated endpoint in this process until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from kvbench.errors import FailedError, UsageError
from kvbench.sim.deepseek_service import DeepSeekService
from kvbench.sim.http import Connection
from kvbench.sim.parameters import Preset
from kvbench.sim.vllm_service import VllmService

try:
    import uvloop

    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # uvloop does not exist for this platform
    _new_event_loop = asyncio.new_event_loop

HOST = "127.0.0.1"
_BACKLOG = 4096
_STDIN = 0
_MOST_TIME_SCALE = 1e6


def run(
    preset: Preset,
    *,
    port: int,
    on_ready: Callable[[str], None],
    time_scale: float = 1.0,
    truth_log: Path | None = None,
    api_key: str | None = None,
    until_stdin_ends: bool = False,
) -> None:
    """Serve on loopback until SIGTERM or SIGINT; `on_ready` gets the URL once the port listens (0: any free one).

    until_stdin_ends: stop also when stdin reaches its end, which it does when the process holding the other end of
    the pipe dies; SIGINT is then left to that process. FailedError where the port cannot be had, or the
    truth log cannot be opened or, later, written.
    """
    if not 0 <= time_scale <= _MOST_TIME_SCALE:
        raise UsageError(f"time scale {time_scale:g}: expected 0 up to {_MOST_TIME_SCALE:g}")
    truth_fd = None
    if truth_log is not None:
        try:
            truth_fd = os.open(truth_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise FailedError(f"{truth_log}: the truth log cannot be written: {error.strerror}") from None
    listener = _listen(port)
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            lost = runner.run(_serve(preset, listener, on_ready, time_scale, truth_fd, api_key, until_stdin_ends))
    finally:
        listener.close()
        if truth_fd is not None:
            os.close(truth_fd)
    if lost is not None:
        raise FailedError(f"{truth_log}: the truth log cannot be written: {lost.strerror}; it is not complete")


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise FailedError(f"cannot listen on {HOST}:{port}: {reason}", hint="--port 0 takes any free port") from None
    return listener


async def _serve(
    preset: Preset,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    time_scale: float,
    truth_fd: int | None,
    api_key: str | None,
    until_stdin_ends: bool,
) -> OSError | None:
    """What ended the truth log, and the endpoint with it."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if until_stdin_ends:
        # Ctrl-C reaches the whole process group, but the client may still be draining its requests.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_reader(_STDIN, _stop_at_end_of_stdin, stop)
    else:
        loop.add_signal_handler(signal.SIGINT, stop.set)
    kind = DeepSeekService if preset.dialect == "deepseek" else VllmService
    lost: list[OSError] = []

    def fail(error: OSError) -> None:
        lost.append(error)
        stop.set()

    service = kind(preset, loop, time_scale=time_scale, api_key=api_key, truth_fd=truth_fd, on_truth_failure=fail)
    server = await loop.create_server(lambda: Connection(service), sock=listener, backlog=_BACKLOG)
    # A full collection would stall every stream by milliseconds and find next to nothing.
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    on_ready(f"http://{HOST}:{listener.getsockname()[1]}")
    await stop.wait()
    if until_stdin_ends:
        loop.remove_reader(_STDIN)
    service.close()
    server.close()
    return next(iter(lost), None)


def _stop_at_end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(_STDIN, 4096):
        stop.set()
