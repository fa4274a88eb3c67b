"""`kvbench run` as its user runs it: a process, a simulated endpoint over real HTTP, files on disk."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Kvbench

from kvbench.sim.process import SimProcess

SYSTEM = "You are a careful agent. " * 40


def lines(*turns: dict[str, Any], **header: Any) -> str:
    head = {"kvbench_trace": 1, "name": "toy", **header}
    prefix = {"prefix": "p", "messages": [{"role": "system", "content": SYSTEM}]}
    return "".join(json.dumps(line) + "\n" for line in (head, prefix, *turns))


def turn(session: str, number: int, text: str, **fields: Any) -> dict[str, Any]:
    append = [{"role": "user", "content": text}]
    if number:
        append.insert(0, {"role": "assistant", "content": "recorded answer"})
    first = {"prefix": "p"} if number == 0 else {}
    return {"session_id": session, "turn": number, **first, "append": append, "output_tokens": 12, **fields}


TOY = lines(
    turn("a", 0, "hello " * 30, start_s=0.0),
    turn("a", 1, "and then? " * 30, delay_s=5.0),
    turn("a.x", 0, "look there", parent={"session_id": "a", "turn": 0}, delay_s=1.0),
    turn("a", 2, "so?", after=["a.x"], delay_s=1.0),
    turn("b", 0, "hello " * 30, start_s=20.0),
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.jsonl"
    path.write_text(TOY)
    return path


@pytest.fixture
def sim() -> Iterator[SimProcess]:
    with SimProcess.start("tiny") as process:
        yield process


def records(run_dir: str, cwd: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cwd / run_dir / "records.jsonl").read_text().splitlines()]


def test_a_run_measures_every_turn_and_expects_just_the_hits_it_got(
    kvbench: Kvbench, toy: Path, tmp_path: Path
) -> None:
    done = kvbench("run", toy, "--endpoint", "sim", "--time-scale", "0.02", "--out", "out", "--json")
    assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy to be trusted
    got = json.loads(done.stdout)
    for name in ("ttft_s", "tpot_s"):
        assert set(got[name]) >= {"p50", "p95", "p99"}
        assert got[name]["p50"] > 0
    assert got["trust"] in ("ok", "degraded")
    assert got["requests"] == {"ok": 5, "failed": 0, "skipped": 0, "retried": 0}
    assert got["output_tokens"] == 5 * 12
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0
    assert got["expected_hit_rate"]["turns"] == 5
    assert 0 < got["hit_rate"] == got["cached_tokens"] / got["input_tokens"]
    rows = records(got["run"], tmp_path)
    # b repeats a's first prompt to the letter, 0.4 s later: all but the last block hits
    first, again = (next(r for r in rows if (r["session_id"], r["turn"]) == (s, 0)) for s in "ab")
    assert first["usage"]["cached_tokens"] == 0
    tokens = again["usage"]["input_tokens"]
    assert again["usage"]["cached_tokens"] == (tokens - 1) // 32 * 32
    info = json.loads((tmp_path / got["run"] / "run.json").read_text())
    assert info["status"] == "done"
    assert info["server"]["server"].startswith("kvbench-sim")
    assert (tmp_path / got["run"] / "trace.jsonl").read_text() == TOY


def test_the_copied_trace_of_a_run_can_be_run_again(
    kvbench: Kvbench, toy: Path, sim: SimProcess, tmp_path: Path
) -> None:
    options = ["--endpoint", sim.url, "--time-scale", "0", "--out", "out", "--json"]
    first = json.loads(kvbench("run", toy, *options).stdout)
    again = json.loads(kvbench("run", tmp_path / first["run"] / "trace.jsonl", *options).stdout)
    assert first["run"] != again["run"]
    assert first["requests"] == again["requests"]
    # another run, another salt: nothing of the first one is hit
    assert first["cached_tokens"] == again["cached_tokens"]


def test_the_summary_is_for_people_and_goes_to_stdout_alone(kvbench: Kvbench, toy: Path) -> None:
    done = kvbench("run", toy, "--endpoint", "sim:tiny", "--time-scale", "0")
    text = done.stdout
    assert "toy -> tiny, kvbench-sim" in text
    assert "; expected " in text
    assert "no turn differs" in text or "no turn outside" in text
    assert 10 <= len(text.splitlines()) <= 16
    assert "\x1b" not in text
    assert "TTFT p50" in done.stderr


def test_show_and_runs_find_it_again(kvbench: Kvbench, toy: Path) -> None:
    run = json.loads(kvbench("run", toy, "--endpoint", "sim:tiny", "--time-scale", "0", "--json").stdout)
    shown = json.loads(kvbench("show", run["run"], "--json").stdout)
    assert shown == run
    assert Path(run["run"]).name in kvbench("runs").stdout


@pytest.mark.parametrize("salt", ["run", "tree", "none"])
def test_salts_separate_what_they_say(kvbench: Kvbench, toy: Path, tmp_path: Path, salt: str) -> None:
    with SimProcess.start("tiny") as server:
        options = ["--endpoint", server.url, "--time-scale", "0.01", "--salt", salt, "--json"]
        kvbench("run", toy, *options)
        got = json.loads(kvbench("run", toy, *options).stdout)
    hits = {(r["session_id"], r["turn"]): r["usage"]["cached_tokens"] for r in records(got["run"], tmp_path)}
    assert (hits["a", 0] > 0) == (salt == "none")
    assert (hits["b", 0] > 0) == (salt != "tree")
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0


def test_live_history_reaches_the_server_and_stays_inside_the_expectation(
    kvbench: Kvbench, toy: Path, tmp_path: Path
) -> None:
    options = ["--endpoint", "sim", "--time-scale", "0.01", "--history", "live", "--json"]
    got = json.loads(kvbench("run", toy, *options).stdout)
    assert got["requests"]["ok"] == 5
    assert got["expected_hit_rate"]["below"] == got["expected_hit_rate"]["above"] == 0
    recorded = json.loads(kvbench("run", toy, "--endpoint", "sim", "--time-scale", "0.01", "--json").stdout)
    # twelve generated tokens a turn are longer than the recorded answers
    assert got["input_tokens"] > recorded["input_tokens"]


def test_a_pool_below_the_working_set_loses_hits_and_nothing_else(kvbench: Kvbench, tmp_path: Path) -> None:
    turns = [
        turn(f"s{s}", t, f"{s} {t} " * 400) for t in range(4) for s in range(24)
    ]  # 24 sessions of up to 1,900 tokens, all live at all times, in a pool of 16,352
    path = tmp_path / "big.jsonl"
    path.write_text(lines(*turns))
    options = ["--time-scale", "0", "--sessions", "24", "--json"]
    small = json.loads(kvbench("run", path, "--endpoint", "sim:tiny", *options).stdout)
    assert small["requests"]["ok"] == 96
    large = json.loads(kvbench("run", path, "--endpoint", "sim", *options).stdout)
    assert small["hit_rate"] < 0.8 * large["hit_rate"]
    assert small["expected_hit_rate"]["below"] == small["expected_hit_rate"]["above"] == 0
    assert small["expected_hit_rate"]["floor"] < small["expected_hit_rate"]["ceiling"]


def test_warm_up_turns_are_kept_apart(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    got = json.loads(
        kvbench("run", toy, "--endpoint", "sim:tiny", "--time-scale", "0", "--warmup", "2", "--json").stdout
    )
    assert got["requests"]["ok"] == 3
    assert got["output_tokens"] == 3 * 12
    assert len(records(got["run"], tmp_path)) == 5


# ------------------------------------------------------------------------------------------------------- bad input


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def page() -> Iterator[str]:
    """A web server that answers every path with a page, as a wrong URL often does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>hello</title>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("kvbench: ")]
    assert len(errors) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert done.stdout == ""


def test_a_missing_trace(kvbench: Kvbench) -> None:
    one_clear_line(kvbench("run", "nowhere.jsonl", "--endpoint", "sim"), 2, "nowhere.jsonl", "agent-trace.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["toy.jsonl"]),
        ("{\n", ["toy.jsonl:1"]),
        ("hello\n", ["toy.jsonl:1"]),
        (TOY.replace('"kvbench_trace": 1', '"kvbench_trace": 2'), ["toy.jsonl:1", "version"]),
        (TOY.replace('"turn": 2', '"turn": 3'), ["toy.jsonl:6", "turn"]),
        (TOY.replace('"delay_s": 5.0', '"delay_s": NaN'), ["toy.jsonl:4"]),
        (TOY + '{"session_id": "c", "turn": 0\n', ["toy.jsonl:8"]),
    ],
)
def test_a_malformed_trace_names_file_and_line(kvbench: Kvbench, toy: Path, text: str, words: list[str]) -> None:
    toy.write_text(text)
    one_clear_line(kvbench("run", toy, "--endpoint", "sim"), 2, *words)


@pytest.mark.parametrize(
    "endpoint", ["ftp://127.0.0.1", "nonsense", "sim:nonsense", "missing.toml", "http://user:pass@127.0.0.1:1"]
)
def test_an_unknown_endpoint(kvbench: Kvbench, toy: Path, endpoint: str) -> None:
    one_clear_line(kvbench("run", toy, "--endpoint", endpoint), 2)


def test_a_simulated_endpoint_takes_parameters(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    endpoint = "sim:tiny?num_blocks=300&model=mini"
    got = json.loads(kvbench("run", toy, "--endpoint", endpoint, "--time-scale", "0", "--json").stdout)
    info = json.loads((tmp_path / got["run"] / "run.json").read_text())
    assert info["server"]["model"] == "mini"
    assert info["server"]["cache"]["num_gpu_blocks"] == 300
    assert info["endpoint"]["simulated"] == {
        "preset": "tiny",
        "settings": {"num_blocks": "300", "model": "mini"},
        "time_scale": 0.0,
    }
    for query, words in (
        ("num_blocks=few", ["num_blocks = few"]),
        ("pool=9", ["'pool'", "num_blocks"]),
        ("num_blocks", ["PARAMETER=VALUE"]),
        ("num_blocks=9", ["max_model_len", "256"]),
    ):
        one_clear_line(kvbench("run", toy, "--endpoint", f"sim:tiny?{query}"), 2, *words)


def test_a_refused_connection(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    one_clear_line(kvbench("run", toy, "--endpoint", url), 4, url.removeprefix("http://"))
    assert not (tmp_path / "runs").exists()


def test_a_wrong_key_and_a_missing_key(kvbench: Kvbench, toy: Path) -> None:
    with SimProcess.start("tiny", api_key="right") as server:
        wrong = {"KVBENCH_API_KEY": "sk-wrong-secret"}
        done = kvbench("run", toy, "--endpoint", server.url, env=wrong)
        one_clear_line(done, 2, "KVBENCH_API_KEY")
        assert "sk-wrong-secret" not in done.stderr
        one_clear_line(kvbench("run", toy, "--endpoint", server.url), 2, "KVBENCH_API_KEY")
        done = kvbench("run", toy, "--endpoint", server.url, "--time-scale", "0", env={"KVBENCH_API_KEY": "right"})
        assert "5 ok" in done.stdout


def test_the_key_is_in_no_artefact(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    key = "sk-very-secret-key-123"
    with SimProcess.start("tiny", api_key=key) as server:
        done = kvbench("run", toy, "--endpoint", server.url, "--time-scale", "0", env={"KVBENCH_API_KEY": key})
    assert "5 ok" in done.stdout
    assert key not in done.stdout + done.stderr
    for file in (tmp_path / "runs").rglob("*"):
        assert file.is_dir() or key.encode() not in file.read_bytes(), file


def test_a_wrong_model_names_those_served(kvbench: Kvbench, toy: Path, sim: SimProcess) -> None:
    one_clear_line(kvbench("run", toy, "--endpoint", sim.url, "--model", "gpt-9"), 2, "gpt-9", "tiny")


def test_a_model_named_by_the_trace_must_be_served_too(kvbench: Kvbench, toy: Path, sim: SimProcess) -> None:
    toy.write_text(lines(turn("a", 0, "hello", model="gpt-9")))
    one_clear_line(kvbench("run", toy, "--endpoint", sim.url), 2, "gpt-9", "--model")
    assert "1 ok" in kvbench("run", toy, "--endpoint", sim.url, "--model", "tiny").stdout


def test_a_page_instead_of_an_api(kvbench: Kvbench, toy: Path, page: str) -> None:
    one_clear_line(kvbench("run", toy, "--endpoint", page), 2, "URL")


def test_a_context_overflow_is_a_record_and_enough_of_them_exit_3(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    toy.write_text(lines(turn("a", 0, "x " * 40_000), turn("b", 0, "hello")))
    done = kvbench("run", toy, "--endpoint", "sim:tiny", "--json")
    assert done.returncode == 3, done.stderr
    got = json.loads(done.stdout)
    assert got["requests"] == {"ok": 1, "failed": 1, "skipped": 0, "retried": 0}
    failed = next(r for r in records(got["run"], tmp_path) if r["error_class"])
    assert failed["error_class"] == "context_overflow"
    assert failed["http_status"] == 400


@pytest.mark.parametrize(
    "options",
    [
        ["--time-scale", "-1"],
        ["--sessions", "0"],
        ["--rate", "1", "--sessions", "2"],
        ["--history", "both"],
        ["--nonsense"],
        ["--max-pause", "nan"],
    ],
)
def test_options_that_cannot_be_meant(kvbench: Kvbench, toy: Path, options: list[str]) -> None:
    done = kvbench("run", toy, "--endpoint", "sim", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert options[0] in done.stderr


def test_an_output_directory_that_cannot_be_made(kvbench: Kvbench, toy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_clear_line(kvbench("run", toy, "--endpoint", "sim", "--out", "file"), 2, "file")


ROWS = [
    {"timestamp": 0, "input_length": 655, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 500, "input_length": 1024, "output_length": 5, "hash_ids": [0, 2]},
]


def test_a_published_trace_runs_as_it_is_and_the_run_says_how_it_was_read(
    kvbench: Kvbench, tmp_path: Path, sim: SimProcess
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = kvbench("run", path, "--endpoint", sim.url, "--time-scale", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert "import: mooncake: 2 rows; 2 sessions, 2 turns\n" in done.stderr
    assert json.loads(done.stdout)["input_tokens"] == 655 + 1024
    (run_dir,) = (tmp_path / "runs").iterdir()
    info = json.loads((run_dir / "run.json").read_text())
    assert (info["trace"]["format"], info["trace"]["import"]["units"], info["trace"]["file"]) == (
        "mooncake",
        2,
        "m.jsonl",
    )
    again = kvbench("trace", "info", run_dir / "trace.jsonl", "--json")
    assert json.loads(again.stdout)["input_tokens"] == 655 + 1024


def test_models_of_the_trace_are_mapped(kvbench: Kvbench, tmp_path: Path, sim: SimProcess) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({**row, "model": f"big-{at}"}) + "\n" for at, row in enumerate(ROWS)))
    common = ("run", path, "--endpoint", sim.url, "--time-scale", 0)
    served = served_model(sim)
    done = kvbench(*common, "--model-map", f"big-0={served}")
    assert done.returncode == 2
    assert f"{path}:2: names the model 'big-1', which the endpoint does not serve" in done.stderr
    assert "--model-map big-1=M" in done.stderr
    assert not (tmp_path / "runs").exists(), "found before the first turn, whatever turn it is that names it"
    done = kvbench(*common, "--model-map", f"big-0={served}", "--model-map", f"big-1={served}")
    assert done.returncode == 0, done.stderr
    for pairs, message in (
        (["big-0"], "--model-map big-0: must be A=B"),
        (["bigg-0=a"], "no turn of the trace names the model 'bigg-0'\n  next: it names big-0, big-1"),
        (["a=b", "a=c"], "--model-map gives a twice: b and c"),
    ):
        done = kvbench(*common, *(word for pair in pairs for word in ("--model-map", pair)))
        assert done.returncode == 2
        assert message in done.stderr


def test_an_error_that_quotes_a_trace_drives_no_terminal(kvbench: Kvbench, tmp_path: Path, sim: SimProcess) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({**ROWS[0], "model": "\x1b[31mred\u202e"}) + "\n")
    done = kvbench("run", path, "--endpoint", sim.url)
    assert done.returncode == 2
    assert "--model-map \\x1b[31mred\\u202e=M" in done.stderr
    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr


def served_model(sim: SimProcess) -> str:
    with urllib.request.urlopen(f"{sim.url}/v1/models") as answer:
        return str(json.load(answer)["data"][0]["id"])
