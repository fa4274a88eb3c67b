"""Mooncake traces: one request a line, with arrival in ms and block ids that hold for the whole file.

The last, partial block of a prompt has an id too. Extensions: rows of one `session_id` follow each other, `delay` (ms)
after the answer before; `messages` (with `message_mode`) and `tools` are sent instead of made-up blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Message, Recorded, Turn
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.chains import BROKEN, BROKEN_SENTENCE, Chains
from kvbench.traces.formats.sink import shared_blocks
from kvbench.traces.formats.source import Head, SourceFile
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


_KNOWN = set(_Row.__struct_fields__)


class _Lengths(msgspec.Struct):
    input_length: int | None = None
    hash_ids: list[int] | None = None
    messages: msgspec.Raw = msgspec.Raw()


class _SessionState(msgspec.Struct):
    name: str
    hashed: bool
    turns: int = 0
    first_ms: float = 0.0
    timestamp_ms: float | None = None
    hash_ids: list[int] = []
    model: str | None = None


class BlocksDoNotFitError(LineError):
    """Hash ids that contradict their length under the block size assumed; another size may fit."""


class MooncakeConverter:
    """The rows of one file, in order. Ids hold for the file: a source of several has no meaning for them."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._sink = target.sink
        self._files = 0
        self._begin(DEFAULT_BLOCK_SIZE)

    def file(self, file: SourceFile) -> None:
        self._files += 1
        if self._files > 1:
            raise LineError(
                "a directory of several files: block ids hold for one file, equal ids of two would pass for one block",
                hint="name one of the files, or put those that share their ids into one",
            )
        if self._rows(file, sure=False):
            return
        other = fitting_block_size(raw for _, raw in file.values())
        self._import.restart()
        self._begin(other or DEFAULT_BLOCK_SIZE)
        if other is not None:
            self._said_by = f"made out: every row's ids fit it, and not {DEFAULT_BLOCK_SIZE}"
        self._rows(file, sure=True)

    def end(self) -> None:
        if self._hashed:
            self._import.block_size, self._import.block_size_from = self._block_size, self._said_by

    def _begin(self, block_size: int) -> None:
        self._block_size, self._said_by = block_size, "Mooncake's, not said in the file"
        self._import.units = 0
        self._hashed = False
        self._sessions: dict[str | int, _SessionState] = {}
        self._last_ms = 0.0
        self._chains = Chains()
        self._tails: dict[int, int] = {}
        self._sink.header(msgspec.structs.replace(self._import.header, block_size=block_size))

    def _rows(self, file: SourceFile, *, sure: bool) -> bool:
        """Convert all rows. False, at the first that contradicts the block size, unless that is `sure`."""
        for line, obj in self._import.objects(file):
            try:
                self._add(obj, line)
            except BlocksDoNotFitError as error:
                if not sure:
                    return False
                self._import.error(line, error)
            except LineError as error:
                self._import.error(line, error)
        return True

    def _add(self, obj: dict[str, Any], line: int) -> None:
        """Convert one row. Raises LineError naming the field; nothing is then written."""
        row = convert_object(obj, _Row)
        self._sink.notes["other_fields"] += not obj.keys() <= _KNOWN
        self._check(row)
        session = self._session(row, line)
        notes = self._sink.notes
        self._note_order(row, session)
        ids = row.hash_ids if session.hashed else None
        keep = shared_blocks(session.hash_ids, ids) if ids is not None else 0
        if ids:
            notes["tails_differ"] += self._other_lengths(ids, row.input_length or 0, max(keep - 1, 0))
            notes[BROKEN] += self._chains.broken(ids, keep)
        messages = tuple(row.messages) if not session.hashed and row.messages is not None else None
        adds = messages is not None and row.message_mode in _ADDING
        notes["hash_ids_left_out"] += messages is not None and row.hash_ids is not None
        notes["answers_missing"] += adds and row.message_mode == "deltas_without_responses" and session.turns > 0
        notes["zero_output"] += row.output_length == 0
        notes["row_extra"] += row.extra is not None
        start_s = None
        if session.turns == 0:
            session.first_ms = row.timestamp or 0.0
            start_s = session.first_ms / 1000
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
                recorded=self._dated(row, session),
                extra={} if row.extra is None else {"extra": row.extra},
            )
        )
        session.hash_ids = ids or []
        session.model = row.model or session.model
        session.timestamp_ms = row.timestamp
        session.turns += 1
        self._import.units += 1
        self._hashed = self._hashed or session.hashed

    def _other_lengths(self, ids: list[int], tokens: int, start: int) -> int:
        """How many of `ids` from `start` on stand for a block of another length than where they first stood."""
        tails, size = self._tails, self._block_size
        last, length = ids[-1], tokens - (len(ids) - 1) * size
        count = sum(block_id in tails for block_id in ids[start:-1]) if tails else 0
        first = tails.get(last, size if last in self._chains else length)
        if length < size and last not in self._chains:
            tails.setdefault(last, length)
        return count + (first != length)

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

    def _dated(self, row: _Row, session: _SessionState) -> Recorded | None:
        """A row of a session has a time and a pause, and the answers before it are in the one alone. A row by itself
        begins at its time."""
        if row.session_id is None or row.timestamp is None:
            return None
        return Recorded(at_s=round((row.timestamp - session.first_ms) / 1000, 6))

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
        check_blocks(row.input_length, len(row.hash_ids), self._block_size)


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


def _matches(head: Head) -> bool:
    fields = head.fields()
    if fields & {"kvbench_trace", "turn", "turns", "chat_id", "conversations", "body", "requests"}:
        return False
    has_content = "hash_ids" in fields or "messages" in fields
    return "input_length" in fields or (has_content and ("timestamp" in fields or "delay" in fields))


MOONCAKE = Format(
    name="mooncake",
    about="Mooncake",
    unit="row",
    matches=_matches,
    converter=MooncakeConverter,
    notes={
        BROKEN: BROKEN_SENTENCE,
        "tails_differ": "block ids whose block has another length than where they first stood: {n} (they begin alike)",
        "no_pause_known": "requests with neither a time nor a pause: {n} (they follow at once)",
        "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the trace does not say how long it "
        "took)",
        "out_of_order": "rows earlier than the row before: {n} (arrivals follow the timestamps; those of one "
        "timestamp, --sessions and --rate follow the file)",
        "hash_ids_left_out": "rows with messages and hash ids: {n} (the messages are sent)",
        "answers_missing": "rows that add messages without the answer before them: {n} (--history live puts it in)",
        "other_fields": "rows with fields that Mooncake's do not have: {n} (not taken)",
        "row_extra": "rows with request fields of their own (extra): {n} (kept, and not sent)",
    },
)
