"""Endpoint TOML and URLs: what is read, what is refused and how the refusal names the place."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvbench.endpoints import profile as profile_module
from kvbench.endpoints.profile import DEFAULT_KEY_ENV, EndpointProfile, load_profile
from kvbench.endpoints.secrets import Redactor, Secret
from kvbench.errors import ConfigError, InputError, KvbenchError, UsageError

KEY = "sk-test-0123456789abcdef"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "endpoint.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEFAULT_KEY_ENV, raising=False)


FULL = """
url = "https://api.example.com/v1/"
dialect = "vllm"
model = "m"
api = "completions"
stream = false
key_env = "EXAMPLE_KEY"
proxy = "http://proxy.example:3128"
headers = {"x-team" = "bench-secret"}
extra_body = {temperature = 0.0}
metrics_urls = ["http://127.0.0.1:8000/metrics?token=abc"]

[timeouts]
connect_s = 1
idle_s = 2.5

[limits]
requests_per_minute = 60

[expected_hits]
rule = "block"
block_size = 16
"""


def test_every_field_is_read(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, FULL))
    assert profile.url == "https://api.example.com/v1"
    assert profile.root_url == "https://api.example.com"
    assert (profile.dialect, profile.model, profile.api, profile.stream) == ("vllm", "m", "completions", False)
    assert profile.timeouts.connect_s == 1.0
    assert profile.timeouts.idle_s == 2.5
    assert profile.timeouts.total_s == EndpointProfile(url="http://x").timeouts.total_s
    assert profile.limits.requests_per_minute == 60
    assert (profile.expected_hits.rule, profile.expected_hits.block_size) == ("block", 16)
    assert profile.extra_body == {"temperature": 0.0}


def test_safe_dict_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_KEY", KEY)
    plain = load_profile(written(tmp_path, FULL)).safe_dict()
    text = msgspec.json.encode(plain).decode()
    assert KEY not in text
    assert "bench-secret" not in text
    assert "token=abc" not in text
    assert plain["key"] == "from env EXAMPLE_KEY"
    assert plain["headers"] == {"x-team": "[redacted]"}


@pytest.mark.parametrize(
    ("text", "line", "mentions"),
    [
        ('url = "http://h"\nmodle = "m"\n', 2, ["modle", "model", "dialect"]),
        ('url = "http://h"\napi_key = "sk-1"\n', 2, ["api_key", "key_env"]),
        ('url = "http://h"\n[timeouts]\n\nidle = 3\n', 4, ["timeouts.idle", "idle_s"]),
        ('url = "http://h"\ntimeouts = {idle = 3}\n', 2, ["timeouts.idle", "idle_s"]),
        ('url = "http://h"\n[timeouts]\nidle_s = "3"\n', 3, ["timeouts.idle_s", "float"]),
        ('url = "http://h"\n[timeouts]\nidle_s = 0\n', 3, ["timeouts.idle_s", "above 0"]),
        ('url = "http://h"\n[timeouts]\nidle_s = nan\n', 3, ["timeouts.idle_s"]),
        ('url = "http://h"\n[limits]\nrequests_per_minute = -1\n', 3, ["limits.requests_per_minute"]),
        ('url = "http://h"\n\ndialect = "openia"\n', 3, ["dialect", "openia", "allowed: auto, openai, vllm, deepseek"]),
        ('url = "http://h"\nstream = 1\n', 2, ["stream", "bool"]),
        ('model = "m"\n', None, ["url"]),
        ('url = "http://h"\nx = [1,\n', 2, ["TOML"]),
        ('url = "http://user:pw12345@h"\n', 1, ["url", "credentials"]),
        ('url = "http://h"\nproxy = "http://u:pw12345@p"\n', 2, ["proxy", "credentials"]),
        ('url = "http://h"\nmetrics_urls = ["http://u:pw12345@p"]\n', 2, ["metrics_urls", "credentials"]),
        ('url = "ftp://h"\n', 1, ["ftp", "https"]),
        ('url = "http://h/v1/chat/completions"\n', 1, ["base URL"]),
        ('url = "http://h?x=1"\n', 1, ["base URL"]),
        ('url = "http://h:99999"\n', 1, ["not a valid URL"]),
        ('url = "http://h"\n[headers]\nAuthorization = "Bearer pw12345"\n', 3, ["headers.Authorization", "key_env"]),
        ('url = "http://h"\n[headers]\n"a b" = "c"\n', 3, ["headers.a b"]),
        ('url = "http://h"\n[headers]\nx = "a\\nb"\n', 3, ["headers.x"]),
        ('url = "http://h"\n[extra_body]\nstream = true\n', 3, ["extra_body.stream"]),
        ('url = "http://h"\nkey_env = "A"\nkey_file = "b"\n', 3, ["key_env", "key_file"]),
        ('url = "http://h"\nca_file = "missing.pem"\n', 2, ["ca_file", "missing.pem"]),
        (
            'url = "http://h"\n[expected_hits]\nrule = "lucky"\n',
            3,
            ["expected_hits.rule", "lucky", "allowed: auto, block"],
        ),
        ('url = "http://h"\nhash_prompts = "tokens"\n', 2, ["hash_prompts", "allowed: auto, ids, text"]),
        ('url = "http://h"\n[expected_hits]\nrule = "block"\nblock_size = 0\n', 4, ["expected_hits.block_size"]),
        ('url = "http://h"\n[expected_hits]\nrule = "units"\nblock_size = 16\n', 4, ["block_size", "block-replay"]),
        ('url = "http://h"\n[expected_hits]\ngranularity_tokens = 64\n', 3, ["granularity_tokens", "rule units"]),
        ('url = "http://h"\n[expected_hits]\nrule = "units"\nbuild_s = -1.0\n', 4, ["build_s", "-1.0"]),
        ('url = "http://h"\n[expected_hits]\nrule = "units"\nlifetime_s = nan\n', 4, ["lifetime_s", "nan"]),
        ('url = "http://h"\n[expected_hits]\nrule = "units"\ninterval_tokens = 0\n', 4, ["interval_tokens"]),
    ],
)
def test_a_wrong_profile_names_file_line_and_what_is_allowed(
    tmp_path: Path, text: str, line: int | None, mentions: list[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(path if line is None else f"{path}:{line}:")
    for word in mentions:
        assert word in message
    assert "pw12345" not in message


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(b'url = "\xff"')
    with pytest.raises(InputError, match="UTF-8"):
        load_profile(str(path))


def test_a_url_takes_its_key_from_one_variable_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert load_profile("http://127.0.0.1:8000/").key_env is None
    assert load_profile("http://127.0.0.1:8000/").url == "http://127.0.0.1:8000"
    monkeypatch.setenv(DEFAULT_KEY_ENV, KEY)
    profile = load_profile("http://127.0.0.1:8000")
    assert profile.key_env == DEFAULT_KEY_ENV
    key, warnings = profile.read_key()
    assert key is not None
    assert key.reveal() == KEY
    assert warnings == []


@pytest.mark.parametrize("spec", ["nowhere.toml", "localhost:8000", "ftp://h", "http://", "http://me:secretpw@h"])
def test_neither_url_nor_file(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(spec)
    assert caught.value.hint is not None
    assert "secretpw" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [("t.json", "{here}/t.json"), ("tiktoken:a/b.tiktoken", "tiktoken:{here}/a/b.tiktoken"), ("deepseek", "deepseek")],
)
def test_a_tokenizer_is_relative_to_the_profile(tmp_path: Path, spec: str, path: str) -> None:
    profile = load_profile(written(tmp_path, f'url = "http://h"\ntokenizer = "{spec}"\nhash_prompts = "text"\n'))
    assert profile.tokenizer == path.format(here=tmp_path)
    assert profile.hash_prompts == "text"


def test_what_stands_for_hash_ids_is_one_of_three(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hash_prompts") as error:
        load_profile(written(tmp_path, 'url = "http://h"\nhash_prompts = "words"\n'))
    assert error.value.line == 2


def test_key_file_is_relative_to_the_profile_and_warns_when_others_may_read_it(tmp_path: Path) -> None:
    key_file = tmp_path / "key.txt"
    key_file.write_text(f"{KEY}\nsecond line\n")
    profile = load_profile(written(tmp_path, 'url = "http://h"\nkey_file = "key.txt"\n'))
    key_file.chmod(0o644)
    key, warnings = profile.read_key()
    assert key is not None
    assert key.reveal() == KEY
    assert [w.code for w in warnings] == ["key_file_readable"]
    assert warnings[0].advice is not None
    key_file.chmod(0o640)
    assert [w.code for w in profile.read_key()[1]] == ["key_file_readable"]
    key_file.chmod(0o600)
    assert profile.read_key()[1] == []


@pytest.mark.parametrize("value", ["", "  ", "two words", "k\u00e9y-123456", "a\x01bcdefg"])
def test_an_unusable_key_is_named_by_its_source_never_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EXAMPLE_KEY", value)
    with pytest.raises(ConfigError, match="EXAMPLE_KEY") as caught:
        EndpointProfile(url="http://h", key_env="EXAMPLE_KEY").read_key()
    assert not value.strip() or value.strip() not in str(caught.value)


def test_missing_key_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXAMPLE_KEY", raising=False)
    with pytest.raises(KvbenchError, match="EXAMPLE_KEY is not set"):
        EndpointProfile(url="http://h", key_env="EXAMPLE_KEY").read_key()
    with pytest.raises(KvbenchError, match=r"gone\.txt"):
        EndpointProfile(url="http://h", key_file=str(tmp_path / "gone.txt")).read_key()


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {[secret]} {secret!s:>40}"
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)


def test_redactor_goes_into_nested_values() -> None:
    redactor = Redactor([KEY, KEY + "-long", ""])
    assert redactor.text(f"a {KEY}-long b {KEY}") == "a [redacted] b [redacted]"
    assert redactor.value({"a": [f"x{KEY}", 1, None], KEY: 2.5}) == {
        "a": ["x[redacted]", 1, None],
        "[redacted]": 2.5,
    }


def test_the_documented_example_is_a_whole_profile(tmp_path: Path) -> None:
    example = "\n".join(line[4:] for line in (profile_module.__doc__ or "").splitlines() if line.startswith("    "))
    (tmp_path / "ca.pem").write_text("")
    profile = load_profile(written(tmp_path, example))
    assert profile.timeouts == EndpointProfile(url="http://h").timeouts
    assert profile.ca_file == str(tmp_path / "ca.pem")
    for field in EndpointProfile.__struct_fields__:
        assert re.search(rf"\b{field}\b", example), field
