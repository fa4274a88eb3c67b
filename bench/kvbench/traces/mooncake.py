"""Mooncake traces: one request a line, with arrival in ms and block ids that hold for the whole file.

The last, partial block of a prompt has an id too. Extensions: rows of one `session_id` follow each other, `delay` (ms)
after the answer before; `messages` (with `message_mode`) and `tools` are sent instead of made-up blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Message, TraceHeader, Turn
from kvbench.traces.foreign import NativeSink, shared_blocks
from kvbench.traces.lines import LineError, convert_object

DEFAULT_BLOCK_SIZE = 512
BLOCK_SIZES: tuple[int, ...] = tuple(1 << power for power in range(13))
"""Sizes tried where 512 does not fit: 1 to 4,096."""

_Ms = Annotated[float, Meta(ge=0, le=1e12)]
_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_REPLACING = ("replace", "full", "message_array_with_responses")
_ADDING = ("append", "delta", "deltas_with_responses", "deltas_without_responses")


class _Row(msgspec.Struct):
    timestamp: _Ms | None = None
    input_length: _Tokens | None = None
    output_length: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    hash_ids: list[int] | None = None
    session_id: str | int | None = None
    delay: _Ms | None = None
    messages: list[Message] | None = None
    message_mode: str | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    extra: Any = None


class _Lengths(msgspec.Struct):
    input_length: int | None = None
    hash_ids: list[int] | None = None
    messages: msgspec.Raw = msgspec.Raw()


class _SessionState(msgspec.Struct):
    name: str
    hashed: bool
    turns: int = 0
    timestamp_ms: float | None = None
    hash_ids: list[int] = []
    model: str | None = None


class BlocksDoNotFitError(LineError):
    """Hash ids that contradict their length under the block size assumed; another size may fit."""


class MooncakeConverter:
    """Feed it the rows of one file in order; native lines go to `sink`."""

    def __init__(self, sink: NativeSink, block_size: int, header: TraceHeader) -> None:
        self.rows = 0
        self.block_size = block_size
        self.hashed = False
        self._sink = sink
        self._sessions: dict[str | int, _SessionState] = {}
        self._last_ms = 0.0
        sink.header(msgspec.structs.replace(header, block_size=block_size))

    def add(self, obj: dict[str, Any], line: int) -> None:
        """Convert one row. Raises LineError naming the field; nothing is then written."""
        row = convert_object(obj, _Row)
        self._check(row)
        session = self._session(row, line)
        notes = self._sink.notes
        self._note_order(row, session)
        ids = row.hash_ids if session.hashed else None
        keep = shared_blocks(session.hash_ids, ids) if ids is not None else 0
        messages = tuple(row.messages) if not session.hashed and row.messages is not None else None
        adds = messages is not None and row.message_mode in _ADDING
        notes["hash_ids_left_out"] += messages is not None and row.hash_ids is not None
        notes["answers_missing"] += adds and row.message_mode == "deltas_without_responses" and session.turns > 0
        notes["zero_output"] += row.output_length == 0
        notes["row_extra"] += row.extra is not None
        start_s = None
        if session.turns == 0:
            start_s = (row.timestamp or 0.0) / 1000
        self._sink.turn(
            Turn(
                session_id=session.name,
                turn=session.turns,
                line=line,
                start_s=start_s,
                delay_s=self._delay_s(row, session),
                input_tokens=row.input_length,
                output_tokens=None if row.output_length is None else max(row.output_length, 1),
                hash_ids=None if ids is None else tuple(ids[keep:]),
                keep_blocks=keep or None,
                messages=None if adds else messages,
                append=messages if adds else None,
                tools=tuple(row.tools) if row.tools is not None else None,
                model=row.model if row.model and row.model != session.model else None,
                extra={} if row.extra is None else {"extra": row.extra},
            )
        )
        session.hash_ids = ids or []
        session.model = row.model or session.model
        session.timestamp_ms = row.timestamp
        session.turns += 1
        self.rows += 1
        self.hashed = self.hashed or session.hashed

    def _session(self, row: _Row, line: int) -> _SessionState:
        hashed = row.messages is None
        if row.session_id is None:
            return _SessionState(self._sink.name(f"row{line}"), hashed)
        session = self._sessions.get(row.session_id)
        if session is None:
            session = _SessionState(self._sink.name(str(row.session_id) or f"row{line}"), hashed)
            self._sessions[row.session_id] = session
        elif session.hashed != hashed:
            had, has = ("hash ids", "messages") if session.hashed else ("messages", "hash ids alone")
            raise LineError(
                f'has {has}, where the rows of session "{session.name}" before it have {had}',
                field="messages",
                hint="a session has messages on all of its rows, or on none",
            )
        return session

    def _delay_s(self, row: _Row, session: _SessionState) -> float:
        if session.turns == 0:
            return 0.0
        if row.delay is not None:
            return row.delay / 1000
        if row.timestamp is None or session.timestamp_ms is None:
            self._sink.notes["no_pause_known"] += 1
            return 0.0
        self._sink.notes["pauses_with_answer"] += 1
        return max(row.timestamp - session.timestamp_ms, 0.0) / 1000

    def _note_order(self, row: _Row, session: _SessionState) -> None:
        if row.timestamp is None:
            return
        if session.turns == 0:
            self._sink.notes["out_of_order"] += row.timestamp < self._last_ms
            self._last_ms = row.timestamp
        elif session.timestamp_ms is not None and row.timestamp < session.timestamp_ms:
            raise LineError(
                f'earlier than the row before it in session "{session.name}" ({session.timestamp_ms:g})',
                field="timestamp",
                hint="rows of a session stand in the order in which they follow each other",
            )

    def _check(self, row: _Row) -> None:
        if row.message_mode is not None and row.message_mode not in _REPLACING + _ADDING:
            known = ", ".join(_REPLACING + _ADDING)
            raise LineError(f'unknown mode "{row.message_mode}"; known: {known}', field="message_mode")
        if row.messages is not None:
            return
        if row.input_length is None:
            raise LineError("missing; a row without messages has its prompt's length", field="input_length")
        if row.hash_ids is None:
            raise LineError("missing; a row has hash_ids or messages", field="hash_ids")
        check_blocks(row.input_length, len(row.hash_ids), self.block_size)


def check_blocks(tokens: int, ids: int, size: int) -> None:
    """Raises BlocksDoNotFitError unless `ids` blocks of `size`, the last one partial, make `tokens`."""
    expected = -(-tokens // size)
    if ids == expected:
        return
    what = f"{ids} block ids for {tokens} input tokens of block size {size}; expected {expected}"
    if ids < expected:
        tail = tokens - max(ids - 1, 0) * size
        what += f": the last block would be {tail} tokens long" if ids else ""
    raise BlocksDoNotFitError(what, field="hash_ids")


def fitting_block_size(lines: Iterable[bytes]) -> int | None:
    """The smallest power of two under which every row's ids make its length; None if there is none."""
    decode = msgspec.json.Decoder(_Lengths).decode
    sizes: list[int] = list(BLOCK_SIZES)
    for raw in lines:
        try:
            row = decode(raw)
        except msgspec.MsgspecError:
            continue
        if row.input_length is None or row.hash_ids is None or bytes(row.messages) not in (b"", b"null"):
            continue
        ids, tokens = len(row.hash_ids), row.input_length
        sizes = [size for size in sizes if -(-tokens // size) == ids]
        if not sizes:
            return None
    return sizes[0]
