"""Starts the simulated endpoint as a process of its own and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from kvbench.errors import FailedError
from kvbench.sim.settings import resolve_preset

_READY_WITHIN_S = 20.0
_STOP_WITHIN_S = 3.0
_STDERR_TAIL_BYTES = 2000


class SimProcess:
    """A running simulated endpoint; a context manager that stops it. It also stops when this process dies."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes], url: str) -> None:
        self._process = process
        self._stderr = stderr
        self.url = url

    @classmethod
    def start(
        cls,
        preset: str,
        *,
        time_scale: float = 1.0,
        settings: Mapping[str, object] | None = None,
        truth_log: Path | None = None,
        api_key: str | None = None,
    ) -> SimProcess:
        """Start it on a free loopback port and wait until it listens.

        truth_log: JSONL, a service.Truth a request, appended after the answer's last byte left; complete after stop().
        UsageError for an unknown preset or setting, FailedError (with the end of its stderr) where it does not start.
        """
        resolve_preset(preset, settings)
        # -P: a file of the user's directory must not stand in for a module of ours.
        command = [sys.executable, "-P", "-m", "kvbench.sim", "--until-stdin-ends", "--preset", preset]
        command += ["--port", "0", "--time-scale", repr(time_scale)]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        if truth_log is not None:
            command += ["--truth-log", str(truth_log)]
        environment = dict(os.environ)
        if api_key is not None:
            environment["KVBENCH_SIM_API_KEY"] = api_key
            command += ["--api-key-env", "KVBENCH_SIM_API_KEY"]
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
        sim = cls(process, stderr, "")
        try:
            sim.url = json.loads(sim._ready_line())["url"]
        except BaseException:
            sim.stop()
            raise
        return sim

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the process and wait for it; a second call does nothing."""
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> SimProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _ready_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _READY_WITHIN_S
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise FailedError(
                    f"the simulated endpoint did not start within {_READY_WITHIN_S:g} s{self._stderr_tail()}"
                )
            data = os.read(self._process.stdout.fileno(), 4096)
            if not data:
                code = self._process.wait()
                raise FailedError(f"the simulated endpoint ended with code {code} at its start{self._stderr_tail()}")
            line += data
        return line

    def _stderr_tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _STDERR_TAIL_BYTES, 0))
        text = self._stderr.read().decode(errors="replace").strip()
        return f": {text}" if text else ""
