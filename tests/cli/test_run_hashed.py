"""`kvbench run` on traces without text, over real HTTP: exact lengths, shared blocks, and what it says of them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench

from kvbench.sim.process import SimProcess
from kvbench.traces.tokenizers import load_tokenizer

TRACE = [
    {"kvbench_trace": 1, "name": "hashed", "block_size": 64},
    {"session_id": "a", "turn": 0, "input_tokens": 150, "output_tokens": 20, "hash_ids": [1, 2]},
    {"session_id": "a", "turn": 1, "input_tokens": 170, "output_tokens": 20, "keep_blocks": 2, "hash_ids": []},
    {"session_id": "a", "turn": 2, "input_tokens": 300, "output_tokens": 20, "keep_blocks": 2, "hash_ids": [3, 4]},
    {"session_id": "b", "turn": 0, "input_tokens": 200, "output_tokens": 9, "hash_ids": [1, 2, 3, 9]},
    {"session_id": "b", "turn": 1, "input_tokens": 250, "output_tokens": 9, "keep_blocks": 4, "hash_ids": []},
    {"session_id": "b", "turn": 2, "input_tokens": 100, "output_tokens": 9, "keep_blocks": 1, "hash_ids": []},
]
WANTED = [150, 170, 300, 200, 250, 100]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "hashed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return path


@pytest.fixture
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("tiny") as process:
        yield process


def run(kvbench: Kvbench, *arguments: Any) -> dict[str, Any]:
    done = kvbench("run", *arguments, "--time-scale", "0", "--sessions", "1", "--json")
    assert done.returncode in (0, 3), done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def usages(got: dict[str, Any], cwd: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (cwd / got["run"] / "records.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: (row["session_id"], row["turn"]))
    return [(row["usage"]["input_tokens"], row["usage"]["cached_tokens"]) for row in rows]


# One session after the other, blocks of 32. a/1 and a/2 begin with all of the prompt before (150 and 170 tokens);
# b/0 shares blocks 1, 2 and 3 of 64 with a/2; b/1 begins with all of b/0; b/2 keeps 64 tokens.
CACHED = [0, 128, 160, 192, 192, 64]


def test_token_ids_are_exact_and_share_what_the_blocks_share(
    kvbench: Kvbench, trace: Path, sim: SimProcess, tmp_path: Path
) -> None:
    got = run(kvbench, trace, "--endpoint", sim.url)
    assert usages(got, tmp_path) == list(zip(WANTED, CACHED, strict=True))
    assert got["prompt_lengths"] == {
        "turns": 6,
        "exact_turns": 6,
        "wanted": sum(WANTED),
        "got": sum(WANTED),
        "max_difference": 0,
        "sent_as": "token ids",
        "tokenizer": "the server's /tokenize",
        "template_tokens": None,
    }
    assert got["expected_hit_rate"]["exact"] == 6
    info = json.loads((tmp_path / got["run"] / "run.json").read_text())
    assert info["trace"]["prompts"]["as"] == "token ids"


def test_text_is_exact_with_the_chat_template_inside_the_count(
    kvbench: Kvbench, trace: Path, sim: SimProcess, tmp_path: Path
) -> None:
    profile = tmp_path / "text.toml"
    profile.write_text(f'url = "{sim.url}"\nhash_prompts = "text"\n')
    got = run(kvbench, trace, "--endpoint", profile)
    assert [tokens for tokens, _ in usages(got, tmp_path)] == WANTED
    assert got["prompt_lengths"]["exact_turns"] == 6
    # START, role, SEPARATOR before the text; END, START, role, SEPARATOR after it
    assert got["prompt_lengths"]["template_tokens"] == 7
    assert got["expected_hit_rate"]["exact"] == 6


def test_the_summary_says_how_exact_prompts_were(kvbench: Kvbench, trace: Path, sim: SimProcess) -> None:
    done = kvbench("run", trace, "--endpoint", sim.url, "--time-scale", "0")
    assert "all 6 prompts exactly as long as in the trace; made from hash ids as token ids" in done.stdout


def test_live_history_is_made_of_the_ids_that_came_back(
    kvbench: Kvbench, trace: Path, sim: SimProcess, tmp_path: Path
) -> None:
    got = run(kvbench, trace, "--endpoint", sim.url, "--history", "live")
    rows = [json.loads(line) for line in (tmp_path / got["run"] / "records.jsonl").read_text().splitlines()]
    assert [len(row["output_token_ids"]) for row in rows] == [20, 20, 20, 9, 9, 9]
    # a/1: 150 + 19 cached, of 170; a/2: 170 + 19, of 300; b/1: 200 + 8, of 250
    assert [cached for _, cached in usages(got, tmp_path)] == [0, 160, 160, 128, 192, 64]
    assert got["expected_hit_rate"]["exact"] == 6
    assert got["prompt_lengths"]["exact_turns"] == 6


def test_without_a_tokenizer_the_run_is_refused_before_anything_is_sent(
    kvbench: Kvbench, trace: Path, sim: SimProcess, tmp_path: Path
) -> None:
    profile = tmp_path / "plain.toml"
    profile.write_text(f'url = "{sim.url}"\ndialect = "openai"\n')
    done = kvbench("run", trace, "--endpoint", profile)
    assert done.returncode == 3
    assert "no tokenizer is named" in done.stderr
    assert "tokenizer = " in done.stderr
    assert not (tmp_path / "runs").exists()


class Chat(http.server.BaseHTTPRequestHandler):
    """A chat endpoint without /tokenize that counts as DeepSeek's tokenizer does, and 5 tokens for its template."""

    tokenizer = load_tokenizer("deepseek")
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer({"data": [{"id": "m"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokens = len(self.tokenizer.encode(body["messages"][0]["content"])) + 5
        choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        self.answer({"choices": [choice], "usage": {"prompt_tokens": tokens, "completion_tokens": 1}})

    def answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def chat() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_first_answer_tells_what_the_template_adds_and_all_others_are_exact(
    kvbench: Kvbench, trace: Path, chat: str, tmp_path: Path
) -> None:
    profile = tmp_path / "chat.toml"
    profile.write_text(f'url = "{chat}"\nstream = false\ntokenizer = "deepseek"\n')
    got = run(kvbench, trace, "--endpoint", profile)
    lengths = got["prompt_lengths"]
    assert (lengths["exact_turns"], lengths["max_difference"], lengths["template_tokens"]) == (5, 5, 5)
    assert (lengths["got"], lengths["wanted"]) == (sum(WANTED) + 5, sum(WANTED))
    assert (lengths["sent_as"], lengths["tokenizer"]) == ("text", "deepseek")


def test_a_tokenizer_is_looked_for_beside_the_profile(kvbench: Kvbench, trace: Path, chat: str, tmp_path: Path) -> None:
    profile = tmp_path / "chat.toml"
    profile.write_text(f'url = "{chat}"\ntokenizer = "none.json"\n')
    done = kvbench("run", trace, "--endpoint", profile)
    assert done.returncode == 2
    assert f"{tmp_path / 'none.json'}: no such tokenizer" in done.stderr
