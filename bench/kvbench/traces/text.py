"""Content for block ids: the same id is the same tokens, another id others, and the count is exact.

Everything is made of a palette of ordinary words, each of which is one token together with the space before it, under
the tokenizer at hand (a local one, or a server's own /tokenize). Byte-level tokenizers split at spaces, so no merge
crosses a join, and the text of n such words is n tokens; the palette is tried as a whole before it is used, and each
block of text once more when it is made. No vocabulary is guessed at: an id is used only if a word gave it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.errors import ConfigError
from kvbench.traces.words import WORDS

FEWEST_WORDS = 64
MOST_WORDS = 256
_NEXT_STEP = "name another tokenizer in the endpoint's TOML (tokenizer), or replay a trace whose turns have messages"


@dataclass(frozen=True)
class Palette:
    """Words, each with its leading space, and the one token id each is; 64, 128 or 256 of them."""

    words: tuple[str, ...]
    ids: tuple[int, ...]

    def text(self, choice: Sequence[int]) -> str:
        """The text of words by their numbers."""
        words = self.words
        return "".join([words[number] for number in choice])


def candidates_text() -> str:
    """A text whose token ids tell `read_candidates` which words are single tokens: each candidate, twice."""
    return "".join(f" {word} {word}" for word in WORDS)


def read_candidates(ids: Sequence[int], source: str) -> Palette:
    """The palette out of the token ids of `candidates_text`. ConfigError where fewer than 64 words are single tokens.

    `source` names the tokenizer in errors.
    """
    single: dict[int, str] = {}
    at = 0
    for word in WORDS:
        length = 1
        while at + 2 * length <= len(ids) and list(ids[at : at + length]) != list(ids[at + length : at + 2 * length]):
            length += 1
        if at + 2 * length > len(ids):
            break  # not the tokens of one word twice: whatever follows could be anything
        if length == 1 and ids[at] not in single:
            single[ids[at]] = f" {word}"
        at += 2 * length
    for size in (MOST_WORDS, MOST_WORDS // 2, FEWEST_WORDS):
        if len(single) >= size:
            chosen = list(single.items())[:size]
            return Palette(tuple(word for _, word in chosen), tuple(token for token, _ in chosen))
    raise ConfigError(
        f"{source} cannot make blocks: only {len(single)} of {len(WORDS)} ordinary words are one token with the space "
        f"before them, {FEWEST_WORDS} are needed",
        hint=_NEXT_STEP,
    )


def trial(palette: Palette) -> tuple[str, list[int]]:
    """A text in which the words meet in many orders, and the ids that it must have."""
    numbers = [byte % len(palette.ids) for byte in _stream(b"trial", 16 * len(palette.ids))]
    numbers += range(len(palette.ids))
    return palette.text(numbers), [palette.ids[number] for number in numbers]


def check_trial(expected: Sequence[int], got: Sequence[int], source: str) -> None:
    """ConfigError where the trial text did not come out as the tokens it was made of."""
    if list(expected) != list(got):
        raise ConfigError(
            f"{source} cannot make blocks: words that are one token each came out as {len(got)} tokens where "
            f"{len(expected)} were put together",
            hint=_NEXT_STEP,
        )


def palette_of(encode: Callable[[str], list[int]], source: str) -> Palette:
    """The palette of a local tokenizer. ConfigError where it has none."""
    palette = read_candidates(encode(candidates_text()), source)
    text, ids = trial(palette)
    check_trial(ids, encode(text), source)
    return palette


class BlockText:
    """What stands for block ids in one run. `encode`, where it is given, is asked about each text that is made.

    A scope is what makes an id mean one thing: blocks of two scopes differ even if their ids are equal.
    """

    def __init__(self, palette: Palette, encode: Callable[[str], list[int]] | None = None) -> None:
        self.palette = palette
        self._encode = encode
        # One byte of the stream chooses one word: the palette is laid out 256 long.
        self._ids = np.array(palette.ids * (256 // len(palette.ids)), dtype=np.uint32)
        self._word_of = dict(zip(palette.ids, palette.words, strict=True))

    def ids(self, scope: str, block_id: int | str, tokens: int) -> array[int]:
        """The first `tokens` token ids of a block, as unsigned 32-bit integers; fewer tokens are a prefix of more."""
        return self.chosen(self.choice(scope, block_id, tokens))

    def choice(self, scope: str, block_id: int | str, tokens: int) -> bytes:
        """Which words the first `tokens` tokens of a block are: a byte each."""
        return _stream(_key(scope, block_id), tokens)

    def chosen(self, choice: bytes) -> array[int]:
        """Token ids of a choice, or of several one after the other: one call for many blocks is far quicker."""
        return array("I", self._ids[np.frombuffer(choice, dtype=np.uint8)].tobytes())

    def text(self, scope: str, block_id: int | str, tokens: int) -> str:
        """The same block as text of exactly `tokens` tokens; ConfigError where the tokenizer makes others of it."""
        ids = self.ids(scope, block_id, tokens)
        self.check(ids)
        return self.join(ids)

    def join(self, ids: Sequence[int]) -> str:
        """The text of ids that came from here."""
        return "".join(map(self._word_of.__getitem__, ids))

    def check(self, ids: Sequence[int]) -> None:
        """ConfigError where the text of these ids is encoded otherwise."""
        if self._encode is None:
            return
        text = self.join(ids)
        if (got := self._encode(text)) != list(ids):
            raise ConfigError(
                f"the tokenizer cannot make a block: {len(ids)} tokens came out as {len(got)} others, beginning with "
                f"{text[:40]!r}",
                hint=_NEXT_STEP,
            )


def _key(scope: str, block_id: int | str) -> bytes:
    return f"{scope}\0{block_id}".encode("utf-8", "backslashreplace")


def _stream(key: bytes, length: int) -> bytes:
    """`length` bytes that depend on nothing but the key; the first of a longer stream are a shorter one."""
    return hashlib.shake_128(key).digest(length)
