"""Exact numbers of tokens: by the server's own /tokenize, else by the tokenizer that the profile names."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvbench.endpoints.client import Endpoint
from kvbench.errors import KvbenchError
from kvbench.model import Message
from kvbench.traces.tokenizers import Tokenizer, load_tokenizer


class TokenCounter:
    """Counts of texts. source: in words, None where nothing here can count."""

    def __init__(self, endpoint: Endpoint, local: Tokenizer | None, *, server: bool) -> None:
        self._endpoint = endpoint
        self._local = local
        self.server = server

    @classmethod
    async def of(cls, endpoint: Endpoint) -> TokenCounter:
        """InputError or ConfigError for a tokenizer of the profile that cannot be used."""
        named = endpoint.profile.tokenizer
        try:
            server = await endpoint.tokenize_text("Which of these can be counted?") is not None
        except KvbenchError:
            server = False
        return cls(endpoint, None if named is None else load_tokenizer(named), server=server)

    @property
    def source(self) -> str | None:
        if self.server:
            return "the server's /tokenize"
        return None if self._local is None else self.local_name

    @property
    def local_name(self) -> str | None:
        return None if self._local is None else f"tokenizer {self._local.name}"

    async def count(self, text: str) -> int | None:
        """Tokens of a text alone; None where nothing here can count."""
        if not text:
            return 0
        if self.server:
            ids = await self._endpoint.tokenize_text(text)
            return None if ids is None else len(ids)
        return self.local_count(text)

    def local_count(self, text: str) -> int | None:
        """By the profile's tokenizer, also where the server's is there."""
        return None if self._local is None else len(self._local.encode(text))

    async def prompt(self, messages: Sequence[Message]) -> int | None:
        """Tokens of a whole chat, its template's among them, where the server tells them."""
        if not self.server:
            return None
        try:
            ids = await self._endpoint.tokenize(messages, thinking=False)
        except KvbenchError:
            return None
        return None if ids is None else len(ids)


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The exact tokens of one request, written beside its record. None: nothing could count them.

    text_tokens: of what was sent, without the template's. prompt_tokens: with them, as the server tells. local_tokens:
    the text by the profile's tokenizer, where the server's was asked too. output_tokens, reasoning_tokens: of the texts
    that came. output_by: "ids" (the server gave the generated ids) or "text" (encoded again). repeated: the text that
    came is the one asked for.
    """

    request: str
    kind: str = ""
    text_tokens: int | None = None
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    output_by: str | None = None
    repeated: bool | None = None
