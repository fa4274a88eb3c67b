"""`kvbench probe capacity` as a user runs it, over HTTP; what it must refuse, it refuses without a number."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.cli.conftest import Kvbench

QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"


def estimates(stdout: str) -> dict[str, dict[str, Any]]:
    return {e["name"]: e for e in json.loads(stdout)["estimates"]}


def test_the_simulated_pool_is_found_and_its_run_can_be_fitted_again(kvbench: Kvbench, tmp_path: Path) -> None:
    """The preset `tiny` has 512 blocks of 32, one of them the null block: 16,352 tokens, of 512 bytes each."""
    memory = 511 * 32 * 512
    done = kvbench(
        "probe", "capacity", "--endpoint", f"sim:tiny?{QUICK}", "--kv-memory", memory, "--out", "out", "--yes", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = estimates(done.stdout)
    capacity = found["capacity_tokens"]
    assert capacity["low"] <= 16_352 <= capacity["high"]
    assert capacity["high"] - capacity["low"] <= 64
    assert found["bytes_per_token"]["low"] <= 512 <= found["bytes_per_token"]["high"]
    assert "at most 250 requests" in done.stderr
    (run,) = (tmp_path / "out").iterdir()
    records = (run / "records.jsonl").read_text().splitlines()
    assert capacity["n"] <= len(records) <= 250
    settings = json.loads((run / "run.json").read_text())["settings"]
    assert (settings["probe"], settings["kv_memory_bytes"]) == ("capacity", memory)
    again = kvbench("fit", f"out/{run.name}", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)
    doubled = estimates(kvbench("fit", f"out/{run.name}", "--kv-memory", 2 * memory, "--json").stdout)
    assert doubled["bytes_per_token"]["value"] == 2 * found["bytes_per_token"]["value"]
    assert kvbench("show", f"out/{run.name}").returncode == 0
    twice = kvbench("fit", f"out/{run.name}", f"out/../out/{run.name}")
    assert twice.returncode == 2
    assert "named twice" in twice.stderr


def test_nobody_to_ask_is_exit_2(kvbench: Kvbench, tmp_path: Path) -> None:
    assert kvbench("probe", "capacity", "--endpoint", "sim:tiny").returncode == 2
    assert not (tmp_path / "runs").exists()


class Odd(http.server.BaseHTTPRequestHandler):
    """An OpenAI-like server that does one thing wrong: `fault`."""

    fault = ""
    seen: ClassVar[set[str]] = set()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, json.dumps({"object": "list", "data": [{"id": "odd", "object": "model"}]}))
        else:
            self._answer(404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "chat/completions" not in self.path:
            self._answer(404, "{}")
        elif self.fault == "4xx" or (self.fault == "no logprobs" and "logprobs" in body):
            self._answer(400, json.dumps({"error": {"message": "no", "type": "BadRequestError", "code": 400}}))
        else:
            usage: dict[str, Any] = {"prompt_tokens": len(body["messages"][0]["content"].split()) + 4}
            usage |= {"completion_tokens": 1, "total_tokens": usage["prompt_tokens"] + 1}
            if self.fault != "not reported":
                prompt = body["messages"][0]["content"]
                is_cold = self.fault == "caching off" or (self.fault == "no logprobs" and prompt not in self.seen)
                self.seen.add(prompt)
                cached = 0 if is_cold else usage["prompt_tokens"] - 1
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            text = "" if self.fault == "empty" else "a"
            chunks = [
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
                {"choices": [], "usage": usage},
            ]
            self._answer(
                200, "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n", "text/event-stream"
            )

    def _answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def odd(fault: str) -> Iterator[str]:
    handler = type("Handler", (Odd,), {"fault": fault})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def dead_port(_: str) -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def sim(spec: str) -> Iterator[str]:
    yield f"sim:{spec}"


REFUSED = {
    "caching off": (odd, "caching off", 3, "prefix caching is off"),
    "4xx": (odd, "4xx", 3, "HTTP 400"),
    "dead port": (dead_port, "", 4, "cannot be reached"),
    "empty deltas": (odd, "empty", 3, "empty deltas"),
    "no overflow": (sim, f"vllm-small?{QUICK}", 3, "did not overflow"),
    "not reported, times overlap": (odd, "not reported", 3, "reports no cached tokens, and TTFT does not tell"),
    "not reported, noise": (
        sim,
        "tiny?frontend_s=0&prefill_base_s=0.003&prefill_s_per_token=1e-5&noise_sigma=1&reports_cached_tokens=false",
        3,
        "would be mistaken for the other (limit 1%)",
    ),
    "not reported, too few controls": (
        sim,
        f"tiny?{QUICK}&reports_cached_tokens=false&max_model_len=600",
        3,
        "reports no cached tokens",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_gets_no_number(kvbench: Kvbench, case: str) -> None:
    serve, fault, code, word = REFUSED[case]
    with serve(fault) as endpoint:
        more = ("--kv-memory", 10**9, "--yes", "--json", "--max-tokens", 100_000)
        done = kvbench("probe", "capacity", "--endpoint", endpoint, *more)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 4:
        assert word in done.stderr
        assert not done.stdout
        return
    report = json.loads(done.stdout)
    assert report["estimates"] == []
    assert [r["name"] for r in report["refusals"]] == ["capacity_tokens"]
    assert word in report["refusals"][0]["reason"]


def test_times_tell_where_nothing_is_reported_and_they_are_far_enough_apart(kvbench: Kvbench) -> None:
    """100 ms a miss of 1,025 tokens and 5 a hit. The pool of 16,352 tokens holds 15 prompts and a part of one."""
    times = "frontend_s=0&prefill_base_s=0.003&prefill_s_per_token=1e-4&attention_s_per_token2=0&decode_base_s=0.001"
    more = ("--kv-memory", 511 * 32 * 512, "--yes", "--json")
    done = kvbench("probe", "capacity", "--endpoint", f"sim:tiny?{times}&reports_cached_tokens=false", *more)
    report = json.loads(done.stdout)
    if done.returncode == 3:  # a machine so busy that times mislead is told that they do
        assert report["refusals"][0]["reason"].startswith("the endpoint reports no cached tokens")
        pytest.skip(f"the machine is too busy for times: {report['refusals'][0]['reason']}")
    found = estimates(done.stdout)
    capacity = found["capacity_tokens"]
    # on a machine so busy that only prompts of 4,097 tokens tell, to three of those
    assert 4_096 <= capacity["low"] <= 16_352 <= capacity["high"] <= 6 * 4_352
    assert "12 hits and 12 misses known to be some" in capacity["method"]
    assert found["bytes_per_token"]["low"] <= 512 <= found["bytes_per_token"]["high"]
    assert any("blocks of at most 256 tokens" in text for text in report["assumed"])


def test_a_pool_that_the_server_claims_to_be_larger_is_told(kvbench: Kvbench) -> None:
    """65,536 bytes a running request are 4 blocks of 16,384, which no reading sees; the server counts all 511. Tokens
    from a tier below HBM, of whose bytes nothing is known, are told by its counters."""
    window = "window_tokens=256&window_replay=never&host_bytes=4186112"
    for more, told in (("bytes_per_session=65536", "claims blocks for 16,352 tokens"), (window, "came from below HBM")):
        spec = f"sim:tiny?{QUICK}&{more}"
        done = kvbench("probe", "capacity", "--endpoint", spec, "--kv-memory", 511 * 32 * 512, "--yes", "--json")
        report = json.loads(done.stdout)
        assert any(told in text for text in (*report["notes"], *(r["reason"] for r in report["refusals"])))
        if more == window:
            assert report["estimates"] == [e for e in report["estimates"] if "bytes" not in e["unit"]]
            assert {"bytes_per_token", "bytes_per_session"} <= {r["name"] for r in report["refusals"]}
