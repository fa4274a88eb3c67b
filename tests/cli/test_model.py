from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvbench.analysis.models import catalogue
from kvbench.cli.model import model
from kvbench.errors import InputError, KvbenchError, UsageError

app = typer.Typer()
app.command("model")(model)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_without_a_name_the_catalogue_is_listed() -> None:
    lines = call().stdout.splitlines()
    assert lines[0].split() == ["model", "B/token", "B/session", "cache", "status", "architecture"]
    assert [line.split()[0] for line in lines[1:]] == list(catalogue())
    flash = next(line for line in lines if line.startswith("deepseek-v4-flash"))
    assert flash.split()[1:5] == ["3,514.25", "3,214,336", "fp8_ds_mla", "known"]
    rows = json.loads(call("--json").stdout)["models"]
    assert {row["name"]: row["bytes_per_token"] for row in rows}["deepseek-v1"] == 389_120
    assert {row["status"] for row in rows} == {"known", "from memory, check against a config.json"}


def test_the_object_that_scripts_read() -> None:
    found = json.loads(call("deepseek-v4.1-flash", "--json").stdout)
    assert found["name"] == "deepseek-v4.1-flash"
    assert found["bytes_per_token"] == 890
    assert isinstance(found["bytes_per_token"], int)
    assert found["bytes_per_session"] == 2_727_936
    assert found["derivation"][3] == {"text": "2.5 rows x (288 + 68) B = 890 B/token", "value": 890, "unit": "B/token"}
    assert {source["what"] for source in found["sources"]} == {"config", "claimed", "allocated"}
    assert found["claimed"]["bytes_per_token"] == 890
    assert [layout["bytes_per_token"] for layout in found["allocated"]] == [1_800, 1_650, 900, 890]
    assert found["context"] is None
    assert json.loads(call("deepseek-v4-flash", "--json").stdout)["bytes_per_token"] == 3514.25


def test_ranks_and_context() -> None:
    found = json.loads(call("kimi-k3", "--tp", 8, "--context", 1_000_000, "--json").stdout)
    assert found["tensor_parallel"] == {
        "ranks": 8,
        "bytes_per_token_per_rank": 13_824,
        "bytes_per_session_per_rank": 56_171_520,
        "bytes_per_token_all_ranks": 110_592,
        "bytes_per_session_all_ranks": 449_372_160,
        "copies_of_token_bytes": 8,
        "copies_of_session_bytes": 1,
    }
    assert found["context"]["bytes"] == 14_273_372_160
    assert found["context"]["bytes_per_rank"] == 13_880_171_520
    llama = json.loads(call("llama-3-8b", "--tp", 4, "--json").stdout)["allocated"][0]
    assert (llama["bytes_per_token"], llama["bytes_per_token_per_rank"]) == (131_072, 32_768)
    assert "allocated     131,072 B/token (32,768 a rank): vLLM" in call("llama-3-8b", "--tp", 4).stdout
    text = call("kimi-k3", "--tp", 8, "--context", 1_000_000).stdout
    assert "per rank      13,824 B/token + 56,171,520 B/session on each of 8" in text
    assert "session       14,273,372,160 B (14.3 GB) at 1,000,000 tokens; 3.1% of it does not grow any more" in text


def test_three_figures_apart() -> None:
    lines = call("deepseek-v4-flash").stdout.splitlines()
    assert lines[1] == "claimed       3,514 B/token"
    assert lines[2] == "architecture  3,514.25 B/token + 3,214,336 B/session (3.21 MB)"
    assert lines[3] == "allocated     3,915 B/token: vLLM, fp8_ds_mla, block 256"
    assert "claimed       no figure of the vendor is known" in call("llama-3-8b").stdout


def test_a_config_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 2,
                "dtype": "float16",
            }
        )
    )
    found = json.loads(call(path, "--json").stdout)
    assert (found["name"], found["bytes_per_token"], found["cache_dtype"]) == ("my-model", 2 * 2 * 64 * 2, "fp16")
    assert found["sources"][0] == {"what": "config", "source": str(path), "status": "read"}
    assert "head_dim 32: hidden_size 64 / num_attention_heads 2" in found["assumed"]


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (("gpt-5",), InputError, "no model of that name"),
        (("llama-3-8b", "--tp", 3), UsageError, "--tp 3 does not split num_attention_heads 32 evenly"),
        (("llama-3-8b", "--tp", 0), UsageError, "--tp 0 is not allowed"),
        (("llama-3-8b", "--context", 0), UsageError, "--context 0 is not allowed"),
        (("llama-3-8b", "--dtype", "nvfp4"), UsageError, "--dtype nvfp4 is not a cache dtype"),
        (("--tp", 8), UsageError, "are for one model"),
    ],
)
def test_what_cannot_be_answered(words: tuple[object, ...], kind: type[KvbenchError], says: str) -> None:
    result = call(*words)
    assert isinstance(result.exception, kind)
    assert says in result.exception.message
    assert result.exception.exit_code == 2
    assert result.stdout == ""
