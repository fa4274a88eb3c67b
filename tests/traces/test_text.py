"""Blocks made from ids: equal where the id is, different elsewhere, and exactly as long as they should be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import ConfigError
from kvbench.traces.text import (
    BlockText,
    candidates_text,
    check_trial,
    palette_of,
    read_candidates,
    trial,
)
from kvbench.traces.tokenizers import load_tokenizer
from kvbench.traces.words import WORDS


class WordTokenizer:
    """A token a word with its space, numbered as they come, but for words in `split`: those are two."""

    def __init__(self, split: frozenset[str] = frozenset()) -> None:
        self.split = split
        self.numbers: dict[str, int] = {}

    def number(self, piece: str) -> int:
        return self.numbers.setdefault(piece, 1000 + len(self.numbers))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in text.split(" ")[1:]:
            pieces = (f" {word[:1]}", word[1:]) if word in self.split else (f" {word}",)
            ids.extend(map(self.number, pieces))
        return ids


def test_words_are_all_different_and_plenty() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 500
    assert sum(len(word) == 3 for word in WORDS) >= 256
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_only_words_that_are_one_token_are_used() -> None:
    tokenizer = WordTokenizer(split=frozenset(WORDS[::2]))
    palette = palette_of(tokenizer.encode, "test")
    assert len(palette.ids) == len(set(palette.ids)) == 256
    assert all(tokenizer.encode(word) == [token] for word, token in zip(palette.words, palette.ids, strict=True))


@pytest.mark.parametrize(("good", "size"), [(255, 128), (128, 128), (127, 64), (64, 64)])
def test_a_poor_vocabulary_gives_a_smaller_palette(good: int, size: int) -> None:
    tokenizer = WordTokenizer(split=frozenset(WORDS[good:]))
    palette = palette_of(tokenizer.encode, "test")
    assert len(palette.ids) == size
    block = BlockText(palette, tokenizer.encode).ids("", 1, 4096)
    assert set(block) == set(palette.ids)


def test_a_tokenizer_with_too_few_words_is_refused_with_the_next_step() -> None:
    tokenizer = WordTokenizer(split=frozenset(WORDS[63:]))
    with pytest.raises(ConfigError, match=r"test cannot make blocks: only 63 of \d+ ordinary words") as error:
        palette_of(tokenizer.encode, "test")
    assert "tokenizer" in (error.value.hint or "")


def test_a_tokenizer_that_merges_across_words_is_refused() -> None:
    tokenizer = WordTokenizer()

    def merging(text: str) -> list[int]:
        """The sixth word and the one after it become one token, but where the candidates stand in a row."""
        sixth, seventh = tokenizer.encode(f" {WORDS[5]} {WORDS[6]}")
        out: list[int] = []
        for token in tokenizer.encode(text):
            if out[-1:] == [sixth] and token not in (sixth, seventh):
                out[-1] = 1
            else:
                out.append(token)
        return out

    with pytest.raises(ConfigError, match="words that are one token each came out as"):
        palette_of(merging, "test")


def test_the_trial_lets_most_words_meet_most_others_and_any_difference_is_refused() -> None:
    tokenizer = WordTokenizer()
    palette = read_candidates(tokenizer.encode(candidates_text()), "test")
    text, ids = trial(palette)
    assert tokenizer.encode(text) == ids
    assert set(ids) == set(palette.ids)
    assert len(set(itertools.pairwise(ids))) > 4000
    with pytest.raises(ConfigError):
        check_trial(ids, [*ids[:-1], 0], "test")


def test_a_server_that_adds_tokens_of_its_own_is_refused_and_not_misread() -> None:
    tokenizer = WordTokenizer()
    ids = [1, *tokenizer.encode(candidates_text())]
    with pytest.raises(ConfigError):
        read_candidates(ids, "test")


@given(st.integers(-(2**63), 2**64), st.integers(0, 700), st.integers(0, 700))
def test_a_shorter_block_is_the_beginning_of_a_longer_one(block: int, a: int, b: int) -> None:
    text = BlockText(palette_of(WordTokenizer().encode, "test"))
    short, long = sorted((a, b))
    assert text.ids("x", block, long)[:short] == text.ids("x", block, short)
    assert len(text.ids("x", block, long)) == long


def test_ids_and_scopes_make_blocks_different_and_nothing_else_does() -> None:
    tokenizer = WordTokenizer()
    palette = palette_of(tokenizer.encode, "test")
    text = BlockText(palette)
    keys = [(scope, block) for scope in ("", "a", "b", "a1") for block in range(500)]
    blocks = {text.ids(scope, block, 16).tobytes() for scope, block in keys}
    assert len(blocks) == len(keys)
    assert BlockText(palette).ids("a", 7, 64) == text.ids("a", 7, 64)


def test_text_and_ids_are_the_same_block_under_a_real_tokenizer() -> None:
    tokenizer = load_tokenizer("deepseek")
    text = BlockText(palette_of(tokenizer.encode, "deepseek"), tokenizer.encode)
    joined = "".join(text.text("s", block, 64) for block in range(20))
    assert tokenizer.encode(joined) == [token for block in range(20) for token in text.ids("s", block, 64)]
    assert len(tokenizer.encode(joined)) == 20 * 64


def test_a_block_that_does_not_round_trip_is_an_error() -> None:
    tokenizer = WordTokenizer()
    text = BlockText(palette_of(tokenizer.encode, "test"), lambda text: tokenizer.encode(text)[:-1])
    with pytest.raises(ConfigError, match="cannot make a block"):
        text.text("s", 1, 64)
