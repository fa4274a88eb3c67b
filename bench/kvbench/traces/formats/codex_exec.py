"""Events of `codex exec --json`: what the agent did in a turn and its usage, without prompts and times.

A turn in which tools ran made several calls, and its usage is their sum: only turns of one call can be told.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from kvbench.model import Recorded, Turn
from kvbench.traces.formats.agent_log import OtherLines
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.codex_items import usage_counts
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import LineError

BLOCK_SIZE = 64
_SPOKEN = ("agent_message", "input_text", "reasoning", "error", "todo_list")
"""Kinds of items that are no tool's."""


class CodexExecConverter:
    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._ids = count(1)
        self._others = OtherLines(target)
        self._lines = 0
        self._failed = 0
        target.sink.header(msgspec.structs.replace(target.header, block_size=BLOCK_SIZE, prefixes="unknown"))

    def file(self, file: SourceFile) -> None:
        thread, name, number, tools = file.path.stem.partition(".")[0], "", 0, 0
        for line, obj in self._import.objects(file, drop="no_object"):
            self._lines += 1
            kind = obj.get("type")
            item = obj.get("item")
            if kind == "thread.started":
                thread, name, number = str(obj.get("thread_id") or thread), "", 0
            if kind in ("thread.started", "turn.started"):
                tools = 0
            if isinstance(item, dict) and str(kind).endswith((".completed", ".delta")):
                tools += item.get("type") not in _SPOKEN
            if kind != "turn.completed":
                self._failed += kind == "turn.failed"
                self._others.add(line, str(kind))
                continue
            try:
                usage = obj.get("usage")
                counts = usage_counts({"total_token_usage": usage, "last_token_usage": usage}) if usage else None
            except LineError as error:
                self._import.drop("broken", line, error.message)
                continue
            tokens = usage.get("input_tokens") if isinstance(usage, dict) else None
            if counts is None or not tokens:
                self._import.drop("no_usage_turn", line, f"a turn without usage ({obj.get('status') or 'no status'})")
                continue
            self._import.sink.used(LoggedUsage(line=line, file=self._import.log.file, model=None, usage=counts[1]))
            if tools:
                self._import.drop("several_calls", line, f"a turn with {tools} tool calls, whose usage is a sum")
            else:
                name = name or self._import.sink.name(thread)
                self._turn(name, number, line, counts[1])
                number += 1

    def end(self) -> None:
        done = self._import
        done.units = self._lines + done.sink.dropped["no_object"]
        self._others.finish()
        done.facts["times"] = "none in the source: sessions start at once, and turns follow without a pause"
        done.facts["prefixes"] = (
            "the source has lengths and no prompts. Every prompt is made of blocks that no other has, so nothing is "
            "ever hit: a hit rate on this trace says nothing about the traffic it is from"
        )
        done.block_size, done.block_size_from = BLOCK_SIZE, "of made-up blocks; the source has none"
        if not done.sink.turns and not done.log.errors:
            why = f"no turn that is one call: {self._failed} failed, {done.sink.dropped['no_usage_turn']} without usage"
            done.log.error(
                0,
                f"{why}, {done.sink.dropped['several_calls']} of several calls",
                hint="the session's rollout (~/.codex/sessions) has every call",
            )

    def _turn(self, name: str, number: int, line: int, usage: dict[str, Any]) -> None:
        tokens, output = usage["input_tokens"], usage.get("output_tokens")
        self._notes["usage_lines"] += 1
        self._notes["zero_output"] += output == 0
        self._import.sink.turn(
            Turn(
                session_id=name,
                turn=number,
                line=line,
                start_s=0.0 if number == 0 else None,
                input_tokens=tokens,
                output_tokens=None if output is None else max(output, 1),
                hash_ids=tuple(next(self._ids) for _ in range(-(-tokens // BLOCK_SIZE))),
                recorded=Recorded(cached_tokens=usage.get("cached_input_tokens"), usage=usage),
            )
        )


def _matches(head: Head) -> bool:
    value = head.value
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (kind.startswith(("thread.", "turn.")) and bool(head.fields() & {"thread_id"}))


CODEX_EXEC = Format(
    name="codex-exec",
    about="codex exec --json",
    unit="line",
    matches=_matches,
    converter=CodexExecConverter,
    notes={
        "usage_lines": "turns of one call: {n}",
        "no_object": "lines that are no JSON object: {n}",
        "other_kinds": "lines of other kinds, which are no calls: {n}",
        "broken": "lines whose usage is not shaped as expected: {n}",
        "no_usage_turn": "turns without usage, in which no model answered: {n}",
        "several_calls": "turns in which tools ran: {n} (their usage is the sum of several calls)",
    },
)
