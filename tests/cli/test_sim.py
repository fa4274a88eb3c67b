from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx

COMMAND = [sys.executable, "-m", "kvbench.cli.main", "sim"]


def test_it_serves_in_the_foreground_until_ctrl_c() -> None:
    with subprocess.Popen(
        [*COMMAND, "tiny", "--port", "0", "--set", "num_blocks=1025"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "hello", "max_tokens": 2}, trust_env=False)
            assert answer.json()["usage"]["completion_tokens"] == 2
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        said = process.stderr.read()
        assert process.stdout.read() == ""
    # 1,024 usable blocks of 32 tokens; nothing about requests.
    assert "model tiny, block 32, cache 32,768 tokens, context 8,192 tokens" in said
    assert f"kvbench probe capacity --endpoint {url}" in said
    assert len(said.splitlines()) == 4


def refused(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_cannot_be_meant_is_one_clear_line() -> None:
    assert "no simulated endpoint is called 'huge'; there are: vllm-small, tiny" in refused("huge")
    assert "num_blocks = few" in refused("tiny", "--set", "num_blocks=few")
    assert "--api-key-env KVBENCH_NO_SUCH_KEY" in refused("tiny", "--api-key-env", "KVBENCH_NO_SUCH_KEY")


def test_a_key_from_the_environment_is_required_and_never_shown() -> None:
    with subprocess.Popen(
        [*COMMAND, "tiny", "--port", "0", "--api-key-env", "KVBENCH_TEST_SIM_KEY"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KVBENCH_TEST_SIM_KEY": "sesame"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
            allowed = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer sesame"}, trust_env=False)
            assert json.loads(allowed.text)["data"][0]["id"] == "tiny"
        finally:
            process.terminate()
        assert process.wait(20) == 0
        assert "sesame" not in process.stderr.read()
