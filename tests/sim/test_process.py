from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from kvbench.errors import FailedError, UsageError
from kvbench.sim.__main__ import main
from kvbench.sim.process import SimProcess


def gone(pid: int) -> bool:
    """Whether a process has ended, within a time that is generous on a busy machine."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # ended, and whoever adopted it has not asked yet
            return True
        time.sleep(0.02)
    return False


def test_it_starts_answers_and_stops() -> None:
    sim = SimProcess.start("tiny")
    try:
        assert httpx.get(f"{sim.url}/health", trust_env=False).status_code == 200
        assert sim.pid != os.getpid()
    finally:
        sim.stop()
    assert gone(sim.pid)
    sim.stop()


def test_files_where_it_is_started_are_not_taken_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "uvloop", "kvbench"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    with SimProcess.start("tiny") as sim:
        assert httpx.get(f"{sim.url}/health", trust_env=False).status_code == 200


def test_it_outlives_ctrl_c_and_obeys_sigterm() -> None:
    with SimProcess.start("tiny") as sim:
        os.kill(sim.pid, signal.SIGINT)
        assert httpx.get(f"{sim.url}/health", trust_env=False).status_code == 200
        os.kill(sim.pid, signal.SIGTERM)
        sim._process.wait(20)
        assert sim._process.returncode == 0


def test_it_ends_when_its_parent_is_killed() -> None:
    program = "from kvbench.sim.process import SimProcess; import time\n"
    program += "sim = SimProcess.start('tiny'); print(sim.pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert gone(pid)


def test_what_cannot_be_meant_starts_nothing() -> None:
    with pytest.raises(UsageError, match="'huge'; there are: vllm-small, tiny"):
        SimProcess.start("huge")
    with pytest.raises(UsageError, match="block_size = 0"):
        SimProcess.start("tiny", settings={"block_size": 0})


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        FailedError, match=r"ended with code 4 at its start: .*no-such/truth.jsonl.*No such file"
    ) as caught:
        SimProcess.start("tiny", truth_log=tmp_path / "no-such" / "truth.jsonl")
    assert caught.value.exit_code == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_truth_log_that_cannot_be_written_ends_it_and_is_said() -> None:
    with SimProcess.start("tiny", truth_log=Path("/dev/full")) as sim:
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        assert httpx.post(f"{sim.url}/v1/completions", json=body, trust_env=False).status_code == 200
        assert sim._process.wait(20) == 4
        assert "/dev/full: the truth log cannot be written: No space left on device" in sim._stderr_tail()


def test_what_is_sent_late_is_in_the_truth_log_at_once(tmp_path: Path) -> None:
    """On a busy machine the loop may come back when a whole step is over; nothing need follow that would settle it."""
    late = (
        "import sys, time, kvbench.sim.service as s\ngo = s.Service._go_on\n"
        "s.Service._go_on = lambda self: (time.sleep(0.05), go(self))[1]\n"
        "from kvbench.sim.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    log = tmp_path / "truth.jsonl"
    command = [sys.executable, "-c", late, "--preset", "tiny", "--port", "0", "--truth-log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            body = {"prompt": [1, 2, 3], "max_tokens": 1}
            assert httpx.post(f"{url}/v1/completions", json=body, trust_env=False).status_code == 200
            for _ in range(200):
                if log.read_text():
                    break
                time.sleep(0.05)
            assert json.loads(log.read_text())["output_tokens"] == 1
        finally:
            process.terminate()


@pytest.mark.parametrize("scale", ["nan", "inf", "-1"])
def test_a_time_scale_that_cannot_be_meant_is_named(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "tiny", f"--time-scale={scale}"]) == 2
    assert f"time scale {scale}: expected 0 up to" in capsys.readouterr().err


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "kvbench.sim", "--preset", "tiny", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr == f"cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert done.stdout == ""


def test_the_ready_line_is_one_json_object() -> None:
    command = [sys.executable, "-m", "kvbench.sim", "--preset", "tiny", "--set", "model=mini"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["pid"] == process.pid
            models = httpx.get(f"{ready['url']}/v1/models", trust_env=False).json()
            assert models["data"][0]["id"] == "mini"
        finally:
            process.terminate()
        assert process.wait(20) == 0


def test_it_imports_nothing_heavy() -> None:
    program = "import sys, kvbench.sim.__main__\n"
    program += "print(sorted({'numpy', 'pandas', 'httpx', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
