"""Ctrl-C, and being told to end, as calls."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def signals(handle: Callable[[], None]) -> Iterator[None]:
    """While it lasts `handle` is called for each SIGINT and SIGTERM; belongs to the running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
