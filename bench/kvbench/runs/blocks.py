"""blocks.jsonl: each prompt of a run as the chain of cache blocks it was, so that it can be fitted without its server.

A block's number stands for all tokens up to its end, and for the run's salt; equal numbers are equal prefixes. Numbers
of two runs have nothing to do with each other.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvbench.errors import InputError

BLOCKS_FILE = "blocks.jsonl"


class BlockRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent, in the order of sending.

    Its whole blocks are the first `kept` of the session's previous request's, then `new`. own: of them, so many are of
    the prompt; the rest are of the generated tokens, where their ids are known.
    """

    request_id: str
    session_id: str
    attempt: int = 0
    block_size: int
    input_tokens: int
    own: int
    kept: int
    new: list[int]


class BlockChains:
    """Cuts prompts into rows; feed it requests in the order of sending. Memory: eight bytes a block of each session's
    latest prompt."""

    def __init__(self, block_size: int, scope: str) -> None:
        self._size = block_size
        self._scope = scope.encode()
        self._latest: dict[str, array[int]] = {}

    def row(
        self, request_id: str, session_id: str, attempt: int, salt: str, ids: array[int], output_ids: array[int] | None
    ) -> BlockRow:
        """The last generated token is never in the cache: no step has read it."""
        all_ids = ids if output_ids is None else ids + output_ids[:-1]
        size = self._size
        chain = array("q")
        digest = hashlib.blake2b(
            self._scope + b"\0" + salt.encode("utf-8", "backslashreplace"), digest_size=16
        ).digest()
        data = array("I", all_ids).tobytes()
        for start in range(0, len(all_ids) // size * size * 4, size * 4):
            digest = hashlib.blake2b(digest + data[start : start + size * 4], digest_size=16).digest()
            chain.append(int.from_bytes(digest[:8]) >> 11)
        before = self._latest.get(session_id, array("q"))
        kept = _common(before, chain)
        self._latest[session_id] = chain
        return BlockRow(
            request_id=request_id,
            session_id=session_id,
            attempt=attempt,
            block_size=size,
            input_tokens=len(ids),
            own=len(ids) // size,
            kept=kept,
            new=chain[kept:].tolist(),
        )


def _common(a: array[int], b: array[int]) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def read_blocks(run: Path) -> Iterator[BlockRow]:
    """The rows of a run's blocks.jsonl; none where it has no such file. InputError for a broken line."""
    file = run / BLOCKS_FILE
    decoder = msgspec.json.Decoder(BlockRow)
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, ValueError) as error:
                if not line.endswith(b"\n"):
                    return
                raise InputError(
                    f"broken row: {error}", path=file, line=number, hint="without the file the run reads as before"
                ) from None
