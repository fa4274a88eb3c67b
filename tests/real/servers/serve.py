"""Start a server process on loopback, wait until it is healthy, and end it with everything it started."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

HERE = Path(__file__).resolve().parent
GRACE_S = 10.0

# Tuning of the numerical libraries on the machine at hand; known to break or slow down the servers' own libraries.
HARMFUL = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class ServerError(RuntimeError):
    """The server did not come up; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Server:
    """A healthy server. `pid` leads its process group; `log` grows while it lives."""

    url: str
    pid: int
    log: Path

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log."""
        return log_tail(self.log, lines)


def log_tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A loopback TCP port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    port: int,
    log: Path,
    start_timeout_s: float,
    environment: Mapping[str, str] | None = None,
    scratch_names: Sequence[str] = (),
) -> Iterator[Server]:
    """Run `command` under the keeper until the block ends; yields once /health answers 200.

    `environment` is added to this process's; the variables in `scratch_names` name directories that vanish with the
    server, as its TMPDIR does (a short path: Unix sockets lie in it). Raises ServerError when the server ends or stays
    silent before it is healthy. Whatever happens to this process, SIGKILL included, the keeper sees its standard input
    close and ends the server's process group.
    """
    url = f"http://127.0.0.1:{port}"
    clean = {name: value for name, value in os.environ.items() if name not in HARMFUL}
    scratch = Path(tempfile.mkdtemp(prefix="kvb-"))
    vanishing = {name: str(scratch / name.lower()) for name in scratch_names}
    with open(log, "wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, str(HERE / "keeper.py"), str(GRACE_S), str(scratch), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=clean | dict(environment or {}) | vanishing,
            start_new_session=True,
            text=True,
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        first_line = keeper.stdout.readline()
        if not first_line:
            raise ServerError(f"{command[0]} could not be started; see {log}:\n{log_tail(log)}")
        _wait_healthy(url, keeper, log, start_timeout_s)
        yield Server(url=url, pid=int(first_line), log=log)
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def _wait_healthy(url: str, keeper: subprocess.Popen[str], log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            raise ServerError(f"the server ended before it was ready; see {log}:\n{log_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise ServerError(f"no answer from {url}/health within {timeout_s:.0f} s; see {log}:\n{log_tail(log)}")
