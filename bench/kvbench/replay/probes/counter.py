"""Exact numbers of tokens: by the server's own /tokenize, else by the tokenizer that the profile names."""

from __future__ import annotations

from collections.abc import Sequence

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
