"""What the simulated model writes: plausible words, whole tokens, the same for the same prompt.

Every word has a length that is a multiple of four bytes, so the text, sent back as an assistant message, is tokenised
into the very ids that were generated.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.sim.tokenizer import END, TOKEN_BYTES

_WORDS = (
    *("the ", "and ", "for ", "run ", "all ", "one ", "log ", "key ", "now ", "old ", "new ", "set ", "use ", "two "),
    *("handler ", "request ", "section ", "version ", "changes ", "failing ", "default ", "another ", "fixture "),
    *("message ", "returns ", "because ", "command ", "pattern ", "library ", "pending ", "session ", "parsers "),
    *("ok.\n", "result. "),
)
_PAGE_WORDS = 128
_REPEAT = "Repeat exactly"
_NATURAL_TOKENS = (16, 400)
_OTHER_SEED = 1 << 64
_LEAST_LIKELY = 2.0
"""Nats below certainty."""


class OutputText:
    """The tokens a request will generate, made page by page as they are asked for.

    length_tokens counts the sampled end mark where the model stops by itself, as vLLM's usage does. The first
    thinking_tokens of it are reasoning, which comes on top of what the model would say without.
    """

    def __init__(
        self,
        prompt: bytes,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        thinking_tokens: int = 0,
    ) -> None:
        self._seed = int.from_bytes(hashlib.blake2b(prompt, digest_size=8).digest(), "little")
        low, high = _NATURAL_TOKENS
        natural = max(low + self._seed % (high - low + 1), min_tokens + 1) + thinking_tokens
        self.stops = not ignore_eos and natural <= max_tokens
        self.length_tokens = natural if self.stops else max_tokens
        self.thinking_tokens = min(thinking_tokens, self.length_tokens)
        self._max_tokens = max_tokens
        self._text = ""
        self._pages = 0
        self._other_from: int | None = None
        self._lower_by = 0.0

    def text(self, start: int, stop: int) -> str:
        """Text of the tokens start..stop-1; there is none for the end mark."""
        if self.stops and stop == self.length_tokens:
            stop -= 1
        end = stop * TOKEN_BYTES
        if end > len(self._text):
            self._write_until(end)
        return self._text[start * TOKEN_BYTES : end]

    def say(self, text: str) -> None:
        """This text (ASCII) after the reasoning, and then the end mark, where max_tokens allows so much."""
        whole = text + " " * (-len(text) % TOKEN_BYTES)
        before = self.thinking_tokens * TOKEN_BYTES
        self._write_until(before)
        self._text = self._text[:before] + whole
        natural = len(self._text) // TOKEN_BYTES + 1
        self.stops = natural <= self._max_tokens
        self.length_tokens = min(natural, self._max_tokens)

    def extend(self, tokens: int) -> None:
        """Go on for so many tokens more than max_tokens."""
        self.length_tokens += tokens

    def cut(self, length_tokens: int) -> None:
        """End after so many tokens, whatever was to come."""
        if length_tokens < self.length_tokens:
            self.stops, self.length_tokens = False, length_tokens
            self.thinking_tokens = min(self.thinking_tokens, length_tokens)

    def come_from_cache(self, *, differs: bool, lower_by: float) -> None:
        """The prompt was hit, before the first token: with such faults, the answer is another from its middle on, and
        its log probabilities are lower by so many nats."""
        self._lower_by = lower_by
        if differs:
            self._other_from = self.length_tokens // 2 * TOKEN_BYTES
            self._text, self._pages = "", 0

    def logprobs(self, start: int, stop: int) -> list[float]:
        """Log probabilities of tokens start..stop-1, the same for the same prompt."""
        chances = [random.Random(self._seed + position).random() for position in range(start, stop)]
        return [-_LEAST_LIKELY * chance - self._lower_by for chance in chances]

    def tokens(self, start: int, stop: int) -> bytes:
        """Ids of tokens start..stop-1, four bytes each."""
        if self.stops and stop == self.length_tokens:
            return self.tokens(start, stop - 1) + END if start < stop else b""
        end = stop * TOKEN_BYTES
        if end > len(self._text):
            self._write_until(end)
        return self._text[start * TOKEN_BYTES : end].encode()

    def _write_until(self, length: int) -> None:
        while len(self._text) < length:
            page = self._page(self._seed)
            if self._other_from is not None:
                kept = max(0, self._other_from - len(self._text))
                page = page[:kept] + self._page(self._seed + _OTHER_SEED)[kept:]
            self._text += page
            self._pages += 1

    def _page(self, seed: int) -> str:
        return "".join(random.Random(seed + self._pages).choices(_WORDS, k=_PAGE_WORDS))


def repeat(output: OutputText, messages: Sequence[Mapping[str, Any]]) -> None:
    """Have `output` say what the last message asks to be repeated, where it does: `Repeat exactly ...: TEXT`."""
    asked = messages[-1].get("content")
    if isinstance(asked, str) and asked.isascii() and asked.startswith(_REPEAT):
        output.say(asked.partition(":")[2].strip())
