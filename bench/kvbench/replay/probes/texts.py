"""Texts of several kinds for counting tokens: each distinct, all with the same beginning and end.

A wrong tokenizer is off by another share on each kind, an endpoint that counts too much is off by one share on all of
them: that is how the two are told apart. As beginning and end never change, what a chat template joins to them is the
same number of tokens for every text, whatever merges there.
"""

from __future__ import annotations

import random

from kvbench.traces.words import WORDS

KINDS = ("words", "code", "numbers", "scripts")
BEGIN, END = "Read these notes.\n", "\nWhich note came last?"
TRIAL_PIECES = 200

_NAMES = ("index", "total", "values", "node", "cache", "limit", "offset", "result")
_SCRIPTS = (
    *("größer", "façade", "niño", "Übung", "čas", "łódź", "naïve", "østers"),
    *("привет", "мир", "слово", "поиск", "γλώσσα", "λόγος"),
    *("世界", "数据", "模型", "キャッシュ", "記憶", "토큰", "שלום", "سلام"),
)


def text(kind: str, pieces: int, seed: str) -> str:
    """A text of `pieces` pieces: one seed is one text, and fewer pieces of it are a beginning of more."""
    rng = random.Random(f"{kind} {seed}")
    body = "".join([_piece(kind, rng) for _ in range(pieces)])
    return f"{BEGIN}{body}{END}"


def sentence(words: int, seed: str) -> str:
    """So many ordinary words that nobody has sent before, ended by a full stop."""
    rng = random.Random(f"sentence {seed}")
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def _piece(kind: str, rng: random.Random) -> str:
    if kind == "words":
        return f" {rng.choice(WORDS)}"
    if kind == "numbers":
        return f" {rng.randrange(10 ** rng.randint(1, 7))}"
    if kind == "scripts":
        return f" {rng.choice(_SCRIPTS)}"
    left, right = rng.sample(_NAMES, 2)
    return rng.choice(
        (
            f"\n    {left} = {right}[{rng.randrange(100)}]",
            f"\n    if {left} != {right}:",
            f"\n        return {left}({right})",
            f"\n    {left}_{right} += 1",
        )
    )
