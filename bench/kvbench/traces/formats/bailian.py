"""Bailian (Qwen) traces: one whole request a row, with block ids that hold for the file, and the row it follows.

Blocks are of 16 tokens and the last, partial one has an id too. A row whose `parent_chat_id` is another row's `chat_id`
is the next turn of its session. Where several rows follow the same one, the earliest continues the session; each other
is a session of its own that starts after the same turn.
"""

from __future__ import annotations

from array import array
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Recorded, Turn, TurnRef
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.sink import shared_blocks
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import LineError, convert_object

BLOCK_SIZE = 16

_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_ROOT = -1
_UNMET, _FIRST = -(2**63), -(2**63) + 1
"""What precedes an id that was not met yet, and one that begins a prompt."""

_DENSE = 1 << 26
"""Published ids count from 0: below this they cost 8 bytes each, beyond it some 100."""


class _Row(msgspec.Struct):
    chat_id: int
    timestamp: Annotated[float, Meta(ge=0, le=1e9)]
    input_length: _Tokens
    output_length: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    hash_ids: list[int]
    parent_chat_id: int = _ROOT
    type: str | None = None
    turn: int | None = None


class _Link(msgspec.Struct):
    chat_id: int
    timestamp: float
    parent_chat_id: int = _ROOT


class _Parent(msgspec.Struct):
    """A row that others follow. heir: the row that continues its session; left: how many are still to come."""

    heir: tuple[float, int]
    left: int
    session: str = ""
    turn: int = 0
    timestamp: float = 0.0
    tree_s: float = 0.0
    hash_ids: list[int] = []


class BailianConverter:
    """The rows of one file. Ids hold for the file: a source of several has no meaning for them."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._sink = target.sink
        self._files = 0
        self._blocks: _AsTheyAre | _Chained = _AsTheyAre()

    def file(self, file: SourceFile) -> None:
        self._files += 1
        if self._files > 1:
            raise LineError(
                "a directory of several files: chat and block ids hold for one file, equal ids of two would pass for "
                "one chat, and one block",
                hint="name one of the files",
            )
        self._read_links(file)
        if self._convert(file, _AsTheyAre()):
            return
        self._import.restart()
        self._read_links(file)
        self._convert(file, _Chained())

    def end(self) -> None:
        done = self._import
        done.block_size, done.block_size_from = BLOCK_SIZE, "Bailian's, not said in the file"
        done.facts["time base"] = "seconds, as in the file"
        done.facts["block ids"] = f"hold for the whole file; {self._blocks.said}"

    def _read_links(self, file: SourceFile) -> None:
        """Who follows whom, before the first row is converted: rows may stand in any order."""
        self._chats: set[int] = set()
        self._parents: dict[int, _Parent] = {}
        decode = msgspec.json.Decoder(_Link).decode
        for _, raw in file.values():
            try:
                link = decode(raw)
            except (msgspec.MsgspecError, RecursionError):
                continue  # Told when it is converted.
            again = link.chat_id in self._chats
            self._chats.add(link.chat_id)
            if link.parent_chat_id == _ROOT or again:
                continue
            place = (link.timestamp, link.chat_id)
            parent = self._parents.get(link.parent_chat_id)
            if parent is None:
                self._parents[link.parent_chat_id] = _Parent(place, 1)
            else:
                parent.heir = min(parent.heir, place)
                parent.left += 1

    def _convert(self, file: SourceFile, blocks: _AsTheyAre | _Chained) -> bool:
        """All rows, each after the one it follows. False, at the first whose ids `blocks` cannot take."""
        self._blocks = blocks
        self._import.units = 0
        self._seen: set[int] = set()
        self._last_s = 0.0
        waiting: dict[int, list[tuple[int, _Row]]] = {}
        self._sink.header(msgspec.structs.replace(self._import.header, block_size=BLOCK_SIZE))
        for line, obj in self._import.objects(file):
            try:
                row = _row(obj)
            except LineError as error:
                self._import.error(line, error)
                continue
            self._import.units += 1
            self._sink.notes["out_of_order"] += row.timestamp < self._last_s
            self._last_s = row.timestamp
            if self._waits(row):
                waiting.setdefault(row.parent_chat_id, []).append((line, row))
                continue
            ready = [(line, row)]
            while ready:
                line, row = ready.pop()
                if not self._add(line, row):
                    return False
                ready.extend(reversed(waiting.pop(row.chat_id, [])))
        for rows in waiting.values():
            for line, row in rows:
                self._import.error(line, _endless(row, self._seen))
        return True

    def _waits(self, row: _Row) -> bool:
        parent = row.parent_chat_id
        return parent != _ROOT and parent in self._chats and parent not in self._seen

    def _add(self, line: int, row: _Row) -> bool:
        ids = self._blocks.ids(row.hash_ids)
        if ids is None:
            return False
        notes = self._sink.notes
        again = row.chat_id in self._seen
        notes["chat_again"] += again
        self._seen.add(row.chat_id)
        parent = None if again else self._parents.get(row.parent_chat_id) if row.parent_chat_id in self._seen else None
        notes["no_parent"] += row.parent_chat_id != _ROOT and row.parent_chat_id not in self._chats
        follower = None if again else self._parents.get(row.chat_id)
        name, number, keep, delay_s, start_s, ref = "", 0, 0, 0.0, None, None
        tree_s = row.timestamp if parent is None else parent.tree_s
        if parent is None:
            name, start_s = self._sink.name(f"chat{row.chat_id}"), row.timestamp
        else:
            gap = row.timestamp - parent.timestamp
            notes["clipped_pauses"] += gap < 0
            notes["pauses_with_answer"] += 1
            delay_s = round(max(gap, 0.0), 6)
            if parent.heir == (row.timestamp, row.chat_id):
                name, number = parent.session, parent.turn + 1
                keep = shared_blocks(parent.hash_ids, ids)
            else:
                name, ref = self._sink.name(f"chat{row.chat_id}"), TurnRef(parent.session, parent.turn)
                notes["branches"] += 1
                self._sink.sub_agents += 1
            parent.left -= 1
            if parent.left == 0:
                parent.hash_ids = []
        notes["zero_output"] += row.output_length == 0
        notes["whole_blocks"] += len(ids) < -(-row.input_length // BLOCK_SIZE)
        self._sink.turn(
            Turn(
                session_id=name,
                turn=number,
                line=line,
                parent=ref,
                start_s=start_s,
                delay_s=delay_s,
                input_tokens=row.input_length,
                output_tokens=max(row.output_length, 1),
                hash_ids=tuple(ids[keep:]),
                keep_blocks=keep or None,
                recorded=None
                if parent is None and follower is None
                else Recorded(at_s=round(max(row.timestamp - tree_s, 0.0), 6)),
                extra={"type": row.type} if row.type else {},
            )
        )
        if follower is not None:
            follower.session, follower.turn = name, number
            follower.timestamp, follower.tree_s, follower.hash_ids = row.timestamp, tree_s, ids
        return True


class _AsTheyAre:
    """Block ids that stand for all that precedes them too, which is so while each has only ever followed one other."""

    said = "each stands for its block and all before it"

    def __init__(self) -> None:
        self._before = array("q")
        self._beyond: dict[int, int] = {}

    def ids(self, ids: list[int]) -> list[int] | None:
        """`ids`, or None where one of them was met after another id before."""
        known = self._before
        before = _FIRST
        for block in ids:
            if not 0 <= block < len(known):
                if not 0 <= block < _DENSE:
                    if self._beyond.setdefault(block, before) != before:
                        return None
                    before = block
                    continue
                known.extend([_UNMET] * (block + 1 - len(known)))
            if known[block] == _UNMET:
                known[block] = before
            elif known[block] != before:
                return None
            before = block
        return ids


class _Chained:
    """Block ids that stand for their block alone, made to stand for all before it too: a new id for each pair of
    what precedes and the block. About 150 bytes for each that is new."""

    said = "each stands for its block alone, so they were numbered anew, by the block and all before it"

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def ids(self, ids: list[int]) -> list[int]:
        known, out, before = self._known, [], 0
        for block in ids:
            before = known.setdefault((before, block), len(known) + 1)
            out.append(before)
        return out


def _row(obj: dict[str, Any]) -> _Row:
    row = convert_object(obj, _Row)
    blocks = (row.input_length // BLOCK_SIZE, -(-row.input_length // BLOCK_SIZE))
    if len(row.hash_ids) not in blocks:
        raise LineError(
            f"{len(row.hash_ids)} block ids for {row.input_length} input tokens of block size {BLOCK_SIZE}; expected "
            f"{blocks[1]}",
            field="hash_ids",
        )
    return row


def _endless(row: _Row, seen: set[int]) -> LineError:
    return LineError(
        f"chat {row.chat_id} follows {row.parent_chat_id}, which follows chat {row.chat_id} or was not usable",
        field="parent_chat_id",
        hint="a chat follows an earlier one, or -1",
    )


def _matches(head: Head) -> bool:
    return {"chat_id", "hash_ids", "input_length"} <= head.fields()


BAILIAN = Format(
    name="bailian",
    about="Bailian (Qwen)",
    unit="row",
    matches=_matches,
    converter=BailianConverter,
    notes={
        "branches": "rows that follow a row which another follows already: {n} (each is a session of its own that "
        "starts after the same turn, as a sub-agent does)",
        "no_parent": "rows whose parent_chat_id is no row of the file: {n} (they start sessions)",
        "chat_again": "rows whose chat_id an earlier row has: {n} (each is a session of its own)",
        "out_of_order": "rows earlier than the row before: {n} (arrivals follow the timestamps)",
        "clipped_pauses": "rows earlier than the row they follow: {n} (they follow without a pause)",
        "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the trace does not say how long it "
        "took)",
        "whole_blocks": "rows without an id for their last, partial block: {n}",
    },
)
