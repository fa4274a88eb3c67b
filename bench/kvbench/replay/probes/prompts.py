"""Prompts of a wanted length that nothing has sent before, by name: the same name is the same prompt again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from kvbench.endpoints.client import Endpoint
from kvbench.errors import KvbenchError
from kvbench.model import Record
from kvbench.traces.text import BlockText, candidates_text, check_trial, palette_of, read_candidates, trial
from kvbench.traces.tokenizers import load_tokenizer
from kvbench.traces.words import WORDS

_SCOPE = "probe"


class ProbePrompts:
    """How prompts are made for one endpoint.

    As token ids where it takes those: lengths are exact. Else as the text of one user message of single-token words,
    counted by the profile's tokenizer where it names one, and else by the lengths that the first answers report.
    """

    def __init__(self, run_id: str, blocks: BlockText | None, *, as_ids: bool, counted_by: str) -> None:
        self.as_ids = as_ids
        self.counted_by = counted_by
        self._run_id = run_id
        self._blocks = blocks
        self._lengths: dict[str, int] = {}
        self._added = 0

    @classmethod
    async def of(cls, endpoint: Endpoint, run_id: str) -> ProbePrompts:
        """ConfigError for a tokenizer of the profile that cannot make words."""
        named = endpoint.profile.tokenizer
        as_ids = await endpoint.takes_token_ids()
        if named is not None:
            tokenizer = load_tokenizer(named)
            blocks = BlockText(palette_of(tokenizer.encode, f"tokenizer {tokenizer.name}"))
            return cls(run_id, blocks, as_ids=as_ids, counted_by=f"tokenizer {tokenizer.name}")
        try:
            ids = await endpoint.tokenize_text(candidates_text())
        except KvbenchError:
            ids = None
        if ids is None:
            return cls(run_id, None, as_ids=False, counted_by="the lengths that answers report")
        palette = read_candidates(ids, "the server's /tokenize")
        text, expected = trial(palette)
        check_trial(expected, await endpoint.tokenize_text(text) or [], "the server's /tokenize")
        return cls(run_id, BlockText(palette), as_ids=as_ids, counted_by="the server's /tokenize")

    @property
    def exact(self) -> bool:
        """Whether lengths are counted by the endpoint's tokenizer, or one that was named."""
        return self._blocks is not None

    def content(self, name: str, tokens: int, *, extends: str | None = None, kept: int = 0) -> dict[str, Any]:
        """`messages` or `prompt` for Endpoint.build_body: `tokens` tokens, with the chat template's.

        extends: the first `kept` tokens are those of this other name's prompt.
        """
        length = self._lengths.setdefault(name, max(1, tokens - (0 if self.as_ids else self._added)))
        keep = 0 if extends is None else max(0, min(length, kept - (0 if self.as_ids else self._added)))
        if self._blocks is None:
            words = [*self._words(extends, keep), *self._words(name, length)[keep:]]
            return {"messages": [{"role": "user", "content": " ".join(words)}]}
        ids = self._blocks.ids(_SCOPE, self._key(name), length)
        if keep:
            ids = self._blocks.ids(_SCOPE, self._key(extends), keep) + ids[keep:]
        if self.as_ids:
            return {"prompt": ids.tolist()}
        return {"messages": [{"role": "user", "content": self._blocks.join(ids)}]}

    def learn(self, name: str, record: Record) -> None:
        """What the chat template adds, from the first answers that report their prompt's length."""
        reported = record.usage.input_tokens
        if not self.as_ids and self._added == 0 and reported is not None:
            self._added = max(0, reported - self._lengths[name])

    def described(self) -> dict[str, Any]:
        """For run.json."""
        return {"as": "token ids" if self.as_ids else "text", "counted_by": self.counted_by}

    def _key(self, name: str | None) -> str:
        return f"{self._run_id}/{name}"

    def _words(self, name: str | None, length: int) -> Sequence[str]:
        stream = hashlib.shake_128(self._key(name).encode()).digest(length * 2)
        return [WORDS[int.from_bytes(stream[i : i + 2]) % len(WORDS)] for i in range(0, 2 * length, 2)]
