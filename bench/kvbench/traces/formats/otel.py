"""OpenTelemetry GenAI spans: each span of a request to a model is a turn, each run of an agent a session.

A span may stand anywhere in the source, before its parent too: the source is read twice, the first time for who is
whose parent (up to 1 kB a span in memory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvbench.errors import InputError
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import Call, Seen
from kvbench.traces.formats.conversation import NOTES as CONVERSATION_NOTES
from kvbench.traces.formats.conversation import Conversations
from kvbench.traces.formats.otel_messages import Attributes, answer_in, prompt_of, tools_of
from kvbench.traces.formats.otel_spans import Span, spans_in
from kvbench.traces.formats.otel_tree import Node, SpanTree
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError, decode_object, repair_surrogates

_SESSION = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "exgentic.session.id",
    "traceloop.association.properties.session_id",
)
_USAGE = "gen_ai.usage."
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")


class OtelConverter:
    """The spans of a source, in any order and any number of files."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._conversations = Conversations(target)
        self._tree = SpanTree()
        self._files: list[tuple[SourceFile, str | None]] = []
        self._named_by: Counter[str] = Counter()
        self._agents = False

    def file(self, file: SourceFile) -> None:
        """Who is whose parent. Mistakes are told here; the second reading meets the same ones."""
        self._files.append((file, self._import.log.file))
        for line, obj in self._import.objects(file):
            try:
                for span in spans_in(obj):
                    self._tree.add(span)
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        self._tree.settle()
        seen = Seen()
        for file, name in self._files:
            self._import.log.file = name
            for line, raw in _readable(file):
                self._spans(line, raw, seen)
        self._import.log.file = None
        self._conversations.finish()
        named = ", ".join(f"{name} ({count:,})" for name, count in sorted(self._named_by.items()))
        if named:
            self._import.facts["sessions"] = f"requests of one {named}"
        if self._agents:
            self._import.facts["agents"] = (
                "each run of an agent inside another's, or inside a tool, is a session of its own"
            )

    def _spans(self, line: int, raw: bytes, seen: Seen) -> None:
        try:
            obj = _decoded(raw)
        except LineError:
            return  # Told when it was read first.
        try:
            for span in spans_in(obj):
                self._import.units += 1
                try:
                    self._span(span, line, seen)
                except LineError as error:
                    field = ".".join(part for part in (span.field, error.field) if part)
                    self._import.error(line, LineError(error.message, field=field, hint=error.hint))
        except LineError:
            return

    def _span(self, span: Span, line: int, seen: Seen) -> None:
        key = (span.trace_id, span.span_id)
        if seen.again(*key):
            self._import.drop("again", line, f"span {span.span_id[:40]} stands before it already")
            return
        if span.kind != "call":
            self._import.drop("other_spans", line, f'span "{span.name[:60]}"')
            return
        node = self._tree.node(span)
        if node.wraps:
            self._import.drop("wrapping", line, f'span "{span.name[:60]}" holds the span of the same request')
            return
        if span.failed:
            self._import.drop("failed", line, f'span "{span.name[:60]}" has the status of an error')
            return
        attributes = span.attributes
        notes: Counter[str] = Counter()
        messages = prompt_of(attributes, span.events, notes)
        usage = {name.removeprefix(_USAGE): value for name, value in attributes.items() if name.startswith(_USAGE)}
        counts = token_counts(_openai_shape(usage), notes) if usage else token_counts(None, notes)
        session, parent, weak = self._session(span, node)
        model = attributes.get("gen_ai.request.model", attributes.get("gen_ai.response.model"))
        call = Call(
            line=line,
            messages=messages,
            tools=tools_of(attributes, notes),
            answer=answer_in(attributes, span.events, notes),
            session=session,
            weak=weak,
            parent=parent,
            agent=self._agent(span, node),
            nested=self._tree.is_nested(node),
            model=model if isinstance(model, str) and model else None,
            start_s=span.start_s,
            end_s=span.end_s,
            ttft_s=_seconds(attributes),
            input_tokens=counts.input_tokens,
            output_tokens=counts.output_tokens,
            cached_tokens=counts.cached_tokens,
            usage=usage or None,
            counted=_openai_shape(usage) if usage else None,
        )
        self._notes.update(notes)
        self._conversations.add(call)

    def _agent(self, span: Span, node: Node) -> str | None:
        """Who made the request: as its span says, or the run of an agent around it, or else its service."""
        if span.agent is not None:
            return span.agent
        around = (above.agent for _, above in self._tree.callers(node) if above.kind == "agent")
        return next((agent for agent in around if agent is not None), span.service)

    def _session(self, span: Span, node: Node) -> tuple[str | None, str | None, bool]:
        """The request's session, the one that called it, and whether others may go on with what it began."""
        name = next((name for name in _SESSION if span.attributes.get(name) not in (None, "")), "")
        base = str(span.attributes[name]) if name else span.trace_id
        if base:
            self._named_by[name or "trace"] += 1
        callers = [(key, above) for key, above in self._tree.callers(node) if above.calls]
        if callers and callers[-1][1].kind == "agent":
            del callers[-1]  # The outermost agent is the conversation itself.
        if not callers:
            return base or None, None, not name
        names = [f"{base or 'trace'}.{key[1]}" for key, _ in callers] + [base or "trace"]
        self._agents = True
        return names[0], names[1], False


def _decoded(raw: bytes) -> dict[str, Any]:
    """As Import.objects decodes it, but what it repairs was counted when it was read first."""
    try:
        return decode_object(raw)
    except LineError:
        return decode_object(repair_surrogates(raw)[0])


def _readable(file: SourceFile) -> Iterator[tuple[int, bytes]]:
    """What can be read of a file; where it cannot, was told when it was read first."""
    values = file.values()
    while True:
        try:
            value = next(values, None)
        except InputError:
            return
        if value is None:
            return
        yield value


def _openai_shape(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage attributes as a usage object; cached tokens are part of the input there, whatever the provider."""
    cached = usage.get("cache_read.input_tokens", usage.get("cache_read_input_tokens"))
    return {
        "prompt_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
        "completion_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _seconds(attributes: Attributes) -> float | None:
    for name in _TTFT:
        value = attributes.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9:
            return float(value)
    return None


def _matches(head: Head) -> bool:
    fields = head.fields()
    if fields & {"resourceSpans", "resource_spans"} or "spans" in fields:
        return True
    return bool(fields & {"span_id", "spanId"}) and "attributes" in fields


OTEL = Format(
    name="otel",
    about="OpenTelemetry GenAI spans",
    unit="span",
    matches=_matches,
    converter=OtelConverter,
    notes=CONVERSATION_NOTES
    | USAGE_NOTES
    | {
        "other_spans": "spans that are no request to a model (agents, tools, HTTP ...): {n}",
        "wrapping": "spans that hold another span of the same request: {n} (two instrumentations saw it)",
        "failed": "spans of requests that failed: {n}",
        "again": "spans whose id stands before them already: {n}",
    },
)
