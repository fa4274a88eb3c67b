"""Which process runs on which core.

vLLM's engine and worker spin for a second after each step; on few cores they starve the API server and the client, and
the client then measures its own hunger. So they get one core, and everybody else the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def pin_engine(api_server: int) -> frozenset[int] | None:
    """Put all that `api_server` has started on the first core and itself on the others.

    Returns the other cores, where the client belongs too; None, and nothing is done, on a machine with one core.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    for engine in _descendants(api_server):
        _pin(engine, {first})
    _pin(api_server, set(others))
    return frozenset(others)


@contextlib.contextmanager
def client_on(cores: frozenset[int] | None) -> Iterator[None]:
    """Run this thread, and every process it starts, on `cores` while the block lasts."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _pin(process: int, cores: set[int]) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found
