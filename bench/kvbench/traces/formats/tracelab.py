"""TraceLab's normalised rows: a round of a coding agent each, with its lengths and what the provider's cache hit.

No text and no block ids: a prompt begins with as much of its session's last one as was read from the cache, which is
the least that they share.
"""

from __future__ import annotations

from itertools import count
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Recorded, Turn
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import MAX_TIME_S, LineError, convert_object

BLOCK_SIZE = 64

_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_INPUTS = ("user_message", "tool_result")
_OUTPUTS = ("reasoning", "text", "tool_call")


class _Row(msgspec.Struct):
    session_id: str
    input_tokens_total: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    prefix_tokens: _Count
    output_tokens: _Count | None = None
    round_index: int | None = None
    model: str | None = None
    timing_events: list[dict[str, Any]] = []


class _Round(msgspec.Struct):
    """What is kept of a row until its session is written."""

    line: int
    index: int
    input_tokens: int
    prefix_tokens: int
    output_tokens: int | None
    model: str | None
    start_s: float | None
    end_s: float | None

    @property
    def place(self) -> tuple[float, int]:
        return self.start_s if self.start_s is not None else float("-inf"), self.index


class TraceLabConverter:
    """All rounds in memory, some 200 bytes each: the rows of a session may stand anywhere."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._sessions: dict[str, list[_Round]] = {}
        self._ids = count(1)

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            try:
                row = convert_object(obj, _Row)
                start_s, end_s = _times(row.timing_events)
            except LineError as error:
                self._import.error(line, error)
                continue
            self._import.units += 1
            index = row.round_index if row.round_index is not None else len(self._sessions.get(row.session_id, ()))
            made = _Round(
                line, index, row.input_tokens_total, row.prefix_tokens, row.output_tokens, row.model, start_s, end_s
            )
            self._sessions.setdefault(row.session_id, []).append(made)

    def end(self) -> None:
        done = self._import
        done.sink.header(msgspec.structs.replace(done.header, block_size=BLOCK_SIZE))
        done.block_size, done.block_size_from = BLOCK_SIZE, "chosen here; the source has no blocks"
        done.facts["prefixes"] = (
            "a prompt begins with as much of its session's last one as the provider's cache hit (prefix_tokens): the "
            "least that they share, since what the provider had dropped may be the same text. A session's first prompt "
            "shares nothing, although its hits are of other sessions' prompts"
        )
        done.facts["times"] = (
            "a round begins with the last message or tool result before its answer, and ends with the last event of it"
        )
        for rounds in self._sessions.values():
            rounds.sort(key=lambda each: each.index)
        starts = [each.start_s for rounds in self._sessions.values() for each in rounds if each.start_s is not None]
        base_s = min(starts, default=0.0)
        for name, rounds in sorted(self._sessions.items(), key=lambda each: each[1][0].place):
            self._session(done.sink.name(name or "session"), rounds, base_s)

    def _session(self, name: str, rounds: list[_Round], base_s: float) -> None:
        before: _Round | None = None
        blocks = 0
        for number, row in enumerate(rounds):
            shared = min(row.prefix_tokens, row.input_tokens)
            keep = min(shared // BLOCK_SIZE, blocks)
            self._notes["prefix_beyond"] += number > 0 and shared // BLOCK_SIZE > blocks
            self._notes["other_prefix"] += number == 0 and shared > 0
            blocks = row.input_tokens // BLOCK_SIZE
            self._notes["zero_output"] += row.output_tokens == 0
            self._import.sink.turn(
                Turn(
                    session_id=name,
                    turn=number,
                    line=row.line,
                    start_s=None if number else round(min((row.start_s or base_s) - base_s, MAX_TIME_S), 6),
                    delay_s=self._pause_s(before, row),
                    input_tokens=row.input_tokens,
                    output_tokens=None if row.output_tokens is None else max(row.output_tokens, 1),
                    hash_ids=tuple(next(self._ids) for _ in range(blocks - keep)),
                    keep_blocks=keep or None,
                    model=row.model if row.model and (before is None or row.model != before.model) else None,
                    recorded=_recorded(row, rounds[0].start_s),
                )
            )
            before = row

    def _pause_s(self, before: _Round | None, row: _Round) -> float:
        if before is None:
            return 0.0
        end_s = before.end_s if before.end_s is not None else before.start_s
        if end_s is None or row.start_s is None:
            self._notes["no_time"] += 1
            return 0.0
        self._notes["clipped_pauses"] += row.start_s < end_s
        return round(min(max(row.start_s - end_s, 0.0), MAX_TIME_S), 6)


def _times(events: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """When a round's input was ready, and when its answer's last event came."""
    start_s = end_s = None
    for number, event in enumerate(events):
        kind = event.get("event_type")
        at_s = time_s(event.get("timestamp"), f"timing_events[{number}].timestamp")
        if at_s is None:
            continue
        if kind in _INPUTS and end_s is None:
            start_s = at_s if start_s is None else max(start_s, at_s)
        elif kind in _OUTPUTS:
            end_s = at_s if end_s is None else max(end_s, at_s)
    return start_s if start_s is not None else end_s, end_s


def _recorded(row: _Round, tree_s: float | None) -> Recorded:
    at_s = e2e_s = None
    if row.start_s is not None and tree_s is not None:
        at_s = round(min(max(row.start_s - tree_s, 0.0), MAX_TIME_S), 6)
    if row.start_s is not None and row.end_s is not None:
        e2e_s = round(min(max(row.end_s - row.start_s, 0.0), MAX_TIME_S), 6)
    return Recorded(at_s=at_s, e2e_s=e2e_s, cached_tokens=row.prefix_tokens)


def _matches(head: Head) -> bool:
    return {"session_id", "input_tokens_total", "prefix_tokens"} <= head.fields()


TRACELAB = Format(
    name="tracelab",
    about="TraceLab rounds",
    unit="round",
    matches=_matches,
    converter=TraceLabConverter,
    notes={
        "other_prefix": "sessions whose first prompt hit something: {n} (of other sessions' prompts; not shared here)",
        "prefix_beyond": "rounds that hit more than their session's last prompt: {n} (they share that whole prompt)",
        "no_time": "rounds without a time: {n} (they follow at once)",
        "clipped_pauses": "rounds that began before the one they follow had ended: {n} (they follow without a pause)",
    },
)
