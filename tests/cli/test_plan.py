"""`kvbench plan`: what is refused, and where it says it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvbench.analysis.planning.source import line_of
from kvbench.cli.plan import plan
from kvbench.errors import InputError, KvbenchError, RefusedError, UsageError

app = typer.Typer()
app.command("plan")(plan)


def call(*words: object) -> str:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def refused(*words: object) -> KvbenchError:
    with pytest.raises(KvbenchError) as caught:
        call(*words)
    return caught.value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing to plan: sessions per rank: needs model.name, memory.kv"),
        (("--kv-memory", "1e9", "--context", "10"), "sessions per rank: needs model.name;"),
        (("--model", "nosuch", "--kv-memory", "1e9"), "--model: nosuch: no model of that name"),
        (("--model", "llama-3-8b", "--tp", "3"), "--tp: 3 does not split num_attention_heads 32 evenly"),
        (("--tp", "2"), "--tp: a model's name is missing"),
        (("--kv-memory", "plenty"), "--kv-memory: 'plenty' is no number of bytes"),
        (("--kv-memory", "5 gb"), "--kv-memory: '5 gb' is no number of bytes; allowed: 40e9"),
        (("--kv-memory=-5",), "--kv-memory: '-5' is no number of bytes"),
        (("--kv-memory", "0"), "--kv-memory: 0 is not allowed: from 1"),
        (("--kv-memory", "1e30"), "--kv-memory: 1e30 is not allowed"),
        (("--kv-memory", "1", "--hbm", "2"), "--hbm: memory.kv is given too"),
        (("--hbm", "80e9", "--weights", "1"), "--activations: missing beside hbm, weights"),
        (
            ("--hbm", "8", "--weights", "5", "--activations", "2", "--reserve", "1"),
            "--hbm: no memory is left for KV: 8 B less weights 5, activations 2 and reserve 1 is 0 B",
        ),
        (("--context", "0"), "--context: 0 is not allowed: from 1"),
        (("--context", "10", "--new-tokens", "11"), "--new-tokens: 11 is more than the context, 10 tokens"),
        (("--context", "10", "--new-tokens", "6", "--output", "5"), "--new-tokens: 6 and an answer of 5 are more than"),
        (("--context", "10", "--trace", "agent-trace.jsonl"), "--context: a trace is given too"),
        (("--trace", "nosuch"), "--trace: nosuch: no such file, and no bundled workload"),
    ],
)
def test_options_that_cannot_be_meant(words: tuple[str, ...], says: str) -> None:
    error = refused(*words)
    assert isinstance(error, UsageError)
    assert says in error.message


MODEL = '[model]\nname = "llama-3-8b"\n[memory]\nkv = 1e9\n'
RATES = '[prices]\ncurrency = "USD"\nmiss = 3\nhit = 0.3\noutput = 15\n'
BOOK = '[prices]\nbook = "deepseek"\nmodel = "deepseek-flash"\n'


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        ("x = 1", 1, "x", "unknown field; allowed here: name, model, memory"),
        ("[memory]\nkvv = 1", 2, "memory.kvv", "unknown field; allowed here: kv, hbm"),
        ("\nmemory = 3", 2, "memory", "expected object, got int"),
        ("a = = 1", 1, None, "not valid TOML"),
        ("[memory]\nkv = [1]", 2, "memory.kv", "expected int | float | str, got array"),
        ("[memory]\nkv = inf", 2, "memory.kv", "inf is not allowed"),
        ("[memory]\nkv = -1", 2, "memory.kv", "-1 is not allowed"),
        (
            "[memory]\nhbm = 9\nactivations = 0\nreserve = 0\nweights = { a = 'x' }",
            5,
            "memory.weights.a",
            "'x' is no number of bytes",
        ),
        ("[model]\nbytes_per_token = 1", 1, "model.bytes_per_session", "missing"),
        (
            "[model]\nbytes_per_token = 0\nbytes_per_session = 0",
            2,
            "model.bytes_per_token",
            "from 0.001 to 1,000,000,000",
        ),
        ("[model]\nname = 'kimi-k3'\ndtype = 'fp3'", 3, "model.dtype", "not a cache dtype"),
        ("[traffic]\ncontext = 1.5", 2, "traffic.context", "expected int, got float"),
        (f"[traffic]\ncontext = 9\nshared_tokens = 9\n{MODEL}", 3, "traffic.shared_tokens", "no limit"),
        (
            f"[traffic]\ncontext = 100\nnew_tokens = 30\noutput_tokens = 10\nturns = 4\n{RATES}",
            5,
            "traffic.turns",
            "4 turns of 30 new tokens each are more than a prompt of 90",
        ),
        ("[traffic]\nformat = 'weka'", 2, "traffic.format", "there is no trace"),
        ("[speed]\nprefill_tokens_per_s = 0", 2, "speed.prefill_tokens_per_s", "above 0"),
        ("[speed]\ntpot_s = nan", 2, "speed.tpot_s", "nan is not allowed"),
        ("[replay]\nwindow_lost = 1.5", 2, "replay.window_lost", "from 0 to 1"),
        ("[replay]\nwindow_ttl_s = 4", 2, "replay.window_ttl_s", "no trace whose pauses"),
        ("[[tier]]\nname = 'a'\nbytes = 1", 1, "tier[0].bytes_per_s", "missing"),
        (
            "[[tier]]\nname = 'a'\nbytes = 1\nbytes_per_s = 1\n[[tier]]\nname = 'A'\nbytes = 1\nbytes_per_s = 1",
            6,
            "tier[1].name",
            "another one for each",
        ),
        ("[[tier]]\nname = 'hbm'\nbytes = 1\nbytes_per_s = 1", 2, "tier[0].name", "not HBM"),
        ("[[tier]]\nname = 'a'\nbytes = 1\nbytes_per_s = 0", 4, "tier[0].bytes_per_s", "0 is not allowed"),
        ("[prices]\nmiss = 1\nhit = 0.1\noutput = 1", 1, "prices.currency", "missing"),
        ("[prices]\ncurrency = 'USD'\nmiss = 1\nhit = 2\noutput = 1", 4, "prices.hit", "costs more than a miss"),
        ("[prices]\nmiss = 1\nhit = 1\noutput = -1", 4, "prices.output", "-1 is not allowed"),
        ("[prices]\nmodel = 'x'", 2, "prices.model", "no price book"),
        ("[prices]\nbook = 'deepseek'", 1, "prices.model", "missing"),
        ("[prices]\nbook = 'nosuch'\nmodel = 'x'", 2, "prices.book", "no price book 'nosuch'"),
        (f"{BOOK}miss = 1", 4, "prices.miss", "a book is given too"),
        (f"{BOOK}at = 2020-01-01", 4, "prices.at", "no USD row for deepseek-flash at 2020-01-01"),
        (f"{BOOK}currency = 'EUR'", 4, "prices.currency", "there are CNY, USD"),
        (f"{RATES}wanted = 4", 6, "prices.wanted", "price 4 is not reached by any hit rate"),
        ("[task]\ninput_tokens = 1", 1, "task.output_tokens", "missing"),
        ("[task]\ninput_tokens = 1\noutput_tokens = 1\nhit_rate = 2", 4, "task.hit_rate", "from 0 to 1"),
        ("[task]\ninput_tokens = 1\noutput_tokens = 1\nhit_rate = nan", 4, "task.hit_rate", "not allowed: from 0"),
        (f"{RATES}wanted = nan", 6, "prices.wanted", "not allowed: from 0"),
        ("[prices]\ncurrency = 'USD'\nmiss = nan\nhit = 1\noutput = 1", 3, "prices.miss", "not allowed: from 0"),
        ("[model]\nbytes_per_token = nan", 2, "model.bytes_per_token", "not allowed: from"),
        ("[model]\nbytes_per_session = inf", 2, "model.bytes_per_session", "not allowed: from"),
    ],
)
def test_a_profile_that_cannot_be_meant(tmp_path: Path, text: str, line: int, field: str | None, says: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    error = refused(path)
    assert isinstance(error, InputError)
    assert (error.line, error.field) == (line, field)
    assert says in error.message
    assert str(path) in error.message


def test_a_profile_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path).message
    assert "cannot be read" in refused(tmp_path / "nosuch.toml").message
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    assert "not UTF-8 at byte 8" in refused(tmp_path / "latin.toml").message


def test_an_option_comes_before_the_profile_and_is_named_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"{MODEL}[traffic]\ncontext = 100\n")
    assert "1,907 of 4 tokens" in call(path, "--context", 4)  # 1e9 / (131,072 x 4) is 1,907.3
    error = refused(path, "--context", 0)
    assert isinstance(error, UsageError)
    assert error.message.startswith("--context: 0 is not allowed")


def test_a_trace_beside_the_profile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "t.jsonl").write_text(
        '{"kvbench_trace": 1, "name": "beside", "block_size": 4}\n'
        '{"session_id": "s", "turn": 0, "start_s": 0, "input_tokens": 8, "output_tokens": 1, "hash_ids": [1, 2]}\n'
    )
    (tmp_path / "deep" / "plan.toml").write_text(f'{MODEL}[traffic]\ntrace = "t.jsonl"\n')
    monkeypatch.chdir(tmp_path)
    assert "beside: 1 request" in call("deep/plan.toml")


def test_what_prompts_share_has_to_be_known(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    error = refused("--trace", path, "--model", "llama-3-8b", "--kv-memory", "1e9")
    assert isinstance(error, RefusedError)
    assert "which prompts begin alike is not known" in error.message


def test_how_many_run_at_a_time_has_to_be_known(tmp_path: Path) -> None:
    """One turn at one moment: no session takes any time, so fixed bytes in HBM cannot be counted."""
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"kvbench_trace": 1, "name": "t", "block_size": 4}\n'
        '{"session_id": "s", "turn": 0, "start_s": 0, "input_tokens": 8, "output_tokens": 1, "hash_ids": [1, 2]}\n'
    )
    out = call("--trace", path, "--model", "deepseek-v4.1-flash", "--kv-memory", "1e9")
    assert "hit rate by tier: needs memory.running" in out
    assert "hits by token" not in out


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("write_5m = 4", "charges for writing to the cache"),
        ('write = "miss"\ninput_below = 1000', "has a price for each length of prompt"),
    ],
)
def test_price_rows_that_a_plan_cannot_count_with(tmp_path: Path, row: str, says: str) -> None:
    (tmp_path / "book.toml").write_text(
        'kvbench_prices = 1\nname = "b"\nprovider = "p"\ncurrency = "USD"\nchecked = 2026-01-01\n[[model]]\nid = "m"\n'
        '[[row]]\nmodel = "m"\ncurrency = "USD"\nfrom = 2026-01-01T00:00:00Z\nmiss = 3\nhit = 1\noutput = 5\n'
        f'status = "official"\nsource = "s"\n{row}\n'
    )
    path = tmp_path / "plan.toml"
    path.write_text(
        '[prices]\nbook = "book.toml"\nmodel = "m"\n[task]\ninput_tokens = 1\noutput_tokens = 1\nhit_rate = 0\n'
    )
    error = refused(path)
    assert isinstance(error, RefusedError)
    assert says in error.message


def test_where_a_field_stands() -> None:
    text = 'a.b = 1\nt = { x = 1 }\n[m]\n"b" = 2\n[[r]]\nb = 1\n[[r]]\nc = 1\nb = 3\n'
    assert line_of(text, "a.b") == 1
    assert line_of(text, "t.x") == 2
    assert line_of(text, "m") == 3
    assert line_of(text, "m.b") == 4
    assert line_of(text, "r[0].b") == 6
    assert line_of(text, "r[1].b") == 9
    assert line_of(text, "r[1].d") == 7
    assert line_of(text, "nowhere.x") is None


def test_a_catalogue_name_comes_before_a_directory_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "kimi-k3").mkdir()
    (tmp_path / "deepseek").mkdir()
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[model]\nname = "kimi-k3"\n[memory]\nkv = 40e9\n[traffic]\ncontext = 131072\n{BOOK}at = 2026-11-30\n'
    )
    assert "17 of 131,072 tokens" in call(path)


@pytest.mark.parametrize(
    ("model", "more", "note"),
    [
        (
            "llama-3-8b",
            "[memory]\nkv = 1e9\nrunning = 3\n",
            "memory.running changes nothing: a session has no fixed bytes",
        ),
        ("kimi-k3", "[memory]\nkv = 1e9\nrunning = 3\n", "changes nothing: idle sessions keep their fixed bytes too"),
        ("kimi-k3", "[memory]\nkv = 1e9\n[replay]\nwindow_lost = 0.5\n", "replay is not counted"),
    ],
)
def test_what_is_said_and_changes_nothing_is_told(tmp_path: Path, model: str, more: str, note: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f'[model]\nname = "{model}"\n[traffic]\ntrace = "agent-trace.jsonl"\n{more}')
    assert note in call(path)
