"""Run a server that must not outlive its user: keeper.py GRACE_S SCRATCH COMMAND ...

Prints the server's process id, then waits until the server ends or standard input closes, which happens however the
process that holds its other end dies. The server leads a process group of its own; the whole group gets SIGTERM and,
if anything of it is left after GRACE_S seconds, SIGKILL (vLLM can survive SIGTERM, and its workers their parent). The
directory SCRATCH, the server's TMPDIR, goes with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    grace_s, scratch, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    # A signal meant for the user's process group must not end the one process that cleans up.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        return _serve(command, grace_s, os.environ | {"TMPDIR": scratch})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _serve(command: list[str], grace_s: float, environment: dict[str, str]) -> int:
    # Its standard output joins the log: in our own, a pipe that nobody reads after the first line, its access log would
    # fill 64 KB after some 700 requests, and the server would then wait for ever.
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=environment,
        start_new_session=True,
        preexec_fn=_default_signals,
    )
    print(server.pid, flush=True)
    while server.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    _signal_group(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and _group_lives(server):
        time.sleep(0.05)
    _signal_group(server.pid, signal.SIGKILL)
    return server.wait()


def _default_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _group_lives(server: subprocess.Popen[bytes]) -> bool:
    server.poll()
    try:
        os.killpg(server.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
