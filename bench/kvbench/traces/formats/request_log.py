"""Logs of chat requests: the body as it was sent, and when. `response`, with its usage, is taken where it is there.

The body is a field, or its fields stand beside the log's own.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.traces.formats.answers import answer_of, json_of
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import Call, TimeUnits
from kvbench.traces.formats.conversation import NOTES as CONVERSATION_NOTES
from kvbench.traces.formats.conversation import Conversations
from kvbench.traces.formats.messages import chat_messages, chat_tools
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError, convert_object
from kvbench.traces.prefix.marks import MARK, MarkedPrompt, marked_prompt

_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_TAKEN = frozenset({"messages", "system", "tools", "model"})
_SINCE_S = 1e9
"""Times from here on are no times since a trace's start: 2001 in seconds, eleven days in ms."""


class _Record(msgspec.Struct):
    body: Any = None
    timestamp: float | str | None = None
    session_id: str | int | None = None
    completion_tokens: _Count | None = None
    response: Any = None
    usage: Any = None


_OWN = frozenset(_Record.__struct_fields__)


class RequestLogConverter:
    """The records of a source, in any order."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._conversations = Conversations(target)
        self._not_sent: set[str] = set()
        self._units = TimeUnits()

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            self._import.units += 1
            try:
                self._add(obj, line)
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        self._conversations.finish()
        facts = self._import.facts
        if self._units.said():
            facts["timestamps"] = f"taken as when a request was sent; {self._units.said()}"
        if self._not_sent:
            facts["fields of the bodies that are not sent again"] = ", ".join(sorted(self._not_sent))

    def _add(self, obj: dict[str, Any], line: int) -> None:
        record = convert_object(obj, _Record)
        at = "body."
        if "body" not in obj and "messages" in obj:
            body, at = {name: value for name, value in obj.items() if name not in _OWN}, ""
        else:
            body = json_of(record.body, "body", self._notes)
        if not isinstance(body, dict):
            raise LineError("expected an object, the request's body", field="body")
        if "messages" not in body:
            what = ", ".join(sorted(body)[:8]) or "nothing"
            self._import.drop("no_messages", line, f"a body without messages; it has {what}")
            return
        self._not_sent.update(name[:40] for name in body.keys() - _TAKEN if len(self._not_sent) < 40)
        notes: Counter[str] = Counter()
        response = json_of(record.response, "response")
        usage = record.usage
        if usage is None and isinstance(response, dict):
            usage = response.get("usage")
        counts = token_counts(usage, notes)
        model = body.get("model")
        if not isinstance(model, str | None):
            raise LineError("expected a model's name", field=f"{at}model")
        call = Call(
            line=line,
            messages=chat_messages(body["messages"], notes, system=body.get("system"), field=f"{at}messages"),
            tools=chat_tools(body.get("tools"), notes, field=f"{at}tools"),
            answer=answer_of(response, notes),
            session=None if record.session_id in (None, "") else str(record.session_id),
            model=model or None,
            start_s=self._units.seconds(record.timestamp, "timestamp"),
            input_tokens=counts.input_tokens,
            output_tokens=counts.output_tokens if record.completion_tokens is None else record.completion_tokens,
            cached_tokens=counts.cached_tokens,
            usage=usage if isinstance(usage, dict) else None,
        )
        self._notes.update(notes)
        self._conversations.add(call, self._marked(body) if self._conversations.wants_marks else None)

    @staticmethod
    def _marked(body: dict[str, Any]) -> MarkedPrompt:
        return marked_prompt(body.get("tools"), body.get("system"), body["messages"], last=body.get(MARK))


def _matches(head: Head) -> bool:
    fields = head.fields()
    if "kvbench_trace" in fields:
        return False
    return "body" in fields or (
        {"messages", "timestamp"} <= fields
        and not fields & {"input_length", "output_length", "hash_ids", "delay", "message_mode"}
        and (bool(fields & {"completion_tokens", "usage", "response"}) or _is_a_date(head))
    )


def _is_a_date(head: Head) -> bool:
    """Mooncake's timestamps are milliseconds since a trace's start, a log's are dates."""
    first = head.value[0] if isinstance(head.value, list) else head.value
    at = first.get("timestamp") if isinstance(first, dict) else None
    return isinstance(at, str) or (isinstance(at, int | float) and at >= _SINCE_S)


REQUEST_LOG = Format(
    name="request-log",
    about="request log",
    unit="record",
    matches=_matches,
    converter=RequestLogConverter,
    notes=CONVERSATION_NOTES
    | USAGE_NOTES
    | {"no_messages": "records whose body holds no messages, so no chat request: {n}"},
)
