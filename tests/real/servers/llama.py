"""A real llama.cpp server, serving the tiny model from random weights.

Its cache goes by slots: each keeps the tokens of the last request it served, and a hit is the longest common prefix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .install import LLAMA
from .models import tiny_gguf
from .serve import HERE, Server, free_port, running

START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class LlamaSettings:
    """What tests vary: how many slots, and how many tokens each holds."""

    slots: int = 4
    slot_tokens: int = 4_096


@dataclass(frozen=True)
class LlamaServer(Server):
    """A healthy llama.cpp server."""

    settings: LlamaSettings
    model: str = "tiny"


@contextlib.contextmanager
def llama_server(settings: LlamaSettings, directory: Path) -> Iterator[LlamaServer]:
    """Serve on a free loopback port while the block lasts; the log is `directory`/llama.log.

    Raises InstallError when llama.cpp is not installed and ServerError, with the log's tail, when it does not start.
    """
    LLAMA.need()
    port = free_port()
    command = [LLAMA.python, HERE / "llama_host.py", tiny_gguf(LLAMA), port, settings.slots, settings.slot_tokens]
    log = directory / "llama.log"
    with running([str(word) for word in command], port=port, log=log, start_timeout_s=START_TIMEOUT_S) as server:
        yield LlamaServer(url=server.url, pid=server.pid, log=server.log, settings=settings)
