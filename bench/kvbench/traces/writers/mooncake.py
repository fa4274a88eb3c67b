"""Write Mooncake rows: one a request, by time, each with all ids of its prompt, the last, partial block's too.

Rows of one session carry `session_id` and `delay` (ms after the answer before), so that they follow each other; where
no session has a second turn, rows are plain ones.
"""

from __future__ import annotations

import msgspec

from kvbench.model import Turn
from kvbench.traces.formats.mooncake import BLOCK_SIZES, DEFAULT_BLOCK_SIZE
from kvbench.traces.writers.ids import BlockIds
from kvbench.traces.writers.order import PlacedTurn
from kvbench.traces.writers.survey import Survey

SAID = {
    "parents": "sub-agents' parents: {n} (each starts at its own time)",
    "joins": "turns that wait for sub-agents: {n} (each follows its own session's turn before)",
    "models": "turns that name a model: {n}",
    "dates": "turns that the source dates itself: {n} (a row's time is by the pauses and answers before it)",
    "times": "turns with the recorded time of their answer: {n} (the times of rows after them are right)",
    "session_names": "names of sessions: {n} (no session has a second turn, so that rows stand alone)",
    "tails": "last, partial blocks that had no id: {n} (each got one of its own: which tails are equal is not known)",
    "no_output": "rows without output_length: {n} (the source does not say how long the answer was)",
}


class _Row(msgspec.Struct, omit_defaults=True, kw_only=True):
    timestamp: float | int
    input_length: int
    output_length: int | None = None
    hash_ids: list[int]
    session_id: str | None = None
    delay: float | int | None = None


class MooncakeRows:
    """Rows of turns with hash ids, given in the order of time."""

    def __init__(self, block_size: int, ids: BlockIds, *, sessions: bool) -> None:
        self.tails = 0
        self._block_size = block_size
        self._ids = ids
        self._sessions = sessions
        self._encode = msgspec.json.Encoder().encode
        self._chains: dict[str, list[int]] = {}

    def row(self, placed: PlacedTurn) -> bytes:
        """The next line."""
        turn = placed.turn
        assert turn.input_tokens is not None
        row = _Row(
            timestamp=milliseconds(placed.start_s),
            input_length=turn.input_tokens,
            output_length=turn.output_tokens,
            hash_ids=self._hash_ids(turn, placed.last),
        )
        if self._sessions:
            row.session_id = turn.session_id
            row.delay = None if placed.after_own_s is None else milliseconds(placed.after_own_s)
        return self._encode(row) + b"\n"

    def _hash_ids(self, turn: Turn, last: bool) -> list[int]:
        chain = self._chains.pop(turn.session_id, [])
        del chain[turn.keep_blocks or 0 :]
        chain.extend(turn.hash_ids or ())
        if not last:
            self._chains[turn.session_id] = chain
        if len(chain) * self._block_size >= (turn.input_tokens or 0):
            return chain
        self.tails += 1
        return [*chain, self._ids.fresh()]


def lost(found: Survey) -> dict[str, int]:
    return {
        "texts": found.with_text,
        "tools": found.with_tools,
        "parents": found.sub_agents,
        "joins": found.joins,
        "models": found.with_model,
        "dates": found.with_dates,
        "times": found.with_times,
        "usage": found.with_usage,
        "extra": found.head_extra + found.turn_extra,
        "session_names": found.sessions if found.turns == found.sessions else 0,
    }


def milliseconds(seconds: float) -> float | int:
    """To the microsecond, which is finer than traces are; whole numbers as such, as Mooncake's are."""
    value = round(seconds * 1000, 3)
    return int(value) if value.is_integer() else value


def block_size_doubt(block_size: int) -> str:
    """What to add where the block size is named: the format has no field for it."""
    if block_size == DEFAULT_BLOCK_SIZE:
        return ", Mooncake's own"
    if block_size in BLOCK_SIZES:
        return ", not Mooncake's own 512, and the file does not say so: tell whoever reads it"
    return ", which the file does not say and kvbench would not make out: tell whoever reads it, or choose a power of 2"
