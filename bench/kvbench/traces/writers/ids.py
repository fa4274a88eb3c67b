"""Which integers stand for blocks in what is written.

By default they are numbers in the order in which blocks first appear, tree by tree: small enough for every JSON
reader, and no function of the text at all, so that they tell which blocks are equal and nothing else. Numbering
remembers each block (some 100 bytes). With a key, ids are 63 bits of a keyed hash: the same in every conversion with
that key, and again nothing to who has no key; who has it can try whether a text he knows is in the trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvbench.errors import InputError

FEWEST_KEY_BYTES = 16
_MOST_KEY_BYTES = 1 << 20


class BlockIds(Protocol):
    """`text`: for chained hashes of texts; `trace`: for ids that the trace has; `fresh`: one that nothing shares."""

    about: str

    def text(self, hashes: Sequence[int]) -> tuple[int, ...]: ...
    def trace(self, ids: Sequence[int]) -> tuple[int, ...]: ...
    def fresh(self) -> int: ...


class KeptIds:
    """The trace's own ids as they are; fresh ones follow the largest. Of traces without text."""

    about = "the trace's own"

    def __init__(self, largest: int) -> None:
        self._largest = max(largest, -1)

    def text(self, hashes: Sequence[int]) -> tuple[int, ...]:
        raise AssertionError("a trace with text has its ids numbered")

    def trace(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids)

    def fresh(self) -> int:
        self._largest += 1
        return self._largest


class NumberedIds:
    """1, 2, 3 ... in the order of first appearance."""

    about = "numbers by first appearance, tree by tree"

    def __init__(self) -> None:
        self._last = 0
        self._text: dict[int, int] = {}
        self._trace: dict[int, int] = {}

    def text(self, hashes: Sequence[int]) -> tuple[int, ...]:
        return self._numbers(self._text, hashes)

    def trace(self, ids: Sequence[int]) -> tuple[int, ...]:
        return self._numbers(self._trace, ids)

    def fresh(self) -> int:
        self._last += 1
        return self._last

    def _numbers(self, known: dict[int, int], ids: Sequence[int]) -> tuple[int, ...]:
        for block in ids:
            if block not in known:
                known[block] = self.fresh()
        return tuple(map(known.__getitem__, ids))


class KeyedIds:
    """63 bits of BLAKE2b under a key.

    text_scope: what makes chained hashes comparable (block size and tokenizer). trace_scope: what the trace's own ids
    hold for (the file, by its SHA-256): ids of another file are other blocks, whatever their number.
    """

    about = "63-bit hashes under the key (of ids without text: no other file's agree with them)"

    def __init__(self, key: bytes, text_scope: str, trace_scope: str) -> None:
        self._text = hashlib.blake2b(f"text\0{text_scope}\0".encode(), key=key, digest_size=8)
        self._trace = hashlib.blake2b(f"trace\0{trace_scope}\0".encode(), key=key, digest_size=8)
        self._fresh = hashlib.blake2b(f"fresh\0{trace_scope}\0".encode(), key=key, digest_size=8)
        self._count = 0

    def text(self, hashes: Sequence[int]) -> tuple[int, ...]:
        return tuple(_keyed(self._text, value) for value in hashes)

    def trace(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(_keyed(self._trace, value) for value in ids)

    def fresh(self) -> int:
        self._count += 1
        return _keyed(self._fresh, self._count)


def read_key(path: Path) -> bytes:
    """A 32-byte key of a file's bytes, as they are. InputError for a file that holds too few to be a secret."""
    try:
        with path.open("rb") as stream:
            secret = stream.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", path=path, hint=f"head -c 32 /dev/urandom > {path}"
        ) from None
    if len(secret) < FEWEST_KEY_BYTES:
        raise InputError(
            f"a key of {len(secret)} bytes could be guessed; at least {FEWEST_KEY_BYTES} are needed",
            path=path,
            hint="write another one: head -c 32 /dev/urandom",
        )
    return hashlib.blake2b(secret, digest_size=32, person=b"kvbench block id").digest()


def _keyed(base: hashlib.blake2b, value: int) -> int:
    digest = base.copy()
    digest.update(str(value).encode())
    return int.from_bytes(digest.digest(), "little") >> 1
