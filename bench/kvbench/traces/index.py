"""One streaming pass over a native trace: where each tree's lines are, and whether all of it can be used.

Memory: some 30 bytes a line and 200 bytes a session; of the text only one line at a time, and the shared prompts.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvbench.errors import InputError
from kvbench.model import TRACE_VERSION, SharedPrompt, TraceHeader, Turn
from kvbench.traces import graph
from kvbench.traces.checks import Spelling, ToolCalls, check_blocks, check_fields, check_shared_prompt
from kvbench.traces.lines import (
    HEADER_FIELDS,
    MAX_LINE_BYTES,
    TURN_FIELDS,
    LineError,
    decode_header,
    decode_repaired,
    repair_surrogates,
)
from kvbench.traces.problems import ProblemLog

FIRST_LINE = f'the first line of a native trace is {{"kvbench_trace": {TRACE_VERSION}, "name": "..."}}'
_BOM = b"\xef\xbb\xbf"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PAR1": "parquet"}


class Repairs(msgspec.Struct):
    """What the reader put right by itself, counted."""

    byte_order_mark: int = 0
    blank_lines: int = 0
    lone_surrogates: int = 0


class TraceIndex:
    """Lines by tree, in file order within a tree; trees in the order of their roots' first lines.

    `lines` of tree i are offsets[starts[i]:starts[i + 1]], with their line numbers beside them.
    """

    def __init__(self) -> None:
        self.header = TraceHeader()
        self.prefixes: dict[str, SharedPrompt] = {}
        self.head_offsets = array("Q")
        self.sha256 = ""
        self.size_bytes = 0
        self.line_count = 0
        self.turn_count = 0
        self.has_hash_ids = False
        self.models: dict[str, int] = {}
        """The line that first names each model."""
        self.repairs = Repairs()
        self.root_ids: list[str] = []
        self.start_s = array("d")
        self.session_counts = array("I")
        self.starts = array("Q", [0])
        self.offsets = array("Q")
        self.numbers = array("I")


def index_trace(stream: BinaryIO, path: Path, log: ProblemLog) -> TraceIndex:
    """Read `stream` to its end. A strict log raises the first InputError; any other collects what it can."""
    index = TraceIndex()
    sessions = graph.Sessions()
    pending_lines = _Lines()
    tools, spelling = ToolCalls(), Spelling()
    blocks = array("I")
    lines = _read_lines(stream, index, log)
    offset, number, raw = next(lines, (0, 0, b""))
    if not raw:
        raise InputError("the file is empty", path=path, hint=FIRST_LINE)
    index.header = _header(raw, number, index, path)
    spelling.check(index.header.extra, HEADER_FIELDS, number, log)
    index.head_offsets.append(offset)
    for offset, number, raw in lines:
        try:
            item, lone = decode_repaired(raw, number)
        except LineError as error:
            log.error(number, error.message, field=error.field, hint=error.hint)
            continue
        index.repairs.lone_surrogates += lone
        if isinstance(item, SharedPrompt):
            _add_prefix(item, number, index, log)
            index.head_offsets.append(offset)
            continue
        session = sessions.add_turn(item, log)
        while len(blocks) < len(sessions.names):
            blocks.append(0)
        if item.model is not None:
            index.models.setdefault(item.model, number)
        _check_turn(item, session, index, sessions, blocks, log)
        tools.check(session, item, log)
        if item.extra:
            spelling.check(item.extra, TURN_FIELDS, number, log)
        pending_lines.add(offset, number, session)
        index.turn_count += 1
    if not index.turn_count and not log.errors:
        log.error(max(index.line_count, 1), "the trace has no turns", hint='a turn is a line with "session_id"')
    sessions.check(log)
    _group(index, sessions, pending_lines)
    return index


class _Lines:
    """Turn lines in file order: offset, number, session."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.numbers = array("I")
        self.sessions = array("I")

    def add(self, offset: int, number: int, session: int) -> None:
        self.offsets.append(offset)
        self.numbers.append(number)
        self.sessions.append(session)


def _read_lines(stream: BinaryIO, index: TraceIndex, log: ProblemLog) -> Iterator[tuple[int, int, bytes]]:
    """(byte offset, line number, bytes) of every line that is not blank; hashes everything on the way."""
    digest = hashlib.sha256()
    offset = 0
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        start = offset
        offset += len(raw)
        digest.update(raw)
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while rest := stream.readline(MAX_LINE_BYTES):
                digest.update(rest)
                offset += len(rest)
                if rest.endswith(b"\n"):
                    break
            log.error(number, f"longer than {MAX_LINE_BYTES // 2**20} MiB", hint="split the turn, or share its prompt")
            continue
        if number == 1 and raw.startswith(_BOM):
            index.repairs.byte_order_mark = 1
            raw = raw[len(_BOM) :]
            start += len(_BOM)
        if raw.isspace() or not raw:
            index.repairs.blank_lines += 1
            continue
        yield start, number, raw
    index.line_count = number
    index.size_bytes = offset
    index.sha256 = digest.hexdigest()


def _header(raw: bytes, number: int, index: TraceIndex, path: Path) -> TraceHeader:
    for magic, name in _MAGIC.items():
        if raw.startswith(magic):
            raise InputError(f"a {name} file, not lines of JSON", path=path, hint="unpack it first")
    repaired, index.repairs.lone_surrogates = repair_surrogates(raw)
    try:
        return decode_header(repaired)
    except LineError as error:  # Without a header nothing that follows can be judged.
        raise InputError(
            error.message, path=path, line=number, field=error.field, hint=error.hint or FIRST_LINE
        ) from None


def _add_prefix(prompt: SharedPrompt, number: int, index: TraceIndex, log: ProblemLog) -> None:
    if prompt.name in index.prefixes:
        log.error(number, f'shared prompt "{prompt.name}" is defined twice', field="prefix")
        return
    check_shared_prompt(prompt, number, log)
    index.prefixes[prompt.name] = prompt


def _check_turn(
    turn: Turn, session: int, index: TraceIndex, sessions: graph.Sessions, blocks: array[int], log: ProblemLog
) -> None:
    check_fields(turn, log)
    if turn.prefix is not None and turn.prefix not in index.prefixes:
        known = ", ".join(sorted(index.prefixes)[:8]) or "none"
        log.error(
            turn.line,
            f'shared prompt "{turn.prefix}" is not defined before this line (defined: {known})',
            field="prefix",
        )
    hashed = turn.hash_ids is not None
    if turn.turn > 0 and hashed != sessions.hashed(session):
        log.error(turn.line, "a session has hash_ids on all of its turns or on none", field="hash_ids")
    sessions.set_hashed(session, hashed)
    index.has_hash_ids = index.has_hash_ids or hashed
    blocks[session] = check_blocks(turn, index.header, blocks[session], log)


def _group(index: TraceIndex, sessions: graph.Sessions, lines: _Lines) -> None:
    """Counting sort of the lines by tree: stable, so the file's order stays within a tree."""
    tree_of = sessions.tree_of_session()
    roots = sessions.roots()
    index.root_ids = [sessions.names[root] for root in roots]
    index.start_s = array("d", [sessions.start_s[root] for root in roots])
    index.session_counts = array("I", bytes(4 * len(roots)))
    for session, tree in enumerate(tree_of):
        if tree >= 0 and sessions.turns[session]:
            index.session_counts[tree] += 1
    counts = array("Q", bytes(8 * (len(roots) + 1)))
    for session in lines.sessions:
        if tree_of[session] >= 0:
            counts[tree_of[session] + 1] += 1
    for tree in range(len(roots)):
        counts[tree + 1] += counts[tree]
    index.starts = array("Q", counts)
    total = counts[-1]
    index.offsets = array("Q", bytes(8 * total))
    index.numbers = array("I", bytes(4 * total))
    for offset, number, session in zip(lines.offsets, lines.numbers, lines.sessions, strict=True):
        tree = tree_of[session]
        if tree >= 0:
            at = counts[tree]
            counts[tree] = at + 1
            index.offsets[at] = offset
            index.numbers[at] = number
