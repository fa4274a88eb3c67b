"""The keeper ends what it started, however its user ends: checked on a stubborn stand-in, without a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from servers import serve

STUBBORN = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port, pids, tmpdir = int(sys.argv[1]), sys.argv[2], os.environ["TMPDIR"]
open(tmpdir + "/left-behind", "w").close()
child = os.fork()
if child:
    open(pids, "w").write(f"{os.getpid()} {child} {tmpdir}")
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
else:
    signal.pause()
"""

USER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from servers import serve
serve.GRACE_S = 0.2
port = serve.free_port()
with serve.running([sys.executable, "-c", sys.argv[2], str(port), sys.argv[3]], port=port, log=Path(sys.argv[4]),
                   start_timeout_s=30) as server:
    print("up", flush=True)
    sys.stdin.read()
"""


def lives(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def assert_all_gone(pids: Path) -> None:
    server, child, scratch = pids.read_text().split()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (lives(int(server)) or lives(int(child)) or Path(scratch).exists()):
        time.sleep(0.05)
    assert not lives(int(server))
    assert not lives(int(child))
    assert not Path(scratch).exists()


def test_server_child_and_scratch_are_gone_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "GRACE_S", 0.2)
    pids, port = tmp_path / "pids", serve.free_port()
    command = [sys.executable, "-c", STUBBORN, str(port), str(pids)]

    def failing_test() -> None:
        with serve.running(command, port=port, log=tmp_path / "log", start_timeout_s=30) as server:
            assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
            assert str(server.pid) == pids.read_text().split()[0]
            raise RuntimeError("a test failed")

    with pytest.raises(RuntimeError, match="a test failed"):
        failing_test()

    assert_all_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_child_and_scratch_are_gone_when_the_user_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", USER, here, STUBBORN, str(pids), str(tmp_path / "log")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "up\n"
        os.kill(user.pid, number)

    assert_all_gone(pids)


def test_a_server_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]

    with (
        pytest.raises(serve.ServerError, match=r"ended before it was ready(?s:.)*no such model"),
        serve.running(command, port=serve.free_port(), log=tmp_path / "log", start_timeout_s=30),
    ):
        pass


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    command = [str(tmp_path / "nonesuch")]

    with (
        pytest.raises(serve.ServerError, match="nonesuch could not be started"),
        serve.running(command, port=serve.free_port(), log=tmp_path / "log", start_timeout_s=30),
    ):
        pass


TALKATIVE = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("access log " * 1000, flush=True)
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


def test_what_a_server_prints_never_stops_it(tmp_path: Path) -> None:
    """A pipe that nobody empties holds 64 KB; this server prints 220 KB on its standard output."""
    port, log = serve.free_port(), tmp_path / "log"
    command = [sys.executable, "-c", TALKATIVE, str(port)]
    with serve.running(command, port=port, log=log, start_timeout_s=30) as server:
        for _ in range(20):
            assert httpx.get(server.url, trust_env=False, timeout=10).status_code == 200
    assert log.read_text().count("access log") >= 20_000
